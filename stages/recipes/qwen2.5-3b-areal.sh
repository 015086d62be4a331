#!/usr/bin/env bash
# Qwen2.5-3B-Instruct with the puzzles and the score of AReaL's Countdown example: eight GPUs of 80 GB.
#
#   [MODEL=...] [EXCLUDE=hands.jsonl] [PROCESSES=8] stages/recipes/qwen2.5-3b-areal.sh OUT [--check | --quick]
#
# Targets of 10 to 25 from 2, 3 or 4 numbers of 1 to 24; a right answer scores 1, a well-formed wrong one 0.1,
# anything else 0. There, the mean reward went from 0.13 to 0.79 by step 930. What is put right here:
#   - It drew 500,000 rows of puzzles of which 229,557 are different: no row is drawn twice here, and the test
#     has no hand of numbers in it that training has. Of 2 numbers there are 564 puzzles, not every tenth.
#   - The search behind its rows used every number, its wording said at most once, and its search knew whole
#     numbers only: here prompt, solver and grader keep one rule, in fractions.
#   - Its learning rate, 5e-6, was for all weights; an adapter wants ten times as much.
#   - Rollouts ran beside the training on GPUs of their own, on weights some steps old: here each process draws
#     its share from the weights as they are.
#
# EXCLUDE names a file of hands to keep out of the data, as AReaL kept out some 200 published ones of the 24 game:
# one {"nums": [...]} a line. MODEL is a Hub id or a local checkpoint; training takes 8 processes, or PROCESSES of
# them. With --check nothing is trained: options, model, data, prompts and memory are looked at. --quick takes
# a few steps on a few puzzles.
set -euo pipefail
usage="usage: [MODEL=...] [EXCLUDE=hands.jsonl] [PROCESSES=8] $0 OUT [--check | --quick]"
out=${1:?$usage}
model=${MODEL:-Qwen/Qwen2.5-3B-Instruct}

data=(--preset 24 --rule at-most-once --n 200000 --valid 1000 --test 1000 --seed 42)
train=(
  --processes "${PROCESSES:-8}" --precision bf16 --lora-r 64 --lora-alpha 64 --gradient-checkpointing
  --prompts 256 --num-generations 8 --micro-batch 8 --max-steps 930
  --learning-rate 5e-5 --adam-beta1 0.9 --adam-beta2 0.95 --weight-decay 0.017
  --epsilon 0.2 --epsilon-high 0.2 --beta 0 --scale-rewards group --temperature 1
  --max-prompt-length 256 --max-completion-length 4096
  --reward correct=0.9 --reward well-formed=0.1
)
eval=(--max-new-tokens 4096)
case ${2-} in
  "" | --check) ;;
  --quick)
    data+=(--n 300 --valid 30 --test 30)
    train+=(--processes 1 --max-steps 2 --prompts 2 --num-generations 4 --micro-batch 4 --max-completion-length 16)
    eval+=(--limit 4 --max-new-tokens 16)
    ;;
  *) echo "$usage" >&2; exit 2 ;;
esac
if [ -n "${EXCLUDE-}" ]; then exclude=$(realpath "$EXCLUDE") && data+=(--exclude "$exclude"); fi

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
countdown-rl merge --adapter adapter --out merged
countdown-rl eval --model merged --data data/test.jsonl --out eval/merged "${eval[@]}"
countdown-rl compare eval/base eval/adapter eval/merged --out eval/comparison
countdown-rl publish --model merged --eval eval/merged --comparison eval/comparison --out release \
  --name qwen2.5-3b-countdown-24 --base-model Qwen/Qwen2.5-3B-Instruct --license other

echo "Done: $out/release is what \`countdown-rl publish --push\` would upload." >&2
