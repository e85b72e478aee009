#!/bin/bash
# rank 1 of deepseek-v4-flash-ray
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
  export VLLM_HOST_IP=10.0.0.2
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
  echo 'waiting for the Ray of 10.0.0.1 port 29501'
  until (: </dev/tcp/10.0.0.1/29501) 2>/dev/null; do sleep 1; done
  export RAY_LOG_TO_STDERR=1 RAY_BACKEND_LOG_LEVEL=warning
  exec -- ray start --block --address=10.0.0.1:29501 \
    --node-ip-address=10.0.0.2 \
    --num-gpus=1 \
    --num-cpus=1 \
    --object-store-memory=268435456
}

launch
