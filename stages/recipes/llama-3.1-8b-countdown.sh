#!/usr/bin/env bash
# Llama-3.1-8B-Instruct on Countdown, GRPO over 4-bit weights: one GPU of 24 GB or more.
#
#   [MODEL=...] [FROM=rows.jsonl] [FAST=1] llama-3.1-8b-countdown.sh OUT [--check] [--quick]
#
# The settings of a widely copied notebook, with these faults corrected:
#   - Its limit of 64 prompt tokens truncated the puzzle: here a prompt that does not fit the context is an error.
#   - Its format reward required a <think> that the prompt already contained, so it was always 0: here `format`
#     continues where the prompt ends.
#   - Its prompt allowed the answer "impossible", which was never rewarded: here it is correct for puzzles proved to
#     have no solution, and `gen-data --impossible 0.05` keeps such rows.
#   - The same puzzle was in both splits: gen-data drops repeated rows and splits by the numbers.
#   - Its grader was an `eval` that could be exploited: answers are parsed by a grammar and computed exactly.
#
# FAST=1 leaves out the KL penalty (--beta 0), and with it the forward pass of the reference model in every step. MODEL is
# a Hub id or a local checkpoint, FROM a file of puzzles instead of the Hub data set.
set -euo pipefail
arguments=1
. "$(dirname "$0")/common.bash"
model=${MODEL:-meta-llama/Llama-3.1-8B-Instruct}

data=(--n 50000 --seed 42)
train=(
  --precision nf4 --lora-r 16 --lora-alpha 32 --trl gradient_checkpointing=true
  # Batches of 8, the library's default, times an accumulation of 16: 128 completions a step.
  --prompts 32 --num-generations 4 --micro-batch 8 --max-steps 1406 # one pass over 45,000 puzzles
  --learning-rate 1e-5 --trl lr_scheduler_type=cosine --beta 0.001 --scale-rewards group --seed 42
  --max-completion-length 128
  --reward format=1 --reward correct=1
)
eval=(--max-new-tokens 128)
if [ "${FAST-}" ]; then train+=(--beta 0); fi
if [ "$quick" ]; then
  data+=(--n 300)
  train+=(--max-steps 2 --prompts 2 --micro-batch 4 --max-completion-length 16)
  eval+=(--limit 4 --max-new-tokens 16)
fi
if [ "${FROM-}" ]; then from=$(realpath "$FROM"); data+=(--from "$from"); else data+=(--from-hub Jiayi-Pan/Countdown-Tasks-3to4); fi
enter "$1"

countdown-rl gen-data --out data "${data[@]}"
train+=(--model "$model" --data data --out adapter --log train/log.csv)
if [ "$check" ]; then exec countdown-rl train "${train[@]}" --check; fi

countdown-rl eval --model "$model" --precision nf4 --data data/test.jsonl --out eval/base "${eval[@]}"
countdown-rl train "${train[@]}"
countdown-rl eval --model adapter --data data/test.jsonl --out eval/adapter "${eval[@]}"
countdown-rl compare eval/base eval/adapter --out eval/comparison
countdown-rl publish --model adapter --eval eval/adapter --out release \
  --base-model meta-llama/Llama-3.1-8B-Instruct --license llama3.1

echo "Done: \`hf upload --private NAME/MODEL $1/release\` uploads it." >&2
