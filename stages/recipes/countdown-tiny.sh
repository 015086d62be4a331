#!/usr/bin/env bash
# How countdown-tiny, the model that ships with this package, was made from nothing.
#
#   stages/recipes/countdown-tiny.sh OUT
#
# Supervised training on the traces of a solver that knows in which order to try; then on more of them, mostly
# with four numbers; and last, briefly, on those of one that soon gives up: a habit that GRPO can unlearn. About
# an hour on two cores. The manifest in countdown_rl/assets/countdown_tiny/ carries the options of all three; the weights are
# those of one run on one machine, and another kind of processor rounds otherwise.
set -euo pipefail
out=${1:?usage: $0 OUT}

countdown-rl gen-data --n 252000 --valid 1000 --test 1000 --seed 1 --out "$out/data-1"
countdown-rl sft --data "$out/data-1" --out "$out/model-1" \
    --max-steps 2600 --batch-size 32 --learning-rate 0.003 --max-lines 12 --threads 2

countdown-rl gen-data --n 50000 --valid 1000 --test 1000 --size 3=1 --size 4=2 --seed 2 --out "$out/data-2"
countdown-rl sft --model "$out/model-1" --data "$out/data-2" --out "$out/model-2" \
    --max-steps 1500 --batch-size 32 --learning-rate 0.002 --max-lines 12 --threads 2

countdown-rl gen-data --n 7000 --valid 500 --test 500 --seed 3 --out "$out/data-3"
countdown-rl sft --model "$out/model-2" --data "$out/data-3" --out "$out/model" \
    --max-steps 150 --batch-size 32 --learning-rate 0.001 --max-lines 12 --give-up 0.55 --threads 2
