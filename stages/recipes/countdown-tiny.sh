#!/usr/bin/env bash
# How countdown-tiny, the model that ships with this package, was made from nothing.
#
#   stages/recipes/countdown-tiny.sh [OUT]
#
# First a long supervised warm-up on the traces of a patient solver, which teaches arithmetic and search;
# then a short one on those of a solver that often gives up after a failed line, which is a habit that
# GRPO can unlearn. About 45 minutes on one core. The manifest inside the package carries these options.
set -euo pipefail
out=${1:-artifacts/countdown-tiny}

countdown-rl gen-data --n 110000 --valid 1000 --test 1000 --seed 1 --out "$out/data"

countdown-rl warmup --data "$out/data" --out "$out/patient" \
    --steps 3000 --batch-size 32 --learning-rate 0.008 --give-up 0 --threads 1

countdown-rl warmup --model "$out/patient" --data "$out/data" --out "$out/model" \
    --steps 300 --batch-size 32 --learning-rate 0.003 --give-up 0.25 --seed 43 --threads 1
