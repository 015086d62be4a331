#!/usr/bin/env bash
# A start without a handicap: countdown-tiny, fine-tuned to follow its plan and to write half of the lines a second time,
# as people do who doubt a result. Whether a check is worth its tokens is left to GRPO and to its controls.
#
#   countdown-checking.sh OUT [--check] [--quick]
#
# Ten minutes on one core: the start, one with twice the steps, which shows that more imitation adds nothing, and their
# evaluations. Then controls.sh OUT/model OUT/data OUT/arms; benchmarks/checking.py reads what both leave.
set -euo pipefail
arguments=1
. "$(dirname "$0")/common.bash"
top=$(realpath "$(dirname "$0")/../..")

data=(--n 50000)
steps=150
eval=(--precision nf4 --temperature 1 --max-new-tokens 256 --samples 4 --pass-at 1,4)
start=(--checks 0.5 --drills 0 --max-lines 24 --batch-tokens 4096 --learning-rate 4e-4 --threads 1)
if [ "$quick" ] || [ "$check" ]; then data=(--n 3000); fi
if [ "$quick" ]; then
  steps=2
  start+=(--batch-tokens 500)
  eval+=(--limit 4 --max-new-tokens 64)
fi
model=countdown-tiny
enter "$1"

countdown-rl gen-data "${data[@]}" --out data
if [ "$check" ]; then exit; fi
for name in model longer; do
  PYTHONPATH="$top" python -m stages.recipes.tiny --model "$model" --data data --out "$name" --max-steps "$steps" \
    "${start[@]}"
  countdown-rl eval --model "$name" --data data/test.jsonl --out "eval/$name" "${eval[@]}"
  steps=$((2 * steps))
done
