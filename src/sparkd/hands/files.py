"""Files that sparkd writes: whole or not at all, also over a power cut."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

CACHE_ROOT = Path("/var/lib/sparkd/cache")
CACHES_KEPT = 3
"""Image caches kept: today's, yesterday's for a way back, and one more. DeepSeek's compile cache is a few GB."""

_IMAGE_FOLDER = re.compile(r"[0-9a-f]{64}")


def write(path: Path, text: str, mode: int, *, durable: bool, over: bool = True) -> None:
    """Replace `path` in one step. `durable`: also over a power cut (on ext4, a file without fsync came back empty).

    Without `over`, what there is stays: FileExistsError.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(fd, mode)
            if durable:
                os.fsync(fd)
        if over:
            Path(temporary).replace(path)
        else:
            path.hardlink_to(temporary)
            Path(temporary).unlink()
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def remove(path: Path) -> bool:
    """Whether there was one to remove; it does not come back after a power cut. Raises OSError."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    sync_folder(path.parent)
    return True


def sync_folder(folder: Path) -> None:
    """Make what was renamed or removed in a folder outlive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def cache_folder(image_id: str, name: str) -> Path:
    """The folder that outlives containers of this one image, made on first use."""
    folder = CACHE_ROOT / image_id.removeprefix("sha256:") / name
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    os.utime(folder.parent)
    return folder


def prune_caches(keep_image_id: str) -> tuple[str, ...]:
    """Remove the caches of images not used for longest, but for the last few. Gives what was removed."""
    if not CACHE_ROOT.is_dir():
        return ()
    folders = [p for p in CACHE_ROOT.iterdir() if _IMAGE_FOLDER.fullmatch(p.name) and p.is_dir() and not p.is_symlink()]
    newest_first = sorted(folders, key=lambda p: (p.name == keep_image_id.removeprefix("sha256:"), p.stat().st_mtime))[
        ::-1
    ]
    for folder in newest_first[CACHES_KEPT:]:
        shutil.rmtree(folder)
    return tuple(str(folder) for folder in newest_first[CACHES_KEPT:])
