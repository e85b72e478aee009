"""Files of an image, read on the node where docker's overlay2 keeps its layers: nothing is run or unpacked for it.

A layer is a folder. Symlinks in it are an image's own and would lead astray on the node, so every path is walked here
name by name, as the container's kernel would walk the layers laid over each other.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from sparkd.host.files import MAX_LINKS, Kind

if TYPE_CHECKING:
    from sparkd.host.files import Files
    from sparkd.lib.dockerd.reader import DockerReader

MOST_LAYERS = 128
"""As many as overlay2 itself can lay over each other."""
OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
"""The mark of a folder that hides the ones below it (overlayfs.rst); the second is a rootless docker's."""


REDIRECT = ("trusted.overlay.redirect", "user.overlay.redirect")
"""The mark of a folder that was renamed in its layer, and goes on below under its old name."""


class ElsewhereError(Exception):
    """A path leads to what the container has mounted, which is no matter of the image."""


class Stored(Struct, frozen=True):
    layers: tuple[str, ...]
    """Their folders, topmost first; none where docker keeps the image otherwise, as in containerd's store."""
    path: str
    """PATH as the image sets it; empty where it does not."""


def read(docker: DockerReader, ref: str) -> Stored:
    """Raises DockerUnreadableError."""
    match docker.image(ref):
        case {"GraphDriver": {"Name": "overlay2", "Data": dict(data)}, "Config": dict() | None as config}:
            lower = data.get("LowerDir") or ""
            folders = [str(data.get("UpperDir")), *(lower.split(":") if lower and isinstance(lower, str) else ())]
            return Stored(tuple(folders) if all(one.startswith("/") for one in folders) else (), _path(config or {}))
        case _:
            return Stored((), "")


def _path(config: Mapping[object, object]) -> str:
    env = config.get("Env")
    words = [str(one) for one in env] if isinstance(env, list) else []
    return next((one.removeprefix("PATH=") for one in words if one.startswith("PATH=")), "")


def find(files: Files, layers: Sequence[str], path: str, mounted: Iterable[str] = ()) -> str | None:
    """Where the node has a file of the image; None where the image has none. Raises ElsewhereError, OSError."""
    todo = path.split("/")[::-1]
    done: list[tuple[str, Sequence[str]]] = []
    links = 0
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        if name == "..":
            del done[-1:]
            continue
        here = "/".join(["", *(known for known, _ in done), name])
        if any(here == one or here.startswith(f"{one}/") for one in mounted):
            raise ElsewhereError(here)
        above = done[-1][1] if done else layers[:MOST_LAYERS]
        kind, found = _look_up(files, [f"{folder}/{name}" for folder in above])
        if kind is Kind.FOLDER:
            done.append((name, found))
        elif kind is Kind.LINK and links < MAX_LINKS:
            links += 1
            said = files.link(found[0])
            done = [] if said.startswith("/") else done
            todo.extend(said.split("/")[::-1])
        else:
            return found[0] if kind is Kind.FILE and not todo else None
    return None


def _look_up(files: Files, among: Iterable[str]) -> tuple[Kind | None, list[str]]:
    """What a name is when the layers lie over each other, and where: a folder may be in many. Raises OSError."""
    folders: list[str] = []
    for path in among:
        try:
            kind = files.kind(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if kind is not Kind.FOLDER:  # a device is a whiteout: what is below it is gone
            return (Kind.FOLDER, folders) if folders else (kind, [path])
        if any(files.attribute(path, one) for one in REDIRECT):
            raise OSError(errno.EXDEV, "a folder that was renamed in its layer", path)
        folders.append(path)
        if any(files.attribute(path, one) == "y" for one in OPAQUE):
            break
    return (Kind.FOLDER, folders) if folders else (None, [])
