"""What the public reports behind the shipped recipes ran: flags, environment and container, as they print them.

Where a report names a node's own address, interface or devices, its variable stands in OF_THE_NODE instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

OF_THE_NODE = frozenset(("VLLM_HOST_IP", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_IB_HCA"))


@dataclass(frozen=True)
class Report:
    recipe: str
    line: str
    """The flags of the launch, without those that sparkd owns, and without the model."""
    env: Mapping[str, str]
    corrected: Mapping[str, object] = field(default_factory=dict)
    """What the report is known to mean by a misprint; None: nothing."""
    added: Mapping[str, str] = field(default_factory=dict)
    """Flags that the report does not name, each with the reason."""
    privileged: bool = False
    shm_bytes: int | None = None
    devices: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()


def _variables(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.split())


# "DeepSeek V4 Flash on Dual DGX Spark: What Broke, and the Recipe That Works", Echo: Launch Scripts.
_ECHO = """
--served-model-name deepseek-v4-flash --host 0.0.0.0 --port 8000 --trust-remote-code
--tensor-parallel-size 2 --pipeline-parallel-size 1 --kv-cache-dtype fp8 --block-size 256
--enable-prefix-caching --enable-chunked-prefill --max-model-len 200000 --max-num-seqs 4
--max-num-batched-tokens 16384 --gpu-memory-utilization 0.90 --disable-custom-all-reduce
--compilation-config '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}'
--speculative-config '{"method":"deepseek_mtp","num_speculative_tokens":2}'
--tokenizer-mode deepseek_v4 --tool-call-parser deepseek_v4 --enable-auto-tool-choice --reasoning-parser deepseek_v4
--default-chat-template-kwargs '{"thinking":true}' --load-format safetensors
"""
_ECHO_ENV = _variables("""
    NCCL_IB_DISABLE=0 NCCL_IGNORE_CPU_AFFINITY=1 TORCH_CUDA_ARCH_LIST=12.1a VLLM_ALLOW_LONG_MAX_MODEL_LEN=1
    VLLM_TRITON_MLA_SPARSE=1 VLLM_USE_FLASHINFER_SAMPLER=1 FLASHINFER_DISABLE_VERSION_CHECK=1
    TILELANG_CLEANUP_TEMP_FILES=1 DG_JIT_USE_NVRTC=0 DG_JIT_NVCC_COMPILER=/usr/local/cuda/bin/nvcc OMP_NUM_THREADS=8
    HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
""")
# The addenda, which name what they change. A later flag wins.
_ECHO_THROUGHPUT = "--max-num-seqs 16 --max-model-len 65536 --max-num-batched-tokens 8192 --enable-expert-parallel"
_ECHO_BALANCED = "--max-model-len 131072 --max-num-seqs 8 --max-num-batched-tokens 16384 --enable-expert-parallel"

# "DeepSeek-V4-Flash (official FP8) running across 2x DGX Spark", forum: the recipe with instanttensor.
_FORUM = """
--served-model-name deepseek-v4-flash --host 0.0.0.0 --port 8000 --trust-remote-code
--tensor-parallel-size 2 --pipeline-parallel-size 1 --kv-cache-dtype fp8 --block-size 256 --enable-prefix-caching
--max-model-len 300000 --max-num-seqs 2 --max-num-batched-tokens 16384 --gpu-memory-utilization 0.85
--compilation-config '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}'
--speculative-config '{"method":"deepseek_mtp","num_speculative_tokens":2}'
--tokenizer-mode deepseek_v4 --tool-call-parser deepseek_v4 --enable-auto-tool-choice --reasoning-parser deepseek_v4
--reasoning-config '{"reasoning_parser":"deepseek_v4","reasoning_start_str":"<think>","reasoning_end_str":"</think>"}'
--default-chat-template-kwargs '{"thinking":true}' --load-format instanttensor
"""
_FORUM_ENV = _variables("""
    TORCH_CUDA_ARCH_LIST=12.1a VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 VLLM_TRITON_MLA_SPARSE=1
    FLASHINFER_DISABLE_VERSION_CHECK=1 TILELANG_CLEANUP_TEMP_FILES=1 DG_JIT_USE_NVRTC=0
    DG_JIT_NVCC_COMPILER=/usr/local/cuda/bin/nvcc DG_JIT_PRINT_COMPILER_COMMAND=1 NCCL_IB_DISABLE=0 NCCL_DEBUG=WARN
    NCCL_IGNORE_CPU_AFFINITY=1
""")
"""The last is the launcher's, launch-cluster.sh."""

# The same thread, "Another dual-Spark data point", which names no more than this.
_RAY = """
--tensor-parallel-size 2 --gpu-memory-utilization 0.85 --max-model-len 200000 --max-num-batched-tokens 8192
--max-num-seqs 8 --kv-cache-dtype fp8 --block-size 256 --enable-expert-parallel
--speculative-config '{"method":"deepseek_mtp","num_speculative_tokens":2}'
--compilation-config '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}'
"""
_RAY_ENV = _variables("""
    TORCH_CUDA_ARCH_LIST=12.1a VLLM_TRITON_MLA_SPARSE=1 VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 VLLM_SKIP_INIT_MEMORY_CHECK=1
""")
_UNSAID = (
    "served-model-name", "host", "port", "trust-remote-code", "pipeline-parallel-size", "enable-prefix-caching",
    "tokenizer-mode", "tool-call-parser", "enable-auto-tool-choice", "reasoning-parser", "reasoning-config",
    "default-chat-template-kwargs",
)  # fmt: skip

# "Two-Node DGX Spark Cluster: Running DeepSeek V4 Flash at 16 TPS", Tobias Weiss: The Config.
_WEISS = """
--served-model-name deepseek-v4-flash --max-model-len 200000 --max-num-seqs 2 --max-num-batched-tokens 8192
--gpu-memory-utilization 0.78 --kv-cache-dtype fp8 --block-size 256 --prefix-caching --enable-expert-parallel
--compilation-config '{"cudagraph_mode":"PIECEWISE"}'
--speculative-config '{"method":"deepseek_mtp","num_speculative_tokens":2}'
--disable-custom-all-reduce --trust-remote-code --host 0.0.0.0 --port 8000 --load-format safetensors
--tokenizer-mode deepseek_v4 --tool-call-parser deepseek_v4 --enable-auto-tool-choice --reasoning-parser deepseek_v4
"""

# "DeepSeek v4 Flash (Aiden Recipe from Reddit) - 1M token session operational", forum: Docker Compose Configuration.
_AIDEN = """
--served-model-name deepseek-v4-flash --host 0.0.0.0 --port 8000 --trust-remote-code
--tensor-parallel-size 2 --pipeline-parallel-size 1 --kv-cache-dtype fp8 --block-size 256
--max-model-len 1000000 --max-num-seqs 6 --max-num-batched-tokens 8192 --gpu-memory-utilization 0.82
--enable-prefix-caching --speculative-config '{"method":"mtp","num_speculative_tokens":2}'
--tokenizer-mode deepseek_v4 --tool-call-parser deepseek_v4 --enable-auto-tool-choice --reasoning-parser deepseek_v4
--reasoning-config '{"reasoning_parser":"deepseek_v4","reasoning_start_str":"","reasoning_end_str":""}'
--default-chat-template-kwargs.thinking=true --default-chat-template-kwargs.reasoning_effort=high
--enable-flashinfer-autotune
"""
_THINK = {"reasoning_parser": "deepseek_v4", "reasoning_start_str": "<think>", "reasoning_end_str": "</think>"}
# Without NCCL_IB_GID_INDEX=3, which is the author's nodes', and VLLM_NCCL_SO_PATH, whose path is cut short.
_AIDEN_ENV = _variables("""
    HF_HOME=/cache/huggingface HF_HUB_OFFLINE=1 VLLM_CACHE_ROOT=/cache/huggingface/vllm-cache
    VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 VLLM_USE_B12X_MOE=1 VLLM_SPARSE_INDEXER_MAX_LOGITS_MB=256
    TORCH_CUDA_ARCH_LIST=12.1a FLASHINFER_CUDA_ARCH_LIST=12.1a NCCL_NET=IB NCCL_IB_DISABLE=0 NCCL_CROSS_NIC=1
    NCCL_CUMEM_ENABLE=0 NCCL_IGNORE_CPU_AFFINITY=1 NCCL_DEBUG=WARN
""")

# tonyd2wild/DeepSeek-v4-Flash-DSpark-1M-NVFP4-KV-2x-DGX-Spark: docker-compose.dspark.yml, README's defaults put in.
_DSPARK = """
--served-model-name deepseek-v4-flash-dspark --host 0.0.0.0 --port 8888 --trust-remote-code
--tensor-parallel-size 2 --pipeline-parallel-size 1 --kv-cache-dtype nvfp4_ds_mla --block-size 256
--max-model-len 1048576 --max-num-seqs 6 --max-num-batched-tokens 8192 --gpu-memory-utilization 0.80
--enable-prefix-caching --speculative-config '{"method":"dspark","num_speculative_tokens":5}'
--tokenizer-mode deepseek_v4 --tool-call-parser deepseek_v4 --enable-auto-tool-choice --reasoning-parser deepseek_v4
--reasoning-config '{"reasoning_parser":"deepseek_v4","reasoning_start_str":"<think>","reasoning_end_str":"</think>"}'
--default-chat-template-kwargs '{"thinking":false}' --generation-config vllm
--override-generation-config '{"temperature":0.6,"top_p":0.95,"top_k":40,"repetition_penalty":1.05}'
--enable-flashinfer-autotune
"""
_DSPARK_BASELINE = """
--max-model-len 262144 --max-num-seqs 1 --max-num-batched-tokens 8192 --kv-cache-dtype fp8 --generation-config vllm
--override-generation-config '{"temperature":0.0,"top_p":1.0}'
"""
# Without what the compose file makes flags of: NODE_RANK, HEADLESS, MASTER_*, MTP_NUM_TOKENS, GENERATION_*. And without
# NCCL_IB_GID_INDEX, which is each node's own.
_DSPARK_ENV = _variables("""
    HF_HOME=/cache/huggingface HF_HUB_OFFLINE=0 TRANSFORMERS_OFFLINE=0 HF_HUB_DISABLE_XET=1
    VLLM_CACHE_ROOT=/cache/huggingface/vllm-cache VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 VLLM_TRITON_MLA_SPARSE=1
    VLLM_SPARSE_INDEXER_MAX_LOGITS_MB=256 VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 VLLM_SKIP_INIT_MEMORY_CHECK=1
    VLLM_USE_B12X_MOE=1 VLLM_USE_B12X_WO_PROJECTION=1 VLLM_B12X_W4A16_FORCE_BLOCKS_PER_SM=0
    VLLM_B12X_W4A16_FORCE_BLOCKS_MAX_M=16 VLLM_B12X_W4A16_FORCE_TILE_CONFIG= B12X_W4A16_TC_DECODE=0
    VLLM_DSPARK_CONFIDENCE_THRESHOLD=0.0 VLLM_DSPARK_CONFIDENCE_SCHEDULER=off VLLM_DSPARK_LOCAL_ARGMAX=1
    VLLM_DSPARK_REPLICATE_MARKOV_W1=1 VLLM_DSPARK_FUSED_MARKOV_ARGMAX=0 VLLM_DSPARK_GPU_REJECTED_CONTEXT_MASK=1
    VLLM_DSPARK_REFERENCE_KV_QUANT_DEQUANT=0 VLLM_DSPARK_HARDWARE_SCHEDULER_EARLY_STOP=1
    VLLM_DSV4_B12X_COMPRESSED_MLA=0 VLLM_DSV4_DSPARK_DEFER_TARGET_CAPTURE=0
    VLLM_DSV4_DSPARK_DEFER_TARGET_CAPTURE_EXACT=0 TORCH_CUDA_ARCH_LIST=12.1a FLASHINFER_CUDA_ARCH_LIST=12.1a
    FLASHINFER_DISABLE_VERSION_CHECK=1 TILELANG_CLEANUP_TEMP_FILES=1 DG_JIT_USE_NVRTC=0
    DG_JIT_NVCC_COMPILER=/opt/env/bin/nvcc PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True NCCL_NET=IB
    NCCL_IB_DISABLE=0 NCCL_CROSS_NIC=1 NCCL_CUMEM_ENABLE=0 NCCL_IGNORE_CPU_AFFINITY=1 NCCL_DEBUG=WARN
    NCCL_NVLS_ENABLE=0
""")

# "vLLM on the DGX Spark", Inferact: The Docker invocation. The parser's file is the model's own, mounted elsewhere.
_INFERACT = """
--served-model-name nemotron-3-super --trust-remote-code --max-model-len 32768 --gpu-memory-utilization 0.85
--enforce-eager --max-num-seqs 4
--reasoning-parser-plugin /models/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4/super_v3_reasoning_parser.py
--reasoning-parser super_v3 --enable-auto-tool-choice --tool-call-parser qwen3_coder
"""

# "Local AI inference recipes", NVIDIA, at 12b25c6: the two stacks for two DGX Sparks.
_NVIDIA = """
--served-model-name deepseek-v4-flash --host 0.0.0.0 --port 8000 --trust-remote-code --tensor-parallel-size 2
--load-format instanttensor --kv-cache-dtype fp8 --block-size 256 --gpu-memory-utilization 0.85 --max-model-len 500000
--max-num-seqs 4 --max-num-batched-tokens 8192 --enable-prefix-caching --tokenizer-mode deepseek_v4
--tool-call-parser deepseek_v4 --enable-auto-tool-choice --reasoning-parser deepseek_v4
--speculative-config '{"method":"mtp","num_speculative_tokens":2}'
--reasoning-config '{"reasoning_start_str":"","reasoning_end_str":""}'
--default-chat-template-kwargs '{"thinking":true,"reasoning_effort":"high"}'
"""
_NVIDIA_ENV = _variables("""
    NCCL_IB_DISABLE=0 NCCL_IGNORE_CPU_AFFINITY=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
""")
_NVIDIA_0731 = """
--max-model-len 262144 --max-num-seqs 8 --max-cudagraph-capture-size 48 --moe-backend b12x --linear-backend b12x
--attention-backend B12X --compilation-config '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}'
--speculative-config
'{"method":"dspark","num_speculative_tokens":5,"draft_sample_method":"probabilistic","attention_backend":"B12X"}'
"""
_NVIDIA_0731_ENV = _variables("""
    CUTE_DSL_ARCH=sm_121a VLLM_USE_AOT_COMPILE=1 VLLM_USE_BREAKABLE_CUDAGRAPH=0 VLLM_MEMORY_PROFILE_INCLUDE_ATTN=1
    VLLM_USE_FLASHINFER_SAMPLER=1 VLLM_USE_B12X_WO_PROJECTION=1 VLLM_USE_B12X_MHC=1 VLLM_USE_B12X_FP8_GEMM=1
    VLLM_USE_B12X_MOE=1 VLLM_USE_B12X_SPARSE_INDEXER=1 VLLM_USE_V2_MODEL_RUNNER=1 B12X_MLA_SM120_UNIFIED=1
    B12X_MOE_FORCE_A8=1 VLLM_MOE_SKIP_PADDING=0
""")
_NVIDIA_FIRST_ENV = _variables("""
    VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 VLLM_USE_BREAKABLE_CUDAGRAPH=1 VLLM_FLOAT32_MATMUL_PRECISION=high
""")

_SHM = 64 * 2**30
_INFINIBAND = ("/dev/infiniband",)


def _dspark(recipe: str, changed: str = "", env: Mapping[str, str] | None = None) -> Report:
    return Report(recipe, _DSPARK + changed, {**_DSPARK_ENV, **(env or {})}, shm_bytes=_SHM, devices=_INFINIBAND)


REPORTS = (
    Report("deepseek-v4-flash-latency", _ECHO, _ECHO_ENV, privileged=True),
    Report("deepseek-v4-flash-throughput", _ECHO + _ECHO_THROUGHPUT, _ECHO_ENV, privileged=True),
    Report("deepseek-v4-flash-balanced", _ECHO + _ECHO_BALANCED, _ECHO_ENV, privileged=True),
    Report("deepseek-v4-flash-built", _ECHO + _ECHO_BALANCED, _ECHO_ENV, privileged=True),
    Report("deepseek-v4-flash-eugr", _FORUM, _FORUM_ENV, privileged=True),
    Report(
        "deepseek-v4-flash-ray",
        _RAY,
        {**_FORUM_ENV, **_RAY_ENV},
        added=dict.fromkeys(_UNSAID, "the thread's own recipe has it"),
        privileged=True,
    ),
    Report(
        "deepseek-v4-flash-conservative",
        _WEISS,
        _FORUM_ENV,
        corrected={"prefix-caching": None, "enable-prefix-caching": True},
        added={
            "tensor-parallel-size": "The Setup says TP=2",
            "enable-flashinfer-autotune": "Safe Optimizations Applied says enabled, and calls it the dominant factor",
        },
        privileged=True,
    ),
    Report(
        "deepseek-v4-flash-b12x-1m",
        _AIDEN,
        _AIDEN_ENV,
        corrected={"reasoning-config": _THINK},
        shm_bytes=_SHM,
        devices=_INFINIBAND,
        mounts=("/etc/passwd", "/etc/group"),
    ),
    _dspark("dspark-nvfp4-1m"),
    _dspark("dspark-200k-16", "--max-model-len 200000 --max-num-seqs 16"),
    _dspark("dspark-1m-2", "--max-num-seqs 2"),
    _dspark("dspark-500k-4", "--max-model-len 500000 --max-num-seqs 4"),
    _dspark("dspark-single", "--max-num-seqs 1", {"VLLM_USE_B12X_WO_PROJECTION": "0"}),
    _dspark("dspark-speed-baseline", _DSPARK_BASELINE),
    Report("deepseek-v4-flash-nvidia", _NVIDIA, {**_NVIDIA_ENV, **_NVIDIA_FIRST_ENV}, privileged=True),
    Report(
        "deepseek-v4-flash-nvidia-0731", _NVIDIA + _NVIDIA_0731, {**_NVIDIA_ENV, **_NVIDIA_0731_ENV}, privileged=True
    ),
    Report("nemotron-3-super-nvfp4", _INFERACT, {}),
)
