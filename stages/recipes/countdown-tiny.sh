#!/usr/bin/env bash
# How countdown-tiny, the model that ships with this package, was made from nothing.
#
#   stages/recipes/countdown-tiny.sh OUT
#
# Supervised training on the traces of a solver that tries, checks and tries again, and then twice on traces
# that go on from what the model itself tried in vain. In the last of them the solver often gives up after a
# line that failed: a habit that GRPO can unlearn. About an hour and a half on one core, half of it the tries.
# The manifest in countdown_rl/tiny/ carries the options of all three; the weights are those of one run on one
# machine, and another kind of processor rounds otherwise.
set -euo pipefail
out=${1:?usage: $0 OUT}

countdown-rl gen-data --n 152000 --valid 1000 --test 1000 --seed 1 --out "$out/data-1"
countdown-rl warmup --data "$out/data-1" --out "$out/model-1" \
    --steps 3600 --batch-size 32 --learning-rate 0.003 --hit-rate 0.3 --max-lines 10 --give-up 0.12 --threads 1

countdown-rl gen-data --n 65000 --valid 500 --test 500 --seed 2 --out "$out/data-2"
countdown-rl warmup --model "$out/model-1" --data "$out/data-2" --out "$out/model-2" --tries own \
    --steps 400 --batch-size 32 --learning-rate 0.002 --hit-rate 0.05 --give-up 0.12 --threads 1

countdown-rl gen-data --n 17000 --valid 500 --test 500 --seed 3 --out "$out/data-3"
countdown-rl warmup --model "$out/model-2" --data "$out/data-3" --out "$out/model" --tries own \
    --steps 500 --batch-size 32 --learning-rate 0.002 --hit-rate 0.05 --give-up 0.25 --threads 1
