#!/bin/bash
# rank 0 of dspark-1m-2
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
  export NCCL_NET=IB
  export NCCL_IB_DISABLE=0
  export NCCL_CROSS_NIC=1
  export NCCL_CUMEM_ENABLE=0
  export NCCL_IGNORE_CPU_AFFINITY=1
  export NCCL_NVLS_ENABLE=0
  export NCCL_DEBUG=WARN
  export HF_HOME=/cache/huggingface
  export HF_HUB_OFFLINE=0
  export TRANSFORMERS_OFFLINE=0
  export HF_HUB_DISABLE_XET=1
  export VLLM_CACHE_ROOT=/cache/huggingface/vllm-cache
  export VLLM_ALLOW_LONG_MAX_MODEL_LEN=1
  export VLLM_TRITON_MLA_SPARSE=1
  export VLLM_SPARSE_INDEXER_MAX_LOGITS_MB=256
  export VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0
  export VLLM_SKIP_INIT_MEMORY_CHECK=1
  export VLLM_USE_B12X_MOE=1
  export VLLM_USE_B12X_WO_PROJECTION=1
  export VLLM_B12X_W4A16_FORCE_BLOCKS_PER_SM=0
  export VLLM_B12X_W4A16_FORCE_BLOCKS_MAX_M=16
  export VLLM_B12X_W4A16_FORCE_TILE_CONFIG=''
  export B12X_W4A16_TC_DECODE=0
  export VLLM_DSPARK_CONFIDENCE_THRESHOLD=0.0
  export VLLM_DSPARK_CONFIDENCE_SCHEDULER=off
  export VLLM_DSPARK_LOCAL_ARGMAX=1
  export VLLM_DSPARK_REPLICATE_MARKOV_W1=1
  export VLLM_DSPARK_FUSED_MARKOV_ARGMAX=0
  export VLLM_DSPARK_GPU_REJECTED_CONTEXT_MASK=1
  export VLLM_DSPARK_REFERENCE_KV_QUANT_DEQUANT=0
  export VLLM_DSPARK_HARDWARE_SCHEDULER_EARLY_STOP=1
  export VLLM_DSV4_B12X_COMPRESSED_MLA=0
  export VLLM_DSV4_DSPARK_DEFER_TARGET_CAPTURE=0
  export VLLM_DSV4_DSPARK_DEFER_TARGET_CAPTURE_EXACT=0
  export TORCH_CUDA_ARCH_LIST=12.1a
  export FLASHINFER_CUDA_ARCH_LIST=12.1a
  export FLASHINFER_DISABLE_VERSION_CHECK=1
  export TILELANG_CLEANUP_TEMP_FILES=1
  export DG_JIT_USE_NVRTC=0
  export DG_JIT_NVCC_COMPILER=/opt/env/bin/nvcc
  export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
  exec -- bash -lc 'export PATH="/opt/env/bin:/opt/env/nvvm/bin:/opt/env/targets/sbsa-linux/nvvm/bin:${PATH:-}"; export CUDA_HOME="${CUDA_HOME:-/opt/env/targets/sbsa-linux}"; export CUDA_PATH="${CUDA_PATH:-$CUDA_HOME}"; export CUDAToolkit_ROOT="${CUDAToolkit_ROOT:-$CUDA_HOME}"; export LD_LIBRARY_PATH="/opt/env/lib:/opt/env/targets/sbsa-linux/lib:${LD_LIBRARY_PATH:-}"; exec /opt/env/bin/vllm serve "$@"' vllm /models/DeepSeek-V4-Flash-DSpark \
    --served-model-name deepseek-v4-flash-dspark \
    --host 0.0.0.0 \
    --port 8888 \
    --trust-remote-code \
    --tensor-parallel-size 2 \
    --pipeline-parallel-size 1 \
    --kv-cache-dtype nvfp4_ds_mla \
    --block-size 256 \
    --gpu-memory-utilization 0.80 \
    --max-model-len 1048576 \
    --enable-prefix-caching \
    --max-num-batched-tokens 8192 \
    --max-num-seqs 2 \
    --enable-flashinfer-autotune \
    --speculative-config '{"method":"dspark","num_speculative_tokens":5}' \
    --tokenizer-mode deepseek_v4 \
    --tool-call-parser deepseek_v4 \
    --enable-auto-tool-choice \
    --reasoning-parser deepseek_v4 \
    --reasoning-config '{"reasoning_parser":"deepseek_v4","reasoning_start_str":"<think>","reasoning_end_str":"</think>"}' \
    --default-chat-template-kwargs '{"thinking":false}' \
    --generation-config vllm \
    --override-generation-config '{"temperature":0.6,"top_p":0.95,"top_k":40,"repetition_penalty":1.05}' \
    --distributed-executor-backend mp \
    --nnodes 2 \
    --node-rank 0 \
    --master-addr 10.0.0.1 \
    --master-port 29501
}

launch
