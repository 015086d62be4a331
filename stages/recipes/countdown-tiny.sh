#!/usr/bin/env bash
# How countdown-tiny, the model that ships with this package, was made from nothing.
#
#   stages/recipes/countdown-tiny.sh OUT
#
# Supervised training on the traces of a solver that tries, checks, tries again, and often gives up after a
# line that failed: a habit that GRPO can unlearn. About a quarter of an hour on two cores. The manifest in
# countdown_rl/tiny/ carries these options; its weights are those of one machine, and another kind of
# processor rounds otherwise.
set -euo pipefail
out=${1:?usage: $0 OUT}

countdown-rl gen-data --n 56000 --valid 1000 --test 1000 --seed 1 --out "$out/data"
countdown-rl warmup --data "$out/data" --out "$out/model" \
    --steps 1600 --batch-size 32 --learning-rate 0.003 --give-up 0.25 --threads 2
