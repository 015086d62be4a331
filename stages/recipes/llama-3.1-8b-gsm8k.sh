#!/usr/bin/env bash
# Llama-3.1-8B on GSM8K, from its training split to a 4-bit upload: one GPU of 24 GB or more.
#
#   [MODEL=...] [FROM=rows.jsonl] [FAST=1] [ZERO=2] [PUSH=NAME/MODEL] llama-3.1-8b-gsm8k.sh OUT [--check] [--quick]
#
# Reasoning and answer in blocks whose tags stand on lines of their own. Four rewards: that layout (+1 or -1), no
# text after the answer (-0.5), an integer (+1 or -1), the correct number (1). FAST=1 samples two completions per
# prompt of twice as many, trains on each four times without a KL penalty, and rewards short ones. ZERO=2 or 3 trains
# with DeepSpeed on PROCESSES GPUs; ZeRO-3 shards the weights, which are in bf16 then. Faults of the original that are
# corrected:
#   - It monitored training on the test split: here a tenth of the training split is held out, and the test split is
#     used once for each of the four models.
#   - It compared answers as text: here 1,000 and $1000 and 1000.0 are the same number.
#   - It uploaded 4-bit weights without an evaluation: here they have their own row in the table.
#   - It added a pad token by hand, in training only: here every stage does.
#
# MODEL is a Hub id or a local checkpoint (the base model, meta-llama/Llama-3.1-8B, has no chat template and gets
# plain text); FROM is a file of problems instead of the Hub data set.
set -euo pipefail
arguments=1
. "$(dirname "$0")/common.bash"
model=${MODEL:-meta-llama/Llama-3.1-8B-Instruct}

data=(--task gsm8k --style lines --n 8792)
train=(
  --precision nf4 --lora-r 8 --lora-alpha 32 --trl gradient_checkpointing=true
  --prompts 8 --num-generations 4 --micro-batch 4 --max-steps 934
  --learning-rate 2e-4 --trl lr_scheduler_type=cosine --trl warmup_steps=500 --trl weight_decay=0.01 --beta 0.02
  --trl epsilon_high=0.2 --scale-rewards group --eval-every 250
  --temperature 0.7 --trl top_p=0.9 --max-completion-length 256
  --reward strict-format/-1=1 --reward no-trailing=1 --reward integer=1 --reward correct=1
)
eval=(--max-new-tokens 256)
if [ "${FAST-}" ]; then
  train+=(--prompts 16 --num-generations 2 --micro-batch 8 --trl num_iterations=4 --max-steps 1868 # one pass, four times
    --max-completion-length 128 --beta 0 --reward length:100=1)
fi
recipes=$(cd "$(dirname "$0")" && pwd)
launch=(countdown-rl)
if [ "${ZERO-}" ]; then
  launch=(accelerate launch --config_file "$recipes/zero$ZERO.yaml" --num_processes "${PROCESSES:-1}" -m countdown_rl)
fi
if [ "${ZERO-}" = 3 ]; then train+=(--precision bf16); fi
if [ "$quick" ]; then
  data+=(--n 300)
  train+=(--max-steps 2 --prompts 2 --micro-batch 4 --max-completion-length 16)
  eval+=(--limit 4 --max-new-tokens 16)
fi
if [ "${FROM-}" ]; then from=$(realpath "$FROM"); data+=(--from "$from"); else data+=(--from-hub openai/gsm8k); fi
enter "$1"

countdown-rl gen-data --out data "${data[@]}"
train+=(--model "$model" --data data --out adapter --log train/log.csv)
if [ "$check" ]; then exec countdown-rl train "${train[@]}" --check; fi

countdown-rl eval --model "$model" --precision nf4 --data data/test.jsonl --out eval/base "${eval[@]}"
"${launch[@]}" train "${train[@]}"
countdown-rl eval --model adapter --data data/test.jsonl --out eval/adapter "${eval[@]}"
countdown-rl merge --adapter adapter --out merged
countdown-rl eval --model merged --data data/test.jsonl --out eval/merged "${eval[@]}"
countdown-rl quantize --model merged --format nf4 --out quantized
countdown-rl eval --model quantized --data data/test.jsonl --out eval/quantized "${eval[@]}"
countdown-rl samples eval/quantized --n 10
countdown-rl compare eval/base eval/adapter eval/merged eval/quantized --out eval/comparison
countdown-rl publish --model quantized --eval eval/quantized --out release \
  --base-model meta-llama/Llama-3.1-8B-Instruct --license llama3.1 \
  ${PUSH:+--push "$PUSH"}

echo "Done: \`hf upload --private NAME/MODEL $1/release\` uploads it." >&2
