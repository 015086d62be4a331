#!/usr/bin/env bash
# GRPO with LoRA in verl 0.9, one node of eight GPUs. Any override can be appended:
#   MODEL=Qwen/Qwen2.5-3B-Instruct ./run.sh trainer.nnodes=2 actor_rollout_ref.rollout.n=16
set -euo pipefail
cd "$(dirname "$0")"

python -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  data.train_files=train.parquet \
  data.val_files=valid.parquet \
  data.train_batch_size=128 \
  data.max_prompt_length=512 \
  data.max_response_length=1024 \
  actor_rollout_ref.model.path="${MODEL:-Qwen/Qwen2.5-3B-Instruct}" \
  actor_rollout_ref.model.lora_rank=32 \
  actor_rollout_ref.model.lora_alpha=64 \
  actor_rollout_ref.model.target_modules=all-linear \
  actor_rollout_ref.model.enable_gradient_checkpointing=True \
  actor_rollout_ref.actor.optim.lr=1e-5 \
  actor_rollout_ref.actor.ppo_mini_batch_size=128 \
  actor_rollout_ref.actor.use_dynamic_bsz=True \
  actor_rollout_ref.actor.use_kl_loss=False \
  actor_rollout_ref.actor.loss_agg_mode=token-mean \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.rollout.temperature=1.0 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.5 \
  actor_rollout_ref.rollout.load_format=safetensors \
  reward.custom_reward_function.path=reward.py \
  reward.custom_reward_function.name=compute_score \
  trainer.n_gpus_per_node=8 \
  trainer.nnodes=1 \
  trainer.total_training_steps=100 \
  trainer.save_freq=20 \
  trainer.test_freq=20 \
  trainer.logger=[console] \
  trainer.project_name=countdown-rl \
  trainer.experiment_name=NAME \
  "$@"
