#!/bin/bash
# rank 0 of deepseek-v4-flash-nvidia
# Made by sparkd at every start: changes here are lost.
set -euo pipefail

# One function, so that bash has read all of it before a variable below can change how bash reads.
launch() {
  export VLLM_ENGINE_READY_TIMEOUT_S=86400
  export VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800
  export MAX_JOBS=1
  export FLASHINFER_NVCC_THREADS=1
  export VLLM_HOST_IP=10.0.0.1
  export GLOO_SOCKET_IFNAME=bond0
  export TP_SOCKET_IFNAME=bond0
  export NCCL_SOCKET_IFNAME==bond0
  export NCCL_IB_HCA=rocep1s0f0,roceP2p1s0f0
  export NCCL_DEBUG=WARN
  export NCCL_IB_DISABLE=0
  export NCCL_IGNORE_CPU_AFFINITY=1
  export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
  export VLLM_ALLOW_LONG_MAX_MODEL_LEN=1
  export VLLM_FLOAT32_MATMUL_PRECISION=high
  export VLLM_USE_BREAKABLE_CUDAGRAPH=1
  exec -- vllm serve /models/DeepSeek-V4-Flash \
    --served-model-name deepseek-v4-flash \
    --host 0.0.0.0 \
    --port 8000 \
    --trust-remote-code \
    --load-format instanttensor \
    --tensor-parallel-size 2 \
    --kv-cache-dtype fp8 \
    --block-size 256 \
    --gpu-memory-utilization 0.85 \
    --max-model-len 500000 \
    --enable-prefix-caching \
    --max-num-batched-tokens 8192 \
    --max-num-seqs 4 \
    --speculative-config '{"method":"mtp","num_speculative_tokens":2}' \
    --tokenizer-mode deepseek_v4 \
    --tool-call-parser deepseek_v4 \
    --enable-auto-tool-choice \
    --reasoning-parser deepseek_v4 \
    --reasoning-config '{"reasoning_start_str":"","reasoning_end_str":""}' \
    --default-chat-template-kwargs '{"thinking":true,"reasoning_effort":"high"}' \
    --distributed-executor-backend mp \
    --nnodes 2 \
    --node-rank 0 \
    --master-addr 10.0.0.1 \
    --master-port 29501
}

launch
