#!/bin/bash
# rank 0 of deepseek-v4-flash-nvidia-0731
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
  export VLLM_USE_BREAKABLE_CUDAGRAPH=0
  export B12X_MLA_SM120_UNIFIED=1
  export B12X_MOE_FORCE_A8=1
  export CUTE_DSL_ARCH=sm_121a
  export VLLM_MEMORY_PROFILE_INCLUDE_ATTN=1
  export VLLM_MOE_SKIP_PADDING=0
  export VLLM_USE_AOT_COMPILE=1
  export VLLM_USE_B12X_FP8_GEMM=1
  export VLLM_USE_B12X_MHC=1
  export VLLM_USE_B12X_MOE=1
  export VLLM_USE_B12X_SPARSE_INDEXER=1
  export VLLM_USE_B12X_WO_PROJECTION=1
  export VLLM_USE_FLASHINFER_SAMPLER=1
  export VLLM_USE_V2_MODEL_RUNNER=1
  exec -- vllm serve /models/DeepSeek-V4-Flash-0731 \
    --served-model-name deepseek-v4-flash \
    --host 0.0.0.0 \
    --port 8000 \
    --trust-remote-code \
    --load-format instanttensor \
    --tensor-parallel-size 2 \
    --kv-cache-dtype fp8 \
    --block-size 256 \
    --gpu-memory-utilization 0.85 \
    --max-model-len 262144 \
    --enable-prefix-caching \
    --max-num-batched-tokens 8192 \
    --max-num-seqs 8 \
    --speculative-config '{"method":"dspark","num_speculative_tokens":5,"draft_sample_method":"probabilistic","attention_backend":"B12X"}' \
    --tokenizer-mode deepseek_v4 \
    --tool-call-parser deepseek_v4 \
    --enable-auto-tool-choice \
    --reasoning-parser deepseek_v4 \
    --reasoning-config '{"reasoning_start_str":"","reasoning_end_str":""}' \
    --default-chat-template-kwargs '{"thinking":true,"reasoning_effort":"high"}' \
    --max-cudagraph-capture-size 48 \
    --moe-backend b12x \
    --linear-backend b12x \
    --attention-backend B12X \
    --compilation-config '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}' \
    --distributed-executor-backend mp \
    --nnodes 2 \
    --node-rank 0 \
    --master-addr 10.0.0.1 \
    --master-port 29501
}

launch
