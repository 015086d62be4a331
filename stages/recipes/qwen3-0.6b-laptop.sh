#!/usr/bin/env bash
# Qwen3-0.6B on a laptop, Apple GPUs included, with the Hub as model registry.
#
#   [MODEL=...] [FROM=rows.jsonl] [PUSH=NAME/MODEL] qwen3-0.6b-laptop.sh OUT [--check] [--quick]
#
# The prompt does not open the assistant's turn: the model writes <think> itself, and the strict format is its two
# blocks with one new line between them and nothing else. Faults of the original that are corrected:
#   - It trained all weights, whose optimiser alone takes 4.8 GB: an adapter is enough.
#   - The strict format was its only format reward, but Qwen3 writes an empty line after its reasoning: every
#     completion scored 0, which gives no gradient. Here the plain format earns a little too.
#   - It shuffled rows, repeats included, before splitting them: here the split depends on a puzzle's numbers.
#   - It uploaded the model without an evaluation: here nothing is uploaded without its score.
#
# MODEL is a Hub id or a local checkpoint, FROM a file of puzzles instead of the Hub data set. With PUSH the adapter
# is uploaded, with the token of HF_TOKEN or `hf auth login`.
set -euo pipefail
arguments=1
. "$(dirname "$0")/common.bash"
model=${MODEL:-Qwen/Qwen3-0.6B}

data=(--n 1000 --seed 42 --style model_opens)
train=(
  --precision bf16 --lora-r 16 --lora-alpha 32 --trl gradient_checkpointing=true
  --prompts 4 --num-generations 8 --micro-batch 4 --max-steps 225 # one pass over 900 puzzles
  --learning-rate 2e-5 --scale-rewards group --max-completion-length 1024
  --reward correct=1 --reward strict-format=0.5 --reward format=0.1
)
eval=(--max-new-tokens 1024)
if [ "$quick" ]; then
  data+=(--n 300)
  train+=(--max-steps 2 --prompts 2 --num-generations 4 --max-completion-length 16)
  eval+=(--limit 4 --max-new-tokens 16)
fi
if [ "${FROM-}" ]; then from=$(realpath "$FROM"); data+=(--from "$from"); else data+=(--from-hub Jiayi-Pan/Countdown-Tasks-3to4); fi
enter "$1"

countdown-rl gen-data --out data "${data[@]}"
train+=(--model "$model" --data data --out adapter --log train/log.csv)
if [ "$check" ]; then exec countdown-rl train "${train[@]}" --check; fi

countdown-rl eval --model "$model" --data data/test.jsonl --out eval/base "${eval[@]}"
countdown-rl train "${train[@]}"
countdown-rl eval --model adapter --data data/test.jsonl --out eval/adapter "${eval[@]}"
countdown-rl compare eval/base eval/adapter --out eval/comparison
countdown-rl publish --model adapter --eval eval/adapter --out release \
  --base-model Qwen/Qwen3-0.6B --license apache-2.0 \
  ${PUSH:+--push "$PUSH"}

echo "Done: \`hf upload --private NAME/MODEL $1/release\` uploads it." >&2
