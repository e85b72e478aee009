"""Files and devices of the node that a recipe's container reaches: warnings, since a person may want that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from posixpath import normpath
from typing import TYPE_CHECKING

from msgspec import Struct, toml

from sparkd.base.lib import read_data
from sparkd.base.vllm.container_paths import is_below
from sparkd.base.vllm.lint.rules import Issue

if TYPE_CHECKING:
    from sparkd.base.recipes.schema import Container


class _Reach(Struct, frozen=True, forbid_unknown_fields=True):
    """Places of the node, and what their danger is. `written`: to a container that may write there alone."""

    danger: str
    paths: tuple[str, ...]
    written: bool = False


REACHES = toml.decode(read_data("reach.toml"), type=dict[str, tuple[_Reach, ...]])["places"]
DEVICES = "container.devices"
HEAD_FILES = "/var/lib/sparkd/head-files"
"""Folder of files that the head of a cluster has sent with its recipe. It holds none of this node's own."""
_ALIASES = {"/var/run": "/run", **{f"/{name}": f"/usr/{name}" for name in ("bin", "lib", "sbin")}}
"""Folders that are symlinks on each node."""


def find_reach(
    container: Container, readable: Mapping[str, str], resolve: Callable[[str], str] = str
) -> Iterator[Issue]:
    """Warn of what the container reaches. `readable`: further paths, by key. `resolve` follows symlinks."""
    if container.privileged:
        reason = "the container is privileged: root in it is root on the node, with every device"
        hint = "RDMA needs no more than devices: [/dev/infiniband]"
        yield Issue("reach", False, "container.privileged", reason, hint)
    paths = [(key, path, False) for key, path in readable.items()]
    for key, path, written in dict.fromkeys((*paths, *given_paths(container))):
        if path.startswith(f"{HEAD_FILES}/"):
            continue
        if danger := _find_danger(path, written) or _find_danger(resolve(path), written):
            reason = f"the container gets {path} of the node: {danger}"
            yield Issue("reach", False, key, reason, "give it no more than the engine needs")


def given_paths(container: Container) -> Iterator[tuple[str, str, bool]]:
    """Files and devices of the node that the container gets: key, path, and whether it may write there."""
    for volume in container.volumes:
        yield "container.volumes", volume.source, not volume.read_only
    for path in container.devices:
        yield DEVICES, path, True


def _find_danger(path: str, written: bool) -> str:
    path = f"/{normpath(path).lstrip('/')}"
    if path == "/":
        return "it is all of its files"
    for alias, folder in _ALIASES.items():
        if is_below(path, alias):
            path = folder + path.removeprefix(alias)
    for reach in REACHES:
        if written >= reach.written and any(_overlap(path, place) for place in reach.paths):
            return reach.danger
    return ""


def _overlap(path: str, place: str) -> bool:
    """Whether both are the same, or one lies in the other: only as many parts are compared as the shorter one has."""
    return all(map(fnmatchcase, path.split("/"), place.split("/")))
