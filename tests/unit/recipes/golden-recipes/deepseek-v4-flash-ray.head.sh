#!/bin/bash
# rank 0 of deepseek-v4-flash-ray
# Made by sparkd at every start: changes here are lost.
set -euo pipefail

# One function, so that bash has read all of it before a variable below can change how bash reads.
launch() {
  export VLLM_ENGINE_READY_TIMEOUT_S=86400
  export VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800
  export MAX_JOBS=1
  export FLASHINFER_NVCC_THREADS=1
  export RAY_memory_monitor_refresh_ms=0
  export RAY_USAGE_STATS_ENABLED=0
  export RAY_DEDUP_LOGS=0
  export RAY_CGRAPH_get_timeout=1800
  export RAY_AUTH_MODE=token
  export RAY_AUTH_TOKEN_PATH=/run/sparkd-ray-token
  export VLLM_HOST_IP=10.0.0.1
  export GLOO_SOCKET_IFNAME=bond0
  export TP_SOCKET_IFNAME=bond0
  export NCCL_SOCKET_IFNAME==bond0
  export NCCL_IB_HCA=rocep1s0f0,roceP2p1s0f0
  export NCCL_IGNORE_CPU_AFFINITY=1
  export NCCL_IB_DISABLE=0
  export NCCL_DEBUG=WARN
  export TORCH_CUDA_ARCH_LIST=12.1a
  export VLLM_ALLOW_LONG_MAX_MODEL_LEN=1
  export VLLM_TRITON_MLA_SPARSE=1
  export FLASHINFER_DISABLE_VERSION_CHECK=1
  export TILELANG_CLEANUP_TEMP_FILES=1
  export DG_JIT_USE_NVRTC=0
  export DG_JIT_NVCC_COMPILER=/usr/local/cuda/bin/nvcc
  export DG_JIT_PRINT_COMPILER_COMMAND=1
  export VLLM_SKIP_INIT_MEMORY_CHECK=1
  command -v ray >/dev/null || { echo "the image is not what the recipe needs: executor: ray, and it has no ray" >&2; exit 64; }
  mkdir -p "${VLLM_CONFIG_ROOT:-${XDG_CONFIG_HOME:-${HOME:-/root}/.config}/vllm}"
  echo '["GLOO_SOCKET_IFNAME", "MAX_JOBS", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "VLLM_HOST_IP"]' >"${VLLM_CONFIG_ROOT:-${XDG_CONFIG_HOME:-${HOME:-/root}/.config}/vllm}"/ray_non_carry_over_env_vars.json
  ray start --head --port=29501 --include-dashboard=false \
    --node-ip-address=10.0.0.1 \
    --num-gpus=1 \
    --num-cpus=1 \
    --object-store-memory=268435456
  export RAY_ADDRESS=10.0.0.1:29501
  exec -- vllm serve /models/DeepSeek-V4-Flash \
    --served-model-name deepseek-v4-flash \
    --host 0.0.0.0 \
    --port 8000 \
    --trust-remote-code \
    --tensor-parallel-size 2 \
    --pipeline-parallel-size 1 \
    --kv-cache-dtype fp8 \
    --block-size 256 \
    --gpu-memory-utilization 0.85 \
    --max-model-len 200000 \
    --enable-prefix-caching \
    --max-num-batched-tokens 8192 \
    --max-num-seqs 8 \
    --compilation-config '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}' \
    --speculative-config '{"method":"deepseek_mtp","num_speculative_tokens":2}' \
    --tokenizer-mode deepseek_v4 \
    --tool-call-parser deepseek_v4 \
    --enable-auto-tool-choice \
    --reasoning-parser deepseek_v4 \
    --reasoning-config '{"reasoning_parser":"deepseek_v4","reasoning_start_str":"<think>","reasoning_end_str":"</think>"}' \
    --default-chat-template-kwargs '{"thinking":true}' \
    --enable-expert-parallel \
    --distributed-executor-backend ray
}

launch
