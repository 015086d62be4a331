#!/usr/bin/env bash
# GRPO against its controls: is it worth more than fine-tuning the model on its own correct completions?
#
#   [SEEDS="42 43 44"] controls.sh START DATA OUT [--check] [--quick]
#
# START is a model, DATA a directory of gen-data. Every arm samples as many completions of training puzzles, at temperature
# 1, and trains a LoRA adapter of the same size over the same weights:
#
#   GRPO, and GRPO with one reward per completion (no credit by line)
#   RFT-1, RFT-5, RFT-25: rejection sampling with fine-tuning in as many rounds (expert iteration), each from the weights
#     of the previous one. RFT-5-capped keeps at most 4 correct completions of a puzzle, so that easy ones do not
#     outweigh hard ones (ReST-EM, arXiv:2312.06585, takes 10)
#   placebo: fine-tuning on all completions of RFT-1, right and wrong, which only sharpens what the model does
#
# The table pairs all of them by test puzzle and seed. With the settings below, those of the pipeline, a seed is 6,400
# completions an arm and takes about an hour and a half on one core. An interrupted run continues. Choose the learning
# rate and the epochs of fine-tuning on validation puzzles before the runs (docs/log.md has two rates for the shipped model).
set -euo pipefail
arguments=3
. "$(dirname "$0")/common.bash"
data=$(realpath "$2")
model=$1
seeds=${SEEDS:-42 43 44}

steps=50 prompts=16 generations=8 # 6,400 completions
rounds=(1 5 25)
lora=(--precision nf4 --lora-r 32 --lora-alpha 64 --max-completion-length 256)
grpo=(--micro-batch 8 --curriculum --learning-rate 0.0008 --lr-scheduler-type constant --scale-rewards none
  --trl top_entropy_quantile=0.2 --temperature 1 --reward correct=1)
credit=(--discount 0.9)
sft=(--learning-rate 0.0004 --batch-size 16)
epochs=(--num-train-epochs 2)
sampled=(--precision nf4 --temperature 1 --max-new-tokens 256)
test=(--samples 4 --pass-at 1,4)
if [ "$quick" ]; then
  steps=2 prompts=2 generations=3
  rounds=(1 2)
  grpo+=(--micro-batch 3)
  epochs=(--max-steps 2)
  sampled+=(--max-new-tokens 96)
  test=(--samples 2 --pass-at 1,2 --limit 4)
fi
enter "$3"
puzzles=$((steps * prompts))
train=(--model "$model" --data "$data" "${lora[@]}" "${grpo[@]}" --max-steps "$steps" --prompts "$prompts"
  --num-generations "$generations")
if [ "$check" ]; then exec countdown-rl train "${train[@]}" "${credit[@]}" --check; fi

# rft NAME ROUNDS [CAP]: each round samples its share of the puzzles and fine-tunes on what is correct.
rft() {
  local name=$1 of=$2 from=$model round first demonstrations
  for ((round = 1; round <= of; round++)); do
    local here=$name-$seed/$round
    first=$((seed % 10 * puzzles + (round - 1) * (puzzles / of) + 1))
    mkdir -p "$here"
    sed -n "$first,$((first + puzzles / of - 1))p" "$data/train.jsonl" > "$here/puzzles.jsonl"
    countdown-rl eval --model "$from" --data "$here/puzzles.jsonl" --out "$here/own" "${sampled[@]}" \
      --samples "$generations" --seed "$seed"
    demonstrations=$here/own/samples.jsonl
    if [ "${3:-}" ]; then
      countdown-rl collect "$here/own" --out "$here/correct" --per-puzzle "$3"
      demonstrations=$here/correct/train.jsonl
    fi
    tune "$from" "$here/adapter" --from "$demonstrations"
    from=$here/adapter
  done
  score "$name" "$from"
}

# tune MODEL OUT OPTIONS: fine-tune; the training of an adapter continues.
tune() {
  countdown-rl sft --model "$1" --data "$data" --out "$2" "${@:3}" "${lora[@]}" "${sft[@]}" "${epochs[@]}" --seed "$seed"
}

# score NAME MODEL: on the test puzzles, with the seed.
score() {
  countdown-rl eval --model "$2" --data "$data/test.jsonl" --out "eval/$1-$seed" "${sampled[@]}" "${test[@]}" --seed "$seed"
}

for seed in $seeds; do
  score start "$model"
  countdown-rl train "${train[@]}" "${credit[@]}" --seed "$seed" --out "grpo-$seed"
  score grpo "grpo-$seed"
  countdown-rl train "${train[@]}" --seed "$seed" --out "grpo-whole-$seed"
  score grpo-whole "grpo-whole-$seed"
  for of in "${rounds[@]}"; do rft "rft-$of" "$of"; done
  rft "rft-${rounds[1]}-capped" "${rounds[1]}" 4
  tune "$model" "placebo-$seed" --from "rft-1-$seed/1/own/samples.jsonl" --keep-wrong
  score placebo "placebo-$seed"
done

arms=()
for arm in start placebo "${rounds[@]/#/rft-}" "rft-${rounds[1]}-capped" grpo-whole grpo; do
  runs=
  for seed in $seeds; do runs+=,eval/$arm-$seed; done
  arms+=("$arm=${runs#,}")
done
countdown-rl compare "${arms[@]}" --against start --out comparison
