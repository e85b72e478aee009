"""Predicates on the environment. A fork may read variables that no list has, so only misprints of names are certain."""

import re
from collections.abc import Mapping
from itertools import islice
from operator import methodcaller

from msgspec import Struct, toml

from sparkd.base.lib import read_data
from sparkd.base.vllm.flag import SHIPPED, misprint_of
from sparkd.base.vllm.lint.launch import Launch, Matches
from sparkd.base.vllm.releases import add_history, load_releases

MOST_NAMES = 200
"""Names that are judged for a misprint, which takes 0.3 ms each; a recipe has 40 variables at most."""
_OPTION = re.compile(r"([A-Za-z_]{1,40})=([^,=]{1,40})")
_OTHER_DEVICE = re.compile(r"\^?=?(mlx5_\d+|ib\d+|eth\d+)\b", re.ASCII)
"""Names that a Spark does not give to its devices: it has rocep1s0f0 and enp1s0f0np0. NCCL knows a prefix: ^ and =."""
_ADDRESS = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?", re.ASCII)

_SAME_ON_ALL = ("NCCL_COMM_ID", "NCCL_IB_ADDR_RANGE")
"""Variables with an address that is right on all nodes: the one where all ranks meet, and that of a net."""


class Variables(Struct, frozen=True, forbid_unknown_fields=True):
    names: tuple[str, ...]
    removed: Mapping[str, str]
    """Variables that vLLM once had, each with its replacement."""


VARIABLES = toml.decode(read_data("variables.toml"), type=Variables)
FAMILIES = frozenset(name.partition("_")[0] for name in (*VARIABLES.names, "VLLM_"))
"""First words of names that are judged for misprints. A name with another one may be of somebody's own program."""


def misprinted(launch: Launch) -> Matches:
    known = dict.fromkeys((*launch.vllm.variables, *VARIABLES.names))
    real = {*known, *(name for table in load_releases() for name in table.variables)}
    unknown_names = (name for name in launch.env if name.partition("_")[0] in FAMILIES and name not in real)
    for name in islice(unknown_names, MOST_NAMES):
        if correct_name := misprint_of(name, known):
            yield f"env.{name}", f"{name} is no variable that is known here: {correct_name} is"


def removed(launch: Launch) -> Matches:
    if not launch.vllm.variables:  # a build of which only the flags are known
        return
    replacements, removed_names = VARIABLES.removed, {*VARIABLES.removed}
    if launch.vllm.image or launch.vllm.version != SHIPPED.version:  # else the release is not known
        releases = [{*table.variables} for table in load_releases()]
        ever_known = {name for variables in releases for name in variables if name.startswith("VLLM_")}
        # A name that the oldest and the newest release have was not removed, even if this build does not list it.
        in_oldest_and_newest = releases[0] & releases[-1]
        removed_names |= ever_known - in_oldest_and_newest
    for name in launch.env:
        if name in removed_names and name not in launch.vllm.variables:
            reason = f"{name}={launch.env[name][:40]} does nothing in {launch.vllm.vllm}"
            has = methodcaller("has", name)
            yield f"env.{name}", f"{reason}: {replacements[name]}" if name in replacements else add_history(reason, has)


def wrong_value(launch: Launch) -> Matches:
    yield from _find_allocator_options(launch)
    if launch.gpu:
        yield from _find_visible_devices(launch)
        yield from _find_other_devices(launch)


def _find_allocator_options(launch: Launch) -> Matches:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if match := _OPTION.search(launch.env.get(name, "")):
            yield f"env.{name}", f"{name}={match[0]}: PyTorch reads it with a colon, {match[1]}:{match[2]}"


def _find_visible_devices(launch: Launch) -> Matches:
    visible, has_one_gpu = launch.env.get("CUDA_VISIBLE_DEVICES", ""), launch.gpus == 1
    is_right = visible == "0" if has_one_gpu else visible.count(",") + 1 == launch.gpus
    if not is_right and re.fullmatch(r"\d+(,\d+)*", visible):
        need = "a Spark has one GPU, 0" if has_one_gpu else f"nodes.gpus of the recipe is {launch.gpus}"
        yield "env.CUDA_VISIBLE_DEVICES", f"CUDA_VISIBLE_DEVICES={visible[:40]}: {need}"


def _find_other_devices(launch: Launch) -> Matches:
    for name in ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        devices = launch.env.get(name, "").split(",")
        if devices[0].strip().startswith("^"):  # of devices to leave out, the first shows whether names are a Spark's
            del devices[1:]
        matches = map(_OTHER_DEVICE.match, map(str.strip, devices))
        if match := next(filter(None, matches), None):
            yield f"env.{name}", f"{name}={match[0]}: no device of a Spark is called {match[1]}"


def has_node_address(name: str, value: str) -> bool:
    """Whether the variable has the address of one node, and needs another value on other nodes."""
    is_address = name.startswith(("GLOO_", "NCCL_", "UCX_")) and name not in _SAME_ON_ALL and _ADDRESS.fullmatch(value)
    return bool(is_address or (value and name in ("VLLM_HOST_IP", "MASTER_ADDR")))


def foreign_address(launch: Launch) -> Matches:
    if launch.nodes < 2:
        return
    for name, value in launch.env.items():
        known_addresses = launch.addresses[: 1 if name == "VLLM_HOST_IP" else 2]
        if has_node_address(name, value) and not {value, value.partition(":")[0]} & {*known_addresses}:
            reason = "all nodes get the address of one"
            if known_addresses:
                own, head = launch.addresses
                reason = f"this node is {own}, the head {head}"
            yield f"env.{name}", f"{name}={value[:60]}: {reason}"
