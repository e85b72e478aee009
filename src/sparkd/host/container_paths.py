"""What a container finds behind a path: symlinks are followed in its own world, which has the mounts and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sparkd.host.files import MAX_LINKS, Files


class Bind(NamedTuple):
    """A folder or file of the node, and where the container has it."""

    source: str
    target: str


def leads_out(files: Files, binds: Sequence[Bind], path: str) -> str:
    """Where the links of a container's path lead that no mount has; empty where they stay within the mounts.

    A link that is fine on the node may lead to nothing in there: docker follows the links of a mount's source alone.
    """
    todo = path.split("/")[::-1]
    done: list[str] = []
    links = 0
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            del done[-1:]
            continue
        done.append(part)
        here = "/" + "/".join(done)
        bind = max((one for one in binds if _within(here, one.target)), key=lambda one: len(one.target), default=None)
        if bind is None:
            if any(_within(one.target, here) for one in binds):
                continue
            return "/" + "/".join([*done, *todo[::-1]])
        if here == bind.target:
            continue
        try:
            said = files.link(bind.source + here[len(bind.target) :])
        except OSError:  # no link, or nothing there: whoever opens it is told
            continue
        links += 1
        if links > MAX_LINKS:
            return here
        done = [] if said.startswith("/") else done[:-1]
        todo.extend(said.split("/")[::-1])
    return ""


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
