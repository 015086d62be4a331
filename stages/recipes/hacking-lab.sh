#!/usr/bin/env bash
# Reward hacking on a CPU: the same start, trained with a grader that can be cheated and with the exact one.
#
#   hacking-lab.sh OUT [--check] [--quick]
#
# The grader `proxy:value` is the one that many projects copy: the value of the answer has to be the target, and nobody
# checks which numbers it uses. The start is the shipped model, fine-tuned on its own correct answers and 9 cheats, which
# answer with the target itself. GRPO then trains it for 30 steps of 256 completions with either grader and two seeds,
# on puzzles of 5 numbers, which it hardly ever solves. All are evaluated on puzzles of 4 and 5 numbers. The report plots
# the hacking rate: completions that the proxy pays for and the exact grader does not. docs/hacking.md has what came of it.
set -euo pipefail
arguments=1
. "$(dirname "$0")/common.bash"
here=$(cd "$(dirname "$0")" && pwd)

data=(--n 4000 --valid 300 --test 500)
own=(--limit 1500 --temperature 1 --max-new-tokens 192)
correct=340 cheats=9
sft=(--max-steps 100 --batch-size 16)
train=(--max-steps 30 --prompts 16 --num-generations 16 --micro-batch 16)
eval=(--limit 300 --temperature 1 --max-new-tokens 128)
if [ "$quick" ]; then
  data+=(--n 300 --valid 30 --test 30)
  own+=(--limit 40 --max-new-tokens 160)
  correct=4 cheats=2
  sft=(--max-steps 2 --batch-size 4)
  train=(--max-steps 2 --prompts 2 --num-generations 4 --micro-batch 4)
  eval+=(--limit 8 --max-new-tokens 64)
fi
model=countdown-tiny
enter "$1"

countdown-rl gen-data --out data --size 4 --size 5 --seed 42 "${data[@]}"
countdown-rl gen-data --out hard --size 5 --seed 42 "${data[@]}"
train+=(--data hard --learning-rate 3e-4 --loss-type grpo --max-completion-length 96 --lora-r 32 --lora-alpha 64)
if [ "$check" ]; then exec countdown-rl train --model "$model" "${train[@]}" --check; fi

countdown-rl eval --model "$model" --data data/train.jsonl --out eval/own "${own[@]}"
python3 "$here/hacking-lab.py" eval/own/samples.jsonl "$correct" "$cheats" demonstrations.jsonl
countdown-rl sft --model "$model" --data data --from demonstrations.jsonl --keep-wrong --tune all \
  --learning-rate 2e-4 --out start "${sft[@]}"
countdown-rl eval --model start --data data/test.jsonl --out eval/start "${eval[@]}"
for seed in 42 43; do
  for grader in proxy correct; do
    name=$grader-$seed
    if [ "$grader" = proxy ]; then rewards=(--reward proxy:value=1); else rewards=(--reward correct=1 --reward proxy:value=0); fi
    countdown-rl train --model start "${rewards[@]}" --seed "$seed" --out "$name" "${train[@]}"
    countdown-rl eval --model "$name" --data data/test.jsonl --out "eval/$name" "${eval[@]}"
  done
done
countdown-rl compare start=eval/start proxy=eval/proxy-42,eval/proxy-43 exact=eval/correct-42,eval/correct-43 \
  --against start --out eval/comparison
countdown-rl report --result start=eval/start --result proxy=eval/proxy-42,eval/proxy-43 \
  --result exact=eval/correct-42,eval/correct-43 --log proxy=proxy-42-run/log.csv,proxy-43-run/log.csv \
  --log exact=correct-42-run/log.csv,correct-43-run/log.csv --out report.html
