#!/bin/bash
# rank 1 of tiny-cpu-pair
# Made by sparkd at every start: changes here are lost.
set -euo pipefail

# One function, so that bash has read all of it before a variable below can change how bash reads.
launch() {
  export VLLM_ENGINE_READY_TIMEOUT_S=86400
  export VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800
  export VLLM_HOST_IP=10.0.0.2
  export GLOO_SOCKET_IFNAME=bond0
  export TP_SOCKET_IFNAME=bond0
  export VLLM_CPU_KVCACHE_SPACE=1
  export TORCHDYNAMO_DISABLE=1
  exec -- vllm serve /models/tiny \
    --served-model-name tiny \
    --host 0.0.0.0 \
    --port 8000 \
    --dtype float32 \
    --max-model-len 512 \
    --enforce-eager \
    --tensor-parallel-size 2 \
    --distributed-executor-backend mp \
    --nnodes 2 \
    --node-rank 1 \
    --master-addr 10.0.0.1 \
    --master-port 29501 \
    --headless
}

launch
