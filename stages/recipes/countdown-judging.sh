#!/usr/bin/env bash
# A start that can judge: countdown-tiny, trained further by a teacher that names the kind of each puzzle and, after some
# of the lines, skips the ways that look poor for this kind. Whether that is worth more is left to GRPO.
#
#   countdown-judging.sh OUT [--check] [--quick]
#
# An hour on two cores, also without products in bf16. Then GRPO over three seeds, with the pipeline's options but
# more steps, a cosine schedule and a weak KL term, pass@k, and whether the choices depend on the puzzle:
#
#   python -m benchmarks.learning --model OUT/model --set max-steps=100 lr-scheduler-type=cosine beta=0.003 \
#       --name judging-learning --out OUT/runs
#   countdown-rl eval --model MODEL --data artifacts/data/test.jsonl --temperature 1 --samples 64   # of each, then compare
#   python -m benchmarks.judging --model OUT/model --training OUT/data start=OUT/runs/base/sampled \
#       42=OUT/runs/42/eval/sampled 43=OUT/runs/43/eval/sampled 44=OUT/runs/44/eval/sampled
#
# Without the KL term: max-steps=160, no beta. docs/lab/experiments.md has what came of both.
set -euo pipefail
arguments=1
. "$(dirname "$0")/common.bash"

data=(--n 60000 --valid 1000 --test 1000 --size 3=1 --size 4=4 --seed 1)
pretrain=(--max-steps 1000 --learning-rate 2e-3 --threads 2)
if [ "$quick" ] || [ "$check" ]; then data+=(--n 3000); pretrain+=(--max-steps 2 --batch-tokens 500); fi

countdown-rl gen-data "${data[@]}" --out "$1/data"
if [ "$check" ]; then exit; fi
PYTHONPATH="$(dirname "$0")/../.." python -m stages.recipes.tiny --model countdown-tiny --judge --data "$1/data" --out "$1/model" "${pretrain[@]}"
