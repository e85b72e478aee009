#!/bin/bash
# rank 1 of deepseek-v4-flash-balanced
# Made by sparkd at every start: changes here are lost.
set -euo pipefail

# One function, so that bash has read all of it before a variable below can change how bash reads.
launch() {
  export VLLM_ENGINE_READY_TIMEOUT_S=86400
  export VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800
  export MAX_JOBS=1
  export FLASHINFER_NVCC_THREADS=1
  export VLLM_HOST_IP=10.0.0.2
  export GLOO_SOCKET_IFNAME=bond0
  export TP_SOCKET_IFNAME=bond0
  export NCCL_SOCKET_IFNAME==bond0
  export NCCL_IB_HCA=rocep1s0f0,roceP2p1s0f0
  export NCCL_DEBUG=WARN
  export NCCL_IB_DISABLE=0
  export NCCL_IGNORE_CPU_AFFINITY=1
  export TORCH_CUDA_ARCH_LIST=12.1a
  export VLLM_ALLOW_LONG_MAX_MODEL_LEN=1
  export VLLM_TRITON_MLA_SPARSE=1
  export VLLM_USE_FLASHINFER_SAMPLER=1
  export FLASHINFER_DISABLE_VERSION_CHECK=1
  export TILELANG_CLEANUP_TEMP_FILES=1
  export DG_JIT_USE_NVRTC=0
  export DG_JIT_NVCC_COMPILER=/usr/local/cuda/bin/nvcc
  export OMP_NUM_THREADS=8
  export HF_HUB_OFFLINE=1
  export TRANSFORMERS_OFFLINE=1
  exec -- vllm serve /models/DeepSeek-V4-Flash \
    --served-model-name deepseek-v4-flash \
    --host 0.0.0.0 \
    --port 8000 \
    --trust-remote-code \
    --load-format safetensors \
    --tensor-parallel-size 2 \
    --pipeline-parallel-size 1 \
    --enable-expert-parallel \
    --kv-cache-dtype fp8 \
    --block-size 256 \
    --gpu-memory-utilization 0.90 \
    --max-model-len 131072 \
    --enable-prefix-caching \
    --enable-chunked-prefill \
    --max-num-batched-tokens 16384 \
    --max-num-seqs 8 \
    --disable-custom-all-reduce \
    --compilation-config '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}' \
    --speculative-config '{"method":"deepseek_mtp","num_speculative_tokens":2}' \
    --tokenizer-mode deepseek_v4 \
    --tool-call-parser deepseek_v4 \
    --enable-auto-tool-choice \
    --reasoning-parser deepseek_v4 \
    --default-chat-template-kwargs '{"thinking":true}' \
    --distributed-executor-backend mp \
    --nnodes 2 \
    --node-rank 1 \
    --master-addr 10.0.0.1 \
    --master-port 29501 \
    --headless
}

launch
