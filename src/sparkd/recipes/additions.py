"""What sparkd adds to an engine's environment where recipe and settings have no entry; null keeps a name out.

Launchers of other tools set the same on each node (sparkrun 0.4.2; eugr/spark-vllm-docker, launch-cluster.sh), so that
recipes in public have none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkd.config import Settings
    from sparkd.recipes.schema import Recipe

INTERFACE, HCAS = "{node.interface}", "{node.hcas}"
"""Placeholders of a recipe for the interface on the fabric, and for its RDMA devices."""
VERBS = "/dev/infiniband"
"""Folder of the devices that RDMA goes through."""
READY_TIMEOUT = "VLLM_ENGINE_READY_TIMEOUT_S"
"""How long vLLM's API server waits for its engine. A cold load takes longer than its default, 600 s."""
RAY = "ray"
RAY_TOKEN_TARGET = "/run/sparkd-ray-token"  # noqa: S105  # a path
RAY_ENV: Mapping[str, str] = {
    # The monitor kills workers at 95 % of the memory, which is normal use of unified memory.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Print every line of the ranks at once.
    "RAY_DEDUP_LOGS": "0",
    # Without a token, anyone who reaches the ports can run programs as root. Ray supports it from 2.52.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN_PATH": RAY_TOKEN_TARGET,
}
BETWEEN_NODES: Mapping[str, str] = {
    # By themselves they take the address of the host's name, which may be 127.0.1.1, or that of the default route.
    "VLLM_HOST_IP": "{node.address}",
    "GLOO_SOCKET_IFNAME": INTERFACE,
    "TP_SOCKET_IFNAME": INTERFACE,
}
BETWEEN_GPUS: Mapping[str, str] = {"NCCL_SOCKET_IFNAME": INTERFACE, "NCCL_IB_HCA": HCAS}
ALLOCATOR, NEWER_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
"""PyTorch ignores the newer name where it has the older one."""
ADDED_LIMITS = {"nofile": 1 << 20}
"""Soft and hard: the kernel's own highest (fs.nr_open). Docker's soft limit is 1024 where systemd says nothing else."""
EXPANDABLE = "expandable_segments:True"
OWN_POOLS = ("enable-sleep-mode", "enable-cumem-allocator")
"""Flags whose memory pools older builds of vLLM refuse beside expandable segments."""


def added_env(recipe: Recipe, settings: Settings, nodes: int) -> dict[str, str]:
    """On one of `nodes` nodes. Texts may contain placeholders."""
    engine = settings.engine
    env = {**recipe.env, **engine.env}
    args = {**recipe.args, **engine.args}
    on_gpu = recipe.container.gpus == "all"
    found = {READY_TIMEOUT: str(settings.readiness.timeout_seconds)}
    if on_gpu and NEWER_ALLOCATOR not in env and not any(args.get(flag) for flag in OWN_POOLS):
        found[ALLOCATOR] = EXPANDABLE
    if nodes > 1:
        found |= {**(RAY_ENV if recipe.executor == RAY else {}), **BETWEEN_NODES, **(BETWEEN_GPUS if on_gpu else {})}
    if env.get("NCCL_IB_DISABLE") == "1" or (env.get("NCCL_NET") or "").lower() == "socket":
        found.pop("NCCL_IB_HCA", None)  # TCP is meant, and no device is awaited
    given = {*env, *recipe.secrets, *engine.secrets}
    return {name: text for name, text in found.items() if name not in given}
