#!/usr/bin/env bash
# Qwen3-0.6B on a laptop, Apple's GPU included, with the Hub as its model registry.
#
#   [MODEL=...] [FROM=rows.jsonl] [PUSH=NAME/MODEL] stages/recipes/qwen3-0.6b-laptop.sh OUT [--check | --quick]
#
# No assistant turn is begun: the model opens <think> itself, and the strict format is its two blocks, one new
# line between them, and nothing else. What was wrong with the original and is not wrong here:
#   - It set out to train all weights, whose optimiser alone is 4.8 GB: an adapter does.
#   - Strict format was its only format reward, and Qwen3 leaves an empty line after its thinking: every
#     completion got 0 and none was better than another. The plain format pays a little on the way.
#   - Rows were shuffled before they were split, repeats and all: splits here go by the numbers of a puzzle.
#   - It pushed what it had not measured: here nothing goes up without its score.
#
# MODEL is a Hub id or a local checkpoint, FROM a file of puzzles in place of the Hub's. With PUSH the adapter is
# uploaded, by the token of HF_TOKEN or `hf auth login`. With --check nothing is trained: options, model, data,
# prompts and memory are looked at. --quick takes a few steps on a few puzzles.
set -euo pipefail
usage="usage: [MODEL=...] [FROM=rows.jsonl] [PUSH=NAME/MODEL] $0 OUT [--check | --quick]"
out=${1:?$usage}
model=${MODEL:-Qwen/Qwen3-0.6B}

data=(--n 1000 --seed 42 --style own)
train=(
  --precision bf16 --lora-r 16 --lora-alpha 32 --gradient-checkpointing
  --prompts 4 --num-generations 8 --micro-batch 4 --max-steps 225 # one pass over 900 puzzles
  --learning-rate 2e-5 --max-prompt-length 256 --max-completion-length 1024
  --reward correct=1 --reward strict-format=0.5 --reward format=0.1
)
eval=(--max-new-tokens 1024)
case ${2-} in
  "" | --check) ;;
  --quick)
    data+=(--n 300)
    train+=(--max-steps 2 --prompts 2 --num-generations 4 --max-completion-length 16)
    eval+=(--limit 4 --max-new-tokens 16)
    ;;
  *) echo "$usage" >&2; exit 2 ;;
esac
if [ -n "${FROM-}" ]; then from=$(realpath "$FROM") && data+=(--from "$from"); else data+=(--from-hub Jiayi-Pan/Countdown-Tasks-3to4); fi

# From here on every path is inside OUT, so that no manifest says where on this machine anything lies.
mkdir -p "$out"
if [ -e "$model" ]; then ln -sfn "$(realpath "$model")" "$out/base" && model=base; fi
cd "$out"

countdown-rl gen-data --out data "${data[@]}"
train+=(--model "$model" --data data --out adapter --log train/log.csv --checkpoints checkpoints)
if [ "${2-}" = --check ]; then exec countdown-rl train "${train[@]}" --check; fi

countdown-rl eval --model "$model" --data data/test.jsonl --out eval/base "${eval[@]}"
countdown-rl train "${train[@]}"
countdown-rl eval --model adapter --data data/test.jsonl --out eval/adapter "${eval[@]}"
countdown-rl compare eval/base eval/adapter --out eval/comparison
countdown-rl publish --model adapter --eval eval/adapter --comparison eval/comparison --out release \
  --name qwen3-0.6b-countdown --base-model Qwen/Qwen3-0.6B --license apache-2.0 \
  --trained-on Jiayi-Pan/Countdown-Tasks-3to4 ${PUSH:+--push --repo-id "$PUSH"}

echo "Done: $out/release is what \`countdown-rl publish --push\` uploads." >&2
