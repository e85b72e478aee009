#!/bin/bash
# rank 0 of tiny-cpu
# Made by sparkd at every start: changes here are lost.
set -euo pipefail

# One function, so that bash has read all of it before a variable below can change how bash reads.
launch() {
  export VLLM_ENGINE_READY_TIMEOUT_S=86400
  export VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800
  export VLLM_CPU_KVCACHE_SPACE=1
  exec -- vllm serve /models/tiny \
    --served-model-name tiny \
    --host 0.0.0.0 \
    --port 8000 \
    --dtype float32 \
    --max-model-len 512 \
    --enforce-eager
}

launch
