#!/usr/bin/env bash
# Qwen2.5-3B-Instruct with the puzzles and the score of AReaL's Countdown example: eight GPUs of 80 GB.
#
#   [MODEL=...] [EXCLUDE=hands.jsonl] [PROCESSES=8] [ENGINE=areal] qwen2.5-3b-areal.sh OUT [--check] [--quick]
#
# Targets of 10 to 25 from 2, 3 or 4 numbers of 1 to 24; a correct answer scores 1, a well-formed wrong one 0.1,
# anything else 0. The original's mean reward rose from 0.13 to 0.79 by step 930. Differences:
#   - Its 500,000 rows held 229,557 different puzzles: here no row repeats, and no set of numbers of the test split is
#     in the training split. There are only 564 puzzles of 2 numbers, so they are less than a tenth of the rows.
#   - Its search used every number in integer arithmetic, while its prompt said at most once: here prompt, solver and
#     grader follow one rule, in fractions.
#   - Its learning rate, 5e-6, was for all weights: an adapter needs ten times as much.
#   - Its rollouts ran on separate GPUs with weights some steps old: here each process samples from the current ones.
#
# EXCLUDE names a file of sets of numbers to keep out of the data, one {"nums": [...]} a line, as AReaL kept out some
# 200 published ones of the game of 24. MODEL is a Hub id or a local checkpoint, PROCESSES the number of processes.
# ENGINE=areal trains nothing here: it writes the rows, the reward and a configuration for AReaL itself to OUT/areal
# (untested), whose weights `countdown-rl eval` then reads.
set -euo pipefail
arguments=1
. "$(dirname "$0")/common.bash"
model=${MODEL:-Qwen/Qwen2.5-3B-Instruct}

data=(--size 2=0.1 --size 3=0.4 --size 4=0.5 --numbers 1-24 --targets 10-25 --rule at-most-once --n 200000 --valid 1000 --test 1000 --seed 42)
train=(
  --precision bf16 --lora-r 64 --lora-alpha 64 --trl gradient_checkpointing=true
  --prompts 256 --num-generations 8 --micro-batch 8 --max-steps 930 # 1.2 passes over 198,000 puzzles
  --learning-rate 5e-5 --trl adam_beta2=0.95 --trl weight_decay=0.017
  --trl epsilon_high=0.2 --beta 0 --scale-rewards group --temperature 1
  --max-completion-length 4096
  --reward correct=0.9 --reward well-formed=0.1
)
eval=(--max-new-tokens 4096)
if [ "$quick" ]; then
  data+=(--n 300 --valid 30 --test 30)
  train+=(--max-steps 2 --prompts 2 --num-generations 4 --micro-batch 4 --max-completion-length 16)
  eval+=(--limit 4 --max-new-tokens 16)
fi
if [ "${EXCLUDE-}" ]; then exclude=$(realpath "$EXCLUDE"); data+=(--exclude "$exclude"); fi
enter "$1"

countdown-rl gen-data --out data "${data[@]}"
if [ "${ENGINE-}" = areal ]; then exec countdown-rl export-task --to areal --data data --out areal; fi
train+=(--model "$model" --data data --out adapter --log train/log.csv)
if [ "$check" ]; then exec countdown-rl train "${train[@]}" --check; fi
launch=(countdown-rl)
if [ "${PROCESSES:-8}" -gt 1 ] && [ -z "$quick" ]; then
  launch=(accelerate launch --num_processes "${PROCESSES:-8}" -m countdown_rl)
fi

countdown-rl eval --model "$model" --data data/test.jsonl --out eval/base "${eval[@]}"
"${launch[@]}" train "${train[@]}"
countdown-rl eval --model adapter --data data/test.jsonl --out eval/adapter "${eval[@]}"
countdown-rl merge --adapter adapter --out merged
countdown-rl eval --model merged --data data/test.jsonl --out eval/merged "${eval[@]}"
countdown-rl compare eval/base eval/adapter eval/merged --out eval/comparison
countdown-rl publish --model merged --eval eval/merged --out release \
  --base-model Qwen/Qwen2.5-3B-Instruct --license other

echo "Done: \`hf upload --private NAME/MODEL $1/release\` uploads it." >&2
