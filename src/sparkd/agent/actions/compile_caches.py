"""Compile caches: one set of folders per image, below one root, of which the images used last keep theirs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from sparkd.agent.actions.shared_folders import SharedFolderError, refuse_shared
from sparkd.base.host import caches
from sparkd.base.lib.errors import LaunchError
from sparkd.base.lib.text import sanitize

KEPT = 3
"""Today's image, yesterday's for a way back, and one more. DeepSeek's compile cache is a few GB."""
DOOMED = ".removed-"
"""Prefix of a folder that is being removed: that takes minutes, in which the agent may end."""


class Pruned(Struct, frozen=True):
    path: str
    error: str = ""
    """Why it could not be removed; empty where it was."""


def make_cache_folder(image_id: str, name: str, root: Path = Path(caches.ROOT)) -> Path:
    """The folder, made on first use; marks the image as used now.

    A container may open its folder to all, and the next one runs what is in it: only root gets there. Raises
    LaunchError where others may.
    """
    image, folder = root / image_id.removeprefix("sha256:"), _cache_folder(image_id, name, root)
    if not folder.is_dir():
        folder.mkdir(parents=True)
        folder.chmod(0o755)  # for an image with another user, whatever the umask
    image.chmod(0o700)
    os.utime(image)
    return folder


def clear_torn(image_id: str, name: str, root: Path = Path(caches.ROOT)) -> int:
    """Remove files of kernels without a byte, before an engine loads one; how many. A power cut leaves such files.

    Raises LaunchError where others than root may write to the caches.
    """
    cleared = 0
    top = _cache_folder(image_id, name, root)
    for file in caches.entries(str(top)):
        with suppress(OSError):  # a cache never blocks a start
            kernel = file.name.endswith(caches.KERNELS) and file.is_file(follow_symlinks=False)
            if kernel and not file.stat(follow_symlinks=False).st_size:
                remove_empty(top, file.path[len(str(top)) + 1 :])
                cleared += 1
    return cleared


def _cache_folder(image_id: str, name: str, root: Path) -> Path:
    try:
        refuse_shared(root)
    except SharedFolderError as error:
        raise LaunchError(error.reason, error.hint) from None
    return root / caches.path(image_id, name).removeprefix(f"{caches.ROOT}/")


def remove_empty(top: Path, below: str) -> None:
    """Remove a file without a byte, by no link that a container has put in place of a folder since. Raises OSError."""
    *folders, name = below.split("/")
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = inner
        if not os.stat(name, dir_fd=fd, follow_symlinks=False).st_size:
            os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)


def prune_caches(keep_image_id: str, mounted: Iterable[str], root: Path = Path(caches.ROOT)) -> Iterator[Pruned]:
    """Remove the caches of images not used for longest, except the last few, one by one. Raises OSError.

    `mounted`: this machine's mount points. A folder with one below it is left alone.
    """
    if not root.is_dir():
        return
    refuse_shared(root)
    own, targets = keep_image_id.removeprefix("sha256:"), tuple(mounted)
    root = root.resolve()  # as the kernel names mounts, where /var/lib/sparkd is a symlink to a larger disk
    folders = [folder for folder in root.iterdir() if folder.is_dir() and not folder.is_symlink()]
    begun = [folder for folder in folders if folder.name.startswith(DOOMED)]
    whole = [folder for folder in folders if caches.IMAGE.fullmatch(folder.name)]
    whole.sort(key=lambda folder: (folder.name != own, -folder.stat().st_mtime))  # the one in use is never old
    for folder in (*begun, *whole[KEPT:]):
        if any(target == str(folder) or target.startswith(f"{folder}/") for target in targets):
            yield Pruned(str(folder), "something is mounted in it")
            continue
        try:
            # Renamed first: half removed, and with the time of its removal, it would pass for one in use.
            doomed = folder if folder in begun else folder.rename(folder.with_name(f"{DOOMED}{folder.name}"))
            yield Pruned(str(folder), _remove_tree(doomed))
        except OSError as error:
            yield Pruned(str(folder), error.strerror or type(error).__name__)


def _remove_tree(folder: Path) -> str:
    """Why it could not be removed; empty where it was. Raises OSError."""
    # A container makes folders as deep as it likes: shutil.rmtree keeps a descriptor of each, up to all.
    remove = ("rm", "-rf", "--one-file-system", "--", folder)
    done = subprocess.run(remove, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    reason = done.stderr.decode("utf-8", "replace").partition("\n")[0] or f"rm ended with {done.returncode}"
    return sanitize(reason) if done.returncode else ""
