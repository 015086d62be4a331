# An image for NVIDIA GPUs, with vLLM (drivers from 580 on):
#
#   docker build --tag countdown-rl .
#   docker run --gpus all --volume "$PWD/runs:/runs" countdown-rl train --model Qwen/Qwen2.5-0.5B-Instruct --check
#   docker run --gpus all --volume "$PWD/runs:/runs" --entrypoint /countdown-rl/stages/recipes/qwen3-0.6b-laptop.sh \
#     countdown-rl qwen3
FROM python:3.12-slim
# Triton compiles its kernels with gcc; the version of the package is that of Git.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc git libc6-dev && rm -rf /var/lib/apt/lists/*
COPY . /countdown-rl
RUN pip install --no-cache-dir '/countdown-rl[train,vllm]'
ENV HF_HOME=/runs/.cache
WORKDIR /runs
ENTRYPOINT ["countdown-rl"]
