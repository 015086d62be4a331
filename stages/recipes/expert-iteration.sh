#!/usr/bin/env bash
# One round of expert iteration: a model is fine-tuned on its own correct answers to training puzzles.
#
#   [MODEL=...] expert-iteration.sh OUT [--check] [--quick]
#
# At most 4 correct answers of a puzzle are taken, so that easy puzzles do not outweigh hard ones (ReST-EM,
# arXiv:2312.06585, takes 10), and the shortest, since one that the token limit cuts off is wrong. Another round begins
# with MODEL=OUT/sft and another OUT.
#
# 8 minutes on one core with the default model, which solved 76.4% of the 500 test puzzles before the round and 77.4%
# after it, +1.0 points with the 95% interval -2.2 to +4.2. The pipeline's GRPO adds 11 points to the same model.
set -euo pipefail
arguments=1
. "$(dirname "$0")/common.bash"
model=${MODEL:-countdown-tiny}

data=(--n 6000 --valid 200 --test 1000 --seed 42)
samples=(--limit 500 --samples 8 --temperature 1 --max-new-tokens 256)
eval=(--limit 500 --max-new-tokens 256)
sft=(--num-train-epochs 3)
if [ "$quick" ]; then
  data+=(--n 300 --valid 30 --test 30)
  samples+=(--limit 6 --samples 2 --max-new-tokens 96)
  eval+=(--limit 4 --max-new-tokens 96)
  sft=(--max-steps 2 --batch-size 2)
fi
enter "$1"

countdown-rl gen-data --out data "${data[@]}"
sft+=(--model "$model" --data data --out sft)
if [ "$check" ]; then exec countdown-rl sft "${sft[@]}" --demonstrator solver --check; fi

countdown-rl eval --model "$model" --data data/test.jsonl --out eval/start "${eval[@]}"
countdown-rl eval --model "$model" --data data/train.jsonl --out eval/own "${samples[@]}"
countdown-rl collect eval/own --per-puzzle 4 --shortest --out demonstrations
countdown-rl sft "${sft[@]}" --from demonstrations/train.jsonl
countdown-rl eval --model sft --data data/test.jsonl --out eval/sft "${eval[@]}"
countdown-rl compare eval/start eval/sft --out eval/comparison
