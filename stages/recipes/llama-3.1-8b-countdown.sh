#!/usr/bin/env bash
# Llama-3.1-8B-Instruct on Countdown, GRPO over 4-bit weights: one GPU of 24 GB or more.
#
#   [MODEL=...] [FROM=rows.jsonl] [LICENSE_FILE=LICENSE] stages/recipes/llama-3.1-8b-countdown.sh OUT [--check | --quick]
#
# The settings are those of a much copied notebook. What was wrong with it and is not wrong here:
#   - Its 64-token prompt budget cut the puzzle off its own prompt: a prompt over --max-prompt-length is refused.
#   - Its format reward looked for a <think> that the prompt had written already, and never paid: `format`
#     reads on from where the prompt ends.
#   - Its prompt offered "impossible" and no answer earned by it: here that answer is right where there is
#     proof, and `gen-data --impossible 0.05` keeps such rows.
#   - The same puzzle stood in both of its splits: gen-data drops repeated rows, and splits by the numbers.
#   - Its grader was an `eval` that could be cheated: answers are parsed by a grammar and computed exactly.
#
# MODEL is a Hub id or a local checkpoint, FROM a file of puzzles in place of the Hub's. With --check nothing is
# trained: options, model, data, prompts and memory are looked at. --quick takes a few steps on a few puzzles.
set -euo pipefail
usage="usage: [MODEL=...] [FROM=rows.jsonl] [LICENSE_FILE=LICENSE] $0 OUT [--check | --quick]"
out=${1:?$usage}
model=${MODEL:-meta-llama/Llama-3.1-8B-Instruct}

data=(--n 50000 --seed 42)
train=(
  --precision nf4 --lora-r 16 --lora-alpha 32 --lora-dropout 0.05 --gradient-checkpointing
  --prompts 16 --num-generations 4 --micro-batch 4 --max-steps 2800 # one pass over 45,000 puzzles
  --learning-rate 1e-5 --lr-scheduler-type cosine --beta 0.001 --seed 42
  --max-prompt-length 256 --max-completion-length 128
  --reward format=1 --reward correct=1
)
eval=(--max-new-tokens 128)
case ${2-} in
  "" | --check) ;;
  --quick)
    data+=(--n 300)
    train+=(--max-steps 2 --prompts 2 --micro-batch 4 --max-completion-length 16)
    eval+=(--limit 4 --max-new-tokens 16)
    ;;
  *) echo "$usage" >&2; exit 2 ;;
esac
if [ -n "${FROM-}" ]; then from=$(realpath "$FROM") && data+=(--from "$from"); else data+=(--from-hub Jiayi-Pan/Countdown-Tasks-3to4); fi

# From here on every path is inside OUT, so that no manifest says where on this machine anything lies.
mkdir -p "$out"
if [ -e "$model" ]; then ln -sfn "$(realpath "$model")" "$out/base" && model=base; fi
# The licence of Llama 3.1 wants its text beside the weights; without it the release is built and not uploaded.
publish=(--trained-on Jiayi-Pan/Countdown-Tasks-3to4)
if [ -n "${LICENSE_FILE-}" ]; then text=$(realpath "$LICENSE_FILE") && publish+=(--license-file "$text"); fi
cd "$out"

countdown-rl gen-data --out data "${data[@]}"
train+=(--model "$model" --data data --out adapter --log train/log.csv --checkpoints checkpoints)
if [ "${2-}" = --check ]; then exec countdown-rl train "${train[@]}" --check; fi

countdown-rl eval --model "$model" --precision nf4 --data data/test.jsonl --out eval/base "${eval[@]}"
countdown-rl train "${train[@]}"
countdown-rl eval --model adapter --data data/test.jsonl --out eval/adapter "${eval[@]}"
countdown-rl compare eval/base eval/adapter --out eval/comparison
countdown-rl publish --model adapter --eval eval/adapter --comparison eval/comparison --out release \
  --name Llama-3.1-8B-countdown --base-model meta-llama/Llama-3.1-8B-Instruct --license llama3.1 \
  "${publish[@]}"

echo "Done: $out/release is what \`countdown-rl publish --push\` would upload." >&2
