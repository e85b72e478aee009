"""Folders that outlive containers: compile caches, one set for each image, and none for images of long ago."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

ROOT = Path("/var/lib/sparkd/cache")
KEPT = 3
"""Today's image, yesterday's for a way back, and one more. DeepSeek's compile cache is a few GB."""
DOOMED = ".removed-"
"""How a folder is called from when it is given up: to remove it takes minutes, in which the agent may end."""

_IMAGE = re.compile(r"[0-9a-f]{64}")


class Pruned(Struct, frozen=True):
    path: str
    error: str = ""
    """Why it could not be removed; empty where it was."""


def folder(image_id: str, name: str) -> Path:
    """Made on first use."""
    found = ROOT / image_id.removeprefix("sha256:") / name
    found.mkdir(mode=0o755, parents=True, exist_ok=True)
    os.utime(found.parent)
    return found


def prune(keep_image_id: str, mounted: Iterable[str], root: Path = ROOT) -> Iterator[Pruned]:
    """Remove the caches of images not used for longest, but for the last few, one by one. Raises OSError.

    `mounted`: where this machine has mounts. What has one below it is left alone: it is not the cache's.
    """
    if not root.is_dir():
        return
    own, targets = keep_image_id.removeprefix("sha256:"), tuple(mounted)
    root = root.resolve()  # as the kernel names mounts, where /var/lib/sparkd is a symlink to a larger disk
    folders = [one for one in root.iterdir() if one.is_dir() and not one.is_symlink()]
    begun = [one for one in folders if one.name.startswith(DOOMED)]
    whole = sorted((one for one in folders if _IMAGE.fullmatch(one.name)), key=lambda one: _age(one, own))
    for one in (*begun, *whole[KEPT:]):
        if any(target == str(one) or target.startswith(f"{one}/") for target in targets):
            yield Pruned(str(one), "something is mounted in it")
            continue
        try:
            # A name of its own first: half removed, and with the time of its removal, it would pass for one in use.
            doomed = one if one in begun else one.rename(one.with_name(f"{DOOMED}{one.name}"))
            shutil.rmtree(doomed)
        except OSError as error:
            yield Pruned(str(one), error.strerror or type(error).__name__)
        else:
            yield Pruned(str(one))


def _age(folder: Path, own: str) -> tuple[bool, float]:
    """The one in use is the youngest of all."""
    return folder.name != own, -folder.stat().st_mtime
