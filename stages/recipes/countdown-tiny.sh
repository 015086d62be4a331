#!/usr/bin/env bash
# countdown-tiny, the model that ships with this package: a supervised start for GRPO, trained from scratch.
#
#   countdown-tiny.sh OUT [--check] [--quick]
#
# The teacher executes every way without a mistake, and draws how many ways of a fixed plan to skip after each line:
# which way suits which puzzle is left to GRPO. About 40 minutes on two cores with products in bf16. The manifest in
# countdown_rl/assets/countdown_tiny/ has the options; another kind of processor rounds differently.
set -euo pipefail
arguments=1
. "$(dirname "$0")/common.bash"

data=(--n 122000 --valid 1000 --test 1000 --size 3=1 --size 4=4 --seed 1)
pretrain=(--max-steps 2500 --threads 2)
if [ "$quick" ] || [ "$check" ]; then data+=(--n 3000); pretrain+=(--max-steps 2 --batch-tokens 500); fi

countdown-rl gen-data "${data[@]}" --out "$1/data"
if [ "$check" ]; then exit; fi
PYTHONPATH="$(dirname "$0")/../.." python -m stages.recipes.tiny --data "$1/data" --out "$1/model" "${pretrain[@]}"
