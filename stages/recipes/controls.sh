#!/usr/bin/env bash
# GRPO against its controls: is it worth more than fine-tuning the model on its own correct completions?
#
#   [SEEDS="42 43 44"] [ARMS="start grpo rft-5"] controls.sh START DATA OUT [--check] [--quick]
#
# START is a model, DATA a directory of gen-data. Every arm samples as many completions of training puzzles, at temperature
# 1, and trains a LoRA adapter of the same size over the same weights:
#
#   grpo, and grpo-whole with one reward per completion (no credit by line)
#   positive, and positive-whole: the same on-policy steps without a baseline, so that only correct completions are
#     reinforced (positive_advantages.py)
#   rft-1, rft-5, rft-25: rejection sampling with fine-tuning in as many rounds (expert iteration), each from the weights
#     of the previous one. rft-5-capped keeps at most 4 correct completions of a puzzle, so that easy ones do not
#     outweigh hard ones (ReST-EM, arXiv:2312.06585, takes 10)
#   rft-25-curriculum: the puzzles of each round are chosen by GRPO's curriculum, and the rate of fine-tuning is constant
#   rft-5-x3, rft-1-x10 and so on: the adapter of rft-5 with its update of the weights multiplied by 3
#   placebo: fine-tuning on all completions of rft-1, right and wrong, which only sharpens what the model does
#
# ARMS names some of them, the one to compare with first. The table pairs them by test puzzle and seed. With the settings
# below, those of the pipeline, a seed is 6,400 completions an arm and takes about an hour and a half on one core. An
# interrupted run continues. Choose the rate and the epochs of fine-tuning on validation puzzles first, with another seed
# (docs/lab/log.md has those of the shipped model): SEEDS=41 SPLIT=valid ARMS="start rft-5" RFT="--learning-rate 1e-3"
set -euo pipefail
arguments=3
. "$(dirname "$0")/common.bash"
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}
data=$(realpath "$2")
model=$1
seeds=${SEEDS:-42 43 44}
arms=${ARMS:-start placebo rft-1 rft-5 rft-25 rft-5-x3 rft-5-capped rft-25-curriculum positive-whole positive grpo-whole grpo}

steps=50 prompts=16 generations=8 # 6,400 completions
lora=(--precision nf4 --lora-r 32 --lora-alpha 64 --max-completion-length 256)
policy=(--micro-batch 8 --sampler curriculum --learning-rate 0.0008
  --trl top_entropy_quantile=0.2 --temperature 1 --reward correct=1)
grpo=(--scale-rewards none)
credit=(--discount 0.9)
sft=(--learning-rate 0.0004 --batch-size 16)
epochs=(--num-train-epochs 2)
read -ra own <<< "${RFT:-}"
sampled=(--precision nf4 --temperature 1 --max-new-tokens 256)
test=(--samples 4)
if [ "$quick" ]; then
  steps=2 prompts=2 generations=3
  arms=${ARMS:-start placebo rft-1 rft-2 rft-2-x3 rft-2-capped rft-2-curriculum positive-whole positive grpo-whole grpo}
  policy+=(--micro-batch 3)
  epochs=(--max-steps 2)
  sampled+=(--max-new-tokens 96)
  test=(--samples 2 --limit 4)
fi
sft+=("${epochs[@]}" ${own[@]+"${own[@]}"})
enter "$3"
puzzles=$((steps * prompts))
train=(--model "$model" --data "$data" "${lora[@]}" "${policy[@]}" --max-steps "$steps" --prompts "$prompts"
  --num-generations "$generations")
if [ "$check" ]; then exec countdown-rl train "${train[@]}" "${grpo[@]}" "${credit[@]}" --check; fi

# in_turn ROUND ROUNDS OUT: the training puzzles of a round, each once.
in_turn() {
  local share=$((puzzles / $2)) first
  first=$((seed % 10 * puzzles + ($1 - 1) * share + 1))
  mkdir -p "$3"
  sed -n "$first,$((first + share - 1))p" "$data/train.jsonl" > "$3/puzzles.jsonl"
}

# draw FROM OUT: a model's completions of the puzzles in OUT.
draw() {
  countdown-rl eval --model "$1" --data "$2/puzzles.jsonl" --out "$2/own" "${sampled[@]}" --samples "$generations" \
    --seed "$seed"
}

# rft NAME ROUNDS [capped | curriculum]: each round samples its share of the puzzles and fine-tunes on what is correct.
rft() {
  local name=$1 of=$2 how=${3:-} from=$model round before=() schedule=()
  for ((round = 1; round <= of; round++)); do
    local out=$name-$seed/$round
    local demonstrations=$out/own/samples.jsonl
    if [ "$how" = curriculum ]; then
      mkdir -p "$out"
      python3 "$here/curriculum_puzzles.py" "$data/train.jsonl" $((puzzles / of)) "$seed" "$out/puzzles.jsonl" \
        ${before[@]+"${before[@]}"}
      before+=("$out/own")
      schedule=(--trl lr_scheduler_type=constant)
    else
      in_turn "$round" "$of" "$out"
    fi
    draw "$from" "$out"
    if [ "$how" = capped ]; then
      countdown-rl collect "$out/own" --out "$out/correct" --per-puzzle 4
      demonstrations=$out/correct/train.jsonl
    fi
    tune "$from" "$out/adapter" --from "$demonstrations" ${schedule[@]+"${schedule[@]}"}
    from=$out/adapter
  done
  score "$name" "$from"
}

# tune MODEL OUT OPTIONS: fine-tune; the training of an adapter continues.
tune() {
  countdown-rl sft --model "$1" --data "$data" --out "$2" "${@:3}" "${lora[@]}" "${sft[@]}" --seed "$seed"
}

# score NAME MODEL: on the test puzzles, or those of SPLIT, with the seed.
score() {
  countdown-rl eval --model "$2" --data "$data/${SPLIT:-test}.jsonl" --out "eval/$1-$seed" "${sampled[@]}" "${test[@]}" \
    --seed "$seed"
}

for seed in $seeds; do
  for arm in $arms; do
    case $arm in
      start) score start "$model" ;;
      grpo)
        countdown-rl train "${train[@]}" "${grpo[@]}" "${credit[@]}" --seed "$seed" --out "grpo-$seed"
        score grpo "grpo-$seed"
        ;;
      grpo-whole)
        countdown-rl train "${train[@]}" "${grpo[@]}" --seed "$seed" --out "grpo-whole-$seed"
        score grpo-whole "grpo-whole-$seed"
        ;;
      positive | positive-whole)
        credit_of=line
        [ "$arm" = positive ] || credit_of=completion
        countdown-rl train "${train[@]}" --advantage "positive_advantages:by_$credit_of" --seed "$seed" --out "$arm-$seed"
        score "$arm" "$arm-$seed"
        ;;
      rft-*-capped | rft-*-curriculum)
        of=${arm#rft-}
        rft "$arm" "${of%-*}" "${arm##*-}"
        ;;
      rft-*-x*)
        of=${arm#rft-}
        of=${of%-x*}
        rft "rft-$of" "$of"
        python3 "$here/scale_adapter.py" "rft-$of-$seed/$of/adapter" "${arm##*-x}" "$arm-$seed"
        score "$arm" "$arm-$seed"
        ;;
      rft-*) rft "$arm" "${arm#rft-}" ;;
      placebo)
        in_turn 1 1 "rft-1-$seed/1"
        draw "$model" "rft-1-$seed/1"
        tune "$model" "placebo-$seed" --from "rft-1-$seed/1/own/samples.jsonl" --keep-wrong
        score placebo "placebo-$seed"
        ;;
      *) echo "no such arm: $arm" >&2 && exit 2 ;;
    esac
  done
done

[ "${arms%% *}" != "$arms" ] || exit 0
compared=()
for arm in $arms; do
  runs=
  for seed in $seeds; do runs+=,eval/$arm-$seed; done
  compared+=("$arm=${runs#,}")
done
countdown-rl compare "${compared[@]}" --against "${arms%% *}" --out comparison
