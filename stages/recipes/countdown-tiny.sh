#!/usr/bin/env bash
# How countdown-tiny, the model that ships with this package, was made from nothing.
#
#   stages/recipes/countdown-tiny.sh OUT
#
# Supervised training on the traces of a solver that tries, checks and tries again, and now and then gives up
# after a line that failed: a habit that GRPO can unlearn. Half an hour on two cores, an hour on one. The
# manifest in countdown_rl/tiny/ carries these options; its weights are those of one run on one machine, and
# another kind of processor rounds otherwise.
set -euo pipefail
out=${1:?usage: $0 OUT}

countdown-rl gen-data --n 152000 --valid 1000 --test 1000 --seed 1 --out "$out/data"
countdown-rl warmup --data "$out/data" --out "$out/model" \
    --steps 3600 --batch-size 32 --learning-rate 0.003 --hit-rate 0.3 --max-lines 10 --give-up 0.12 --threads 1
