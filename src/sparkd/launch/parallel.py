"""How many ranks the flags ask for: vLLM gives each node as many as size / nodes, and a Spark has one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from sparkd.errors import ConfigError
from sparkd.flags import JsonValue

SIZES = ("tensor-parallel-size", "pipeline-parallel-size", "prefill-context-parallel-size")
"""Whose product is the number of ranks of one engine, each 1 where it is left out (vLLM, ParallelConfig.world_size).

`-tp` and `-pp` cannot be written in a recipe: its flags have two dashes, and vLLM knows no `--tp`.
"""
HIGHEST = 10_000


def fits(recipe: str, args: Mapping[str, JsonValue], nodes: int, gpus: str) -> None:
    """Whether flags, placeholders filled, ask for one rank a node. Raises ConfigError.

    Without GPUs a node alone may run several ranks: they are processes of one container then.
    """
    sizes = {flag: _size(recipe, flag, args[flag]) for flag in SIZES if args.get(flag) is not None}
    ranks = prod(sizes.values())
    if ranks == nodes or (nodes == 1 and gpus == "none"):
        return
    told = " x ".join(f"args.{flag} {size}" for flag, size in sizes.items()) or f"no args.{SIZES[0]}"
    raise ConfigError(
        f"recipe {recipe}: {told} makes {ranks} rank(s), and cluster.nodes names {nodes} node(s) of one rank each",
        f"set args.{SIZES[0]} x args.{SIZES[1]} to {nodes}, or name {ranks} node(s) in cluster.nodes",
    )


def _size(recipe: str, flag: str, value: JsonValue) -> int:
    number = int(value[:9]) if isinstance(value, str) and value.isdecimal() and value.isascii() else value
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= HIGHEST:
        raise ConfigError(f"recipe {recipe}: args.{flag} is {value!r}: a number from 1 to {HIGHEST} is needed")
    return number
