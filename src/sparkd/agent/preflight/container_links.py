"""Symlinks as a container sees them, where only its mounts are."""

from collections.abc import Sequence
from typing import NamedTuple

from sparkd.base.host.files import Files, follow
from sparkd.base.vllm.container_paths import is_below


class Bind(NamedTuple):
    """A folder or file of the node, and its path in a container."""

    source: str
    target: str


class _OutsideError(Exception):
    """A path that no mount of a container holds."""


def find_outside(files: Files, binds: Sequence[Bind], path: str) -> str:
    """The first path outside of all mounts that the links of a container's path lead to; empty where they stay inside.

    Such a link may be valid on the node, and lead to nothing in the container. A path of too many links counts too.
    """

    def read_link(here: str, rest: list[str]) -> str:
        """The target of the link at this path of the container, which the node may have elsewhere."""
        containing = (bind for bind in binds if is_below(here, bind.target))
        innermost = max(containing, key=lambda bind: len(bind.target), default=None)
        if innermost is None and not any(is_below(bind.target, here) for bind in binds):
            raise _OutsideError("/".join([here, *rest[::-1]]))
        if innermost is None or here == innermost.target:
            raise FileNotFoundError  # a folder of the container, no link
        return files.link(innermost.source + here[len(innermost.target) :])

    try:
        follow(path, read_link)
    except _OutsideError as error:
        return str(error)
    except OSError as error:  # too many links
        return str(error.filename)
    return ""
