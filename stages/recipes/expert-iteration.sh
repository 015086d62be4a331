#!/usr/bin/env bash
# One round of expert iteration: a model learns from its own correct answers to training puzzles. No reward model, no
# gradient through sampling.
#
#   [MODEL=...] expert-iteration.sh OUT [--check] [--quick]
#
# Up to 4 correct answers of a puzzle, so that easy puzzles do not outweigh hard ones (ReST-EM, arXiv:2312.06585, has a
# limit of 10), and the shortest ones, since an answer that the token limit cuts off is wrong. Another round begins with
# MODEL=OUT/sft, in another OUT. The default model needs 10 minutes on one core.
set -euo pipefail
arguments=1
. "$(dirname "$0")/common.bash"
model=${MODEL:-countdown-tiny}

data=(--n 50000 --seed 42)
samples=(--limit 1000 --samples 8 --temperature 1 --max-new-tokens 256)
eval=(--max-new-tokens 256)
sft=(--eval-every 50 --keep best)
if [ "$quick" ]; then
  data+=(--n 300)
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
