#!/usr/bin/env bash
# Reward hacking on a CPU: the same start, trained with a grader that can be cheated and with the exact one.
#
#   hacking-lab.sh OUT [--check] [--quick]
#
# The grader `proxy:value` is the one that many projects copy: the value of the answer has to be the target, and nobody
# checks which numbers it uses. The start is the shipped model, fine-tuned on 400 of its own correct answers to puzzles
# of 3 numbers and on 40 cheats, which answer with the target itself. GRPO then trains it for 15 steps of 128 completions
# with either grader, on puzzles of 4 and 5 numbers, and both are evaluated on such puzzles. The report plots the hacking
# rate: completions that the proxy pays for and the exact grader does not. SEEDS="42 43" repeats the training with a
# second seed; what is there already is kept. CHEATS is another number of cheats, STEPS of steps, and
# MICRO_BATCH=8 rounds otherwise.
# GRADERS are others than "proxy exact": kl-0.03 is the proxy with a KL term of that weight, stop-6 the proxy for 6 steps,
# eval the grader proxy:eval, and audited, monitored_100, monitored_90 and monitored_70 are in hacking_rewards.py. "reversed"
# trains the results of "proxy" on with the exact grader, after 64 completions of 100 puzzles by each. docs/lab/hacking.md has
# what came of it.
set -euo pipefail
arguments=1
. "$(dirname "$0")/common.bash"
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}

data=(--n 4000 --valid 300 --test 500)
easy=(--n 2000 --valid 300 --test 500)
own=(--limit 500 --temperature 1 --max-new-tokens 128)
correct=400 cheats=${CHEATS:-40}
sft=(--max-steps 100 --batch-size 16)
train=(--max-steps "${STEPS:-15}" --prompts 8 --num-generations 16 --micro-batch "${MICRO_BATCH:-16}")
eval=(--limit 300 --temperature 1 --max-new-tokens 96)
coverage=(--limit 100 --samples 64)
if [ "$quick" ]; then
  data+=(--n 300 --valid 30 --test 30)
  easy+=(--n 300 --valid 30 --test 30)
  own+=(--limit 40 --max-new-tokens 64)
  correct=4 cheats=2
  sft=(--max-steps 2 --batch-size 4)
  train=(--max-steps 2 --prompts 2 --num-generations 4 --micro-batch 4)
  eval+=(--limit 8 --max-new-tokens 64)
  coverage=(--limit 4 --samples 2)
fi
model=countdown-tiny
enter "$1"

countdown-rl gen-data --out data --size 4 --size 5 --seed 42 "${data[@]}"
train+=(--data data --learning-rate 5e-4 --loss-type grpo --scale-rewards group --precision nf4)
train+=(--max-completion-length 96 --lora-r 32 --lora-alpha 64)
if [ "$check" ]; then exec countdown-rl train --model "$model" "${train[@]}" --check; fi

countdown-rl gen-data --out easy --size 3 --seed 43 "${easy[@]}"
countdown-rl eval --model "$model" --data easy/train.jsonl --out eval/own "${own[@]}"
python3 "$here/hacking-lab.py" eval/own/samples.jsonl "$correct" "$cheats" demonstrations.jsonl
countdown-rl sft --model "$model" --data data --from demonstrations.jsonl --keep-wrong --tune all \
  --learning-rate 5e-4 --out start "${sft[@]}"
countdown-rl eval --model start --data data/test.jsonl --out eval/start "${eval[@]}"
compared=(start=eval/start) results=(--result start=eval/start) logs=()
for grader in ${GRADERS:-proxy exact}; do
  from=start steps=()
  case $grader in
    exact | reversed) rewards=(--reward correct=1 --reward proxy:value=0) ;;
    proxy) rewards=(--reward proxy:value=1) ;;
    eval) rewards=(--reward proxy:eval=1) ;;
    stop-*) rewards=(--reward proxy:value=1) steps=(--max-steps "${grader#stop-}") ;;
    kl-*) rewards=(--reward proxy:value=1 --beta "${grader#kl-}") ;;
    *) rewards=(--reward "hacking_rewards:$grader=1" --reward proxy:value=0) ;;
  esac
  evaluations="" curves=""
  for seed in ${SEEDS:-42}; do
    name=$grader-$seed
    if [ "$grader" = reversed ]; then
      from=proxy-$seed
      countdown-rl eval --model "$from" --data data/test.jsonl --out "eval/coverage-$seed" "${eval[@]}" "${coverage[@]}"
    fi
    countdown-rl train --model "$from" "${rewards[@]}" --seed "$seed" --out "$name" "${train[@]}" "${steps[@]}"
    countdown-rl eval --model "$name" --data data/test.jsonl --out "eval/$name" "${eval[@]}"
    evaluations=$evaluations${evaluations:+,}eval/$name curves=$curves${curves:+,}$name-run/log.csv
  done
  compared+=("$grader=$evaluations") results+=(--result "$grader=$evaluations") logs+=(--log "$grader=$curves")
done
countdown-rl compare "${compared[@]}" --against start --out eval/comparison
countdown-rl report "${results[@]}" "${logs[@]}" --out report.html
