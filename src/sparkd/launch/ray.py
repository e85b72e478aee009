"""Ray, where a recipe says `executor: ray`: it joins the nodes, and vLLM runs on the head alone. Pure.

The head's container starts Ray's store (GCS) on cluster.master_port, then the engine, which waits until every node
offers its GPU. A worker's container runs Ray's own process (the raylet), below which the head's engine starts a rank.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from shlex import quote

from sparkd.launch.plan import Node
from sparkd.launch.script import ASSERT_FAILED, NOT_AS_NEEDED

TOKEN_FILE = "ray-token"  # noqa: S105  # in /run/sparkd, for root alone
TOKEN_TARGET = "/run/sparkd-ray-token"  # noqa: S105  # a path
OBJECT_STORE_BYTES = 256 << 20
"""Shared memory. vLLM passes messages and tensors by ways of its own; Ray takes 30 % of the memory if not told."""
ENV: Mapping[str, str] = {
    # It kills workers at 95 % of the memory, where a node that shares it with its GPU is by design.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Lines of the ranks as they come, and none held back to be counted.
    "RAY_DEDUP_LOGS": "0",
    # Without it whoever reaches a node's ports runs programs there, as root. Ray heeds it from 2.52 on.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN_PATH": TOKEN_TARGET,
    "VLLM_HOST_IP": "{node.address}",
}
"""What a recipe may set otherwise."""

_HAS_RAY = (
    f'command -v ray >/dev/null || {{ echo "{NOT_AS_NEEDED}: executor: ray, and it has no ray" >&2; '
    f"exit {ASSERT_FAILED}; }}"
)
_GOES_ON = " \\\n    "
_CONFIG = '"${VLLM_CONFIG_ROOT:-${XDG_CONFIG_HOME:-${HOME:-/root}/.config}/vllm}"'
_OWN_NAMES = "ray_non_carry_over_env_vars.json"


def token(cluster_key: bytes, epoch: str) -> str:
    """Of one epoch: no node of an earlier one can join."""
    return hmac.new(cluster_key, f"sparkd ray token 1 {epoch}".encode(), "sha256").hexdigest()


def lines(node: Node, port: int, env: Mapping[str, str], engine: Sequence[str]) -> list[str]:
    """Of the launch script, `engine` being those that start it. The texts of `env` still hold their placeholders."""
    return [_HAS_RAY, *(_head(node, port, env, engine) if node.rank == 0 else _worker(node, port))]


def _head(node: Node, port: int, env: Mapping[str, str], engine: Sequence[str]) -> list[str]:
    own = sorted(name for name, text in env.items() if "{node." in text)
    # vLLM's first executor for Ray gives the head's variables to all ranks, but for those that this file names.
    kept = [f"mkdir -p {_CONFIG}", f"echo {quote(json.dumps(own))} >{_CONFIG}/{_OWN_NAMES}"] if own else []
    start = f"ray start --head --port={port} --include-dashboard=false{_of_node(node)}"
    return [*kept, start, f"export RAY_ADDRESS={_address(node, port)}", *engine]


def _worker(node: Node, port: int) -> list[str]:
    """It waits for as long as the agent lets it. What its rank writes goes to its own log, not to the head's."""
    return [
        f"echo 'waiting for the Ray of {node.head_address} port {port}'",
        f"until (: </dev/tcp/{node.head_address}/{port}) 2>/dev/null; do sleep 1; done",
        "export RAY_LOG_TO_STDERR=1 RAY_BACKEND_LOG_LEVEL=warning",
        f"exec -- ray start --block --address={_address(node, port)}{_of_node(node)}",
    ]


def _address(node: Node, port: int) -> str:
    host = f"[{node.head_address}]" if ":" in node.head_address else node.head_address
    return f"{host}:{port}"


def _of_node(node: Node) -> str:
    """One GPU, as sparkd runs one rank a node. One CPU: Ray starts an idle process of 90 MB ahead for each."""
    words = (
        f"--node-ip-address={node.address}",
        "--num-gpus=1",
        "--num-cpus=1",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
    )
    return "".join(_GOES_ON + word for word in words)
