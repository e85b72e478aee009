"""Paths inside a container, which sees its mounts and nothing else: where their symlinks lead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sparkd.host.files import MAX_LINKS, Files


class Bind(NamedTuple):
    """A folder or file of the node, and its path in the container."""

    source: str
    target: str


def find_outside(files: Files, binds: Sequence[Bind], path: str) -> str:
    """The first path outside of all mounts that the links of a container's path lead to; empty where there is none.

    Such a link may be valid on the node, and lead to nothing in the container.
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
            target = files.link(bind.source + here[len(bind.target) :])
        except OSError:  # no link, or nothing there: opening it reports that
            continue
        links += 1
        if links > MAX_LINKS:
            return here
        done = [] if target.startswith("/") else done[:-1]
        todo.extend(target.split("/")[::-1])
    return ""


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
