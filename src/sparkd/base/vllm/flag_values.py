"""Values of flags that sparkd acts on itself: the number of ranks, the API's address, the share of memory.

Functions that get a recipe's name raise ConfigError, which begins with it.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from math import prod

from sparkd.base.lib.errors import ConfigError
from sparkd.base.vllm.args import JsonValue, parse_count

RANK_SIZES = ("tensor-parallel-size", "pipeline-parallel-size", "prefill-context-parallel-size")
"""Flags whose product is the number of ranks of one engine; each is 1 by default (vLLM, ParallelConfig.world_size)."""
DATA_SIZE = "data-parallel-size"
STARTED_APART = ("data-parallel-rank", "data-parallel-start-rank", "data-parallel-address")
"""Flags of data-parallel ranks whose others are on other nodes than the plan's."""
SAFETENSORS_FORMATS = ("", "auto", "hf", "safetensors", "mistral", "fastsafetensors", "instanttensor", "runai_streamer")
"""Values of --load-format that load a folder's safetensors files as they are; empty: the flag is left out."""
HIGHEST_SIZE = 10_000
LOOPBACK = "127.0.0.1"
_HOST_NAME = re.compile(r"[A-Za-z0-9.-]+")


def rank_flags(args: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Flags whose product is the number of ranks that are started together."""
    return RANK_SIZES if any(args.get(flag) is not None for flag in STARTED_APART) else (*RANK_SIZES, DATA_SIZE)


def check_ranks(recipe: str, args: Mapping[str, JsonValue], nodes: int, gpus: int) -> None:
    """Raise ConfigError unless the flags (placeholders filled) give one rank for each of the nodes' `gpus`.

    Without GPUs, 0, a single node may run any number, and each of several nodes one.
    """
    sizes = {flag: _parse_size(recipe, flag, args[flag]) for flag in rank_flags(args) if args.get(flag) is not None}
    ranks = prod(sizes.values())
    if ranks == nodes * (gpus or 1) or (nodes == 1 and gpus == 0):
        return
    product = " x ".join(f"args.{flag} {size}" for flag, size in sizes.items()) or f"no args.{RANK_SIZES[0]}"
    larger = [flag for flag, size in sizes.items() if size > 1] or RANK_SIZES[:2]
    flags = " x ".join(f"args.{flag}" for flag in larger)
    if gpus > 1:
        raise ConfigError(
            f"recipe {recipe}: {product} makes {ranks} rank(s), and {nodes} node(s) have {gpus} GPUs each (nodes.gpus)",
            f"set {flags} to {nodes * gpus}, or nodes.gpus to the GPUs of each node",
        )
    raise ConfigError(
        f"recipe {recipe}: {product} makes {ranks} rank(s) of one node each, and the nodes are {nodes}",
        f"set {flags} to {nodes}, or name {ranks} node(s) in cluster.nodes, as nodes.min and nodes.max must allow; "
        "where a node has several GPUs, nodes.gpus says how many",
    )


def _parse_size(recipe: str, flag: str, value: JsonValue) -> int:
    number = parse_count(value, HIGHEST_SIZE)
    if not number:
        raise ConfigError(f"recipe {recipe}: args.{flag} is {value!r}: a number from 1 to {HIGHEST_SIZE} is needed")
    return number


def api_host(recipe: str, host: JsonValue) -> str:
    """The address where sparkd reaches the engine: no wildcard, nor localhost, of which vLLM takes IPv4's alone."""
    if host in (None, "", "0.0.0.0", "::", "localhost"):  # noqa: S104  # compared, not bound
        return LOOPBACK
    if not isinstance(host, str) or not _is_host(host):
        bare = host.strip("[]") if isinstance(host, str) else ""
        raise ConfigError(
            f"recipe {recipe}: args.host is {host!r}: an IP address or the name of a host is needed",
            f"write it without brackets: {bare}" if bare != host and _is_host(bare) else "such as 0.0.0.0",
        )
    return host


def _is_host(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        # A name of digits alone is an address with a mistake.
        return _HOST_NAME.fullmatch(text) is not None and not text.replace(".", "").isdecimal()
    return True


def gpu_memory_share(recipe: str, value: JsonValue) -> float | None:
    """The value of --gpu-memory-utilization; None where it is left out."""
    if value is None:
        return None
    share = 0.0
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        with suppress(ValueError):
            share = float(value)
    if not 0 < share <= 1:
        raise ConfigError(
            f"recipe {recipe}: args.gpu-memory-utilization is {value!r}: a number above 0, at most 1, is needed"
        )
    return share
