#!/usr/bin/env bash
# An SFT checkpoint that skips nothing: countdown-tiny, fine-tuned to follow its plan and to repeat half of the lines, as
# people do who check a result. GRPO and its controls can learn when a check is worth its tokens.
#
#   countdown-checking.sh OUT [--check] [--quick]
#
# About twelve minutes on one core: the checkpoint, another with twice the steps, to see whether more imitation helps, and
# their evaluations. Then run controls.sh OUT/model OUT/data OUT/arms.
set -euo pipefail
arguments=1
. "$(dirname "$0")/common.bash"
top=$(realpath "$(dirname "$0")/../..")

data=(--n 50000)
steps=150
eval=(--temperature 1 --max-new-tokens 256 --samples 4)
sft=(--checks 0.5 --drills 0 --max-lines 24 --batch-tokens 4096 --learning-rate 4e-4 --threads 1)
if [ "$quick" ] || [ "$check" ]; then data=(--n 3000); fi
if [ "$quick" ]; then
  steps=2
  sft+=(--batch-tokens 500)
  eval+=(--limit 4 --max-new-tokens 64)
fi
model=countdown-tiny
enter "$1"

countdown-rl gen-data "${data[@]}" --out data
if [ "$check" ]; then exit; fi
for name in model longer; do
  PYTHONPATH="$top" python -m stages.recipes.tiny --model "$model" --data data --out "$name" --max-steps "$steps" \
    "${sft[@]}"
  countdown-rl eval --model "$name" --data data/test.jsonl --out "eval/$name" "${eval[@]}"
  steps=$((2 * steps))
done
