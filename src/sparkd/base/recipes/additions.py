"""What sparkd adds to an engine's container where recipe and settings have no entry: variables, and limits.

Launchers of other tools set the same on each node (sparkrun 0.4.2; eugr/spark-vllm-docker, launch-cluster.sh), so that
recipes in public have none of it. null keeps a name out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkd.base.config import Settings
    from sparkd.base.recipes.schema import Recipe

INTERFACE, HCAS = "{node.interface}", "{node.hcas}"
"""Placeholders of a recipe for the interface on the fabric, and for its RDMA devices."""
MAX_JOBS, NVCC_THREADS, COMPILE_JOBS = "MAX_JOBS", "FLASHINFER_NVCC_THREADS", "{node.compile_jobs}"
"""Number of files that ninja compiles at once, threads of one nvcc, and the number that the node's memory holds."""
VERBS = "/dev/infiniband"
"""Folder of the devices that RDMA goes through."""
READY_TIMEOUT = "VLLM_ENGINE_READY_TIMEOUT_S"
"""How long vLLM's API server waits for its engine. A cold load takes longer than its default, 600 s."""
ENGINE_READY_SECONDS = 86_400
"""A day, because sparkd itself ends a load: after readiness.timeout_seconds, unless the load still works."""
EXECUTE_TIMEOUT = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
"""How long vLLM waits for one step of its ranks, 300 s by default: a kernel that is compiled in one takes longer."""
EXECUTE_SECONDS = 1800
"""12 minutes were needed (MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark issue 65). sparkd itself finds a hang."""
RAY = "ray"
RAY_TOKEN_TARGET = "/run/sparkd-ray-token"  # noqa: S105  # a path
RAY_ENV: Mapping[str, str] = {
    # The monitor kills workers at 95 % of the memory, which is normal use of unified memory.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Print every line of the ranks at once.
    "RAY_DEDUP_LOGS": "0",
    # vLLM's older Ray executor waits so many seconds for a step ("RAY_CGRAPH_get_timeout is set to 300" in its log).
    "RAY_CGRAPH_get_timeout": str(EXECUTE_SECONDS),
    # Without a token, anyone who reaches the ports can run programs as root. Ray supports it from 2.52.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN_PATH": RAY_TOKEN_TARGET,
}
BETWEEN_NODES: Mapping[str, str] = {
    # Without these, vLLM, Gloo and TensorPipe take the address of the host's name, which may be 127.0.1.1, or that of
    # the default route.
    "VLLM_HOST_IP": "{node.address}",
    "GLOO_SOCKET_IFNAME": INTERFACE,
    "TP_SOCKET_IFNAME": INTERFACE,
}
BETWEEN_GPUS: Mapping[str, str] = {"NCCL_SOCKET_IFNAME": f"={INTERFACE}", "NCCL_IB_HCA": HCAS}
"""Without `=`, NCCL takes the name for a prefix, and a VLAN's name may begin with it."""
ALLOCATOR, NEWER_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
"""PyTorch ignores the newer name where it has the older one."""
ADDED_LIMITS = {"nofile": 1 << 20, "memlock": -1}
"""Soft and hard limits. nofile: the kernel's own highest (fs.nr_open); docker's soft limit is 1024 unless systemd sets
another. memlock: unlimited, since RDMA locks all memory that it sends from; docker's is 8 MiB as a rule.
"""
ADDED_SHM_BYTES = 32 << 30
"""Size of a container's own /dev/shm, as sparkrun makes it. A bound and no reservation; docker's is 64 MiB."""
OWN_POOLS = ("enable-sleep-mode", "enable-cumem-allocator")
"""Flags whose memory pools older builds of vLLM refuse beside expandable segments."""
CONNECTORS = ("kv-transfer-config", "kv-offloading-size", "ec-transfer-config")
"""Flags with which memory is registered with devices. vLLM 0.32 refuses KV connectors beside expandable segments."""
_NUMBER = re.compile(r"\s*([+-]?)(?:0[xX]([0-9a-fA-F]{1,32})|(0[0-7]{0,32})|([1-9][0-9]{0,32}))")


def parse_nccl_number(text: str) -> int | None:
    """A parameter as NCCL reads it (src/misc/param.cc): strtoll with base 0, so that 0x3 and 03 are 3, and 010 is 8.

    Text after the number is ignored. None where there is none, or one of more than 64 bits: older versions take it for
    0, newer ones for unset.
    """
    match = _NUMBER.match(text)
    if match is None:
        return None
    sign, hexadecimal, octal, decimal = match.groups()
    value = int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else int(decimal)
    if value >= 1 << 63:
        return None
    return -value if sign == "-" else value


def why_tcp(env: Mapping[str, str | None]) -> str:
    """The setting that makes NCCL use TCP; empty where none does."""
    if parse_nccl_number(env.get("NCCL_IB_DISABLE") or ""):
        return "NCCL_IB_DISABLE is set, so NCCL goes by TCP"
    return "NCCL_NET is Socket, so NCCL goes by TCP" if (env.get("NCCL_NET") or "").lower() == "socket" else ""


def added_env(recipe: Recipe, settings: Settings, nodes: int) -> dict[str, str]:
    """Variables added on one of `nodes` nodes. Texts may contain placeholders."""
    engine = settings.engine
    env = {**recipe.env, **engine.env}
    args = {**recipe.args, **engine.args}
    on_gpu = recipe.container.gpus == "all"
    added = {READY_TIMEOUT: str(ENGINE_READY_SECONDS), EXECUTE_TIMEOUT: str(EXECUTE_SECONDS)}
    if on_gpu:
        added |= {MAX_JOBS: COMPILE_JOBS, NVCC_THREADS: "1"}
        is_refused = any(value for flag, value in args.items() if flag.partition(".")[0] in (*OWN_POOLS, *CONNECTORS))
        # The custom all-reduce of a node's ranks can't share expandable segments: vllm-project/vllm#42609
        has_several_ranks = recipe.nodes.gpus > 1
        if NEWER_ALLOCATOR not in env and not is_refused and not has_several_ranks:
            added[ALLOCATOR] = "expandable_segments:True"
    if nodes > 1:
        added |= {**(RAY_ENV if recipe.executor == RAY else {}), **BETWEEN_NODES}
        added |= {**BETWEEN_GPUS, "NCCL_DEBUG": "WARN"} if on_gpu else {}  # without WARN its errors have no reason
    if why_tcp(env):
        added.pop("NCCL_IB_HCA", None)  # the recipe wants TCP: a missing device must not delay it
    set_names = {*env, *recipe.secrets, *engine.secrets}
    return {name: text for name, text in added.items() if name not in set_names}
