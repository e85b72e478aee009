"""Who else may change a file that root is to run, read as a recipe, or give to a container."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from shlex import quote
from stat import S_ISVTX

from sparkd.host.files import Files, Kind, follow
from sparkd.lib.errors import AwaitedError

ROOT = (0,)


def find_writable(files: Files, path: str, owners: Collection[int] = ROOT) -> str:
    """What others than `owners` may write to: the file, or a folder or symlink on the way to it. Empty where nothing.

    In a sticky folder nobody can replace what an owner has there. The search ends at what is unreadable.
    """
    way = ["/"]

    def read_link(here: str, _rest: list[str]) -> str:
        way.append(here)
        return files.link(here)

    with suppress(OSError):
        follow(path, read_link)
        for here in way:
            found = files.lstat(here)
            sticky = found.permissions & S_ISVTX and here != way[-1]
            if found.uid not in owners or (found.writable_by_others and found.kind is not Kind.LINK and not sticky):
                return here
    return ""


def refuse_writable(files: Files, path: str, what: str) -> None:
    """Raises AwaitedError where others than root, or than the user who runs this, may change the file."""
    writable = find_writable(files, path, (*ROOT, os.geteuid()))
    if not writable:
        return
    hint = f"look at what is in it, then: chown root: {quote(path)} && chmod go-w {quote(path)}"
    if writable != path:
        hint = "move it to a folder that only root may write to, such as /etc/sparkd"
    raise AwaitedError(f"{what} {path} is not used: others than root may write to {writable}", hint)
