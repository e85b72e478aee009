"""Makes, cleans and prunes compile caches: one set of folders per image, kept for the images used last."""

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from sparkd.agent.actions.shared_folders import SharedFolderError, refuse_shared
from sparkd.base.host import caches
from sparkd.base.lib.errors import LaunchError
from sparkd.base.lib.text import sanitize

KEPT = 3
"""Images that keep their caches: today's, yesterday's for a way back, and one more. DeepSeek's cache is a few GB."""
REMOVAL_PREFIX = ".removed-"
"""Prefix of a folder that is being removed: removing takes minutes, and the agent may end meanwhile."""


def make_cache_folder(image_id: str, name: str, root: Path = Path(caches.ROOT)) -> Path:
    """Make the cache's folder where it is missing, mark the image as used now, and return the folder.

    The image's folder is for root alone: a container may make its cache writable for all, and the next container runs
    what is in it. Raises LaunchError where others than root may write to the caches.
    """
    image, folder = root / image_id.removeprefix("sha256:"), _cache_folder(image_id, name, root)
    if not folder.is_dir():
        folder.mkdir(parents=True)
        folder.chmod(0o755)  # for an image with another user, whatever the umask
    image.chmod(0o700)
    os.utime(image)
    return folder


def remove_empty_kernels(image_id: str, name: str, root: Path = Path(caches.ROOT)) -> int:
    """Remove empty files of kernels, which a power cut leaves, before an engine loads one. Returns how many.

    Raises LaunchError where others than root may write to the caches.
    """
    count = 0
    cache_folder = _cache_folder(image_id, name, root)
    for file in caches.walk_files(str(cache_folder)):
        with suppress(OSError):  # a cache never blocks a start
            is_kernel = file.name.endswith(caches.KERNELS) and file.is_file(follow_symlinks=False)
            if is_kernel and not file.stat(follow_symlinks=False).st_size:
                remove_empty(cache_folder, file.path[len(str(cache_folder)) + 1 :])
                count += 1
    return count


def _cache_folder(image_id: str, name: str, root: Path) -> Path:
    try:
        refuse_shared(root)
    except SharedFolderError as error:
        raise LaunchError(error.reason, error.hint) from None
    return root / caches.path(image_id, name).removeprefix(f"{caches.ROOT}/")


def remove_empty(top: Path, below: str) -> None:
    """Remove an empty file. Follows no link that a container may have put in place of a folder. Raises OSError."""
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


def prune_caches(
    keep_image_id: str, mounted: Iterable[str], root: Path = Path(caches.ROOT)
) -> Iterator[tuple[str, str]]:
    """Remove the caches of all images except the KEPT last used. Raises OSError.

    Yields the path of each, and why it could not be removed, empty where it was.

    `mounted`: this machine's mount points. A folder that is one, or has one below it, is left alone.
    """
    if not root.is_dir():
        return
    refuse_shared(root)
    own_name, mount_points = keep_image_id.removeprefix("sha256:"), tuple(mounted)
    root = root.resolve()  # as the kernel names mounts, where /var/lib/sparkd is a symlink to a larger disk
    folders = [folder for folder in root.iterdir() if folder.is_dir() and not folder.is_symlink()]
    half_removed = [folder for folder in folders if folder.name.startswith(REMOVAL_PREFIX)]
    cache_folders = [folder for folder in folders if caches.IMAGE.fullmatch(folder.name)]
    # The image in use comes first, so it always keeps its caches.
    cache_folders.sort(key=lambda folder: (folder.name != own_name, -folder.stat().st_mtime))
    for folder in (*half_removed, *cache_folders[KEPT:]):
        if any(mount_point == str(folder) or mount_point.startswith(f"{folder}/") for mount_point in mount_points):
            yield str(folder), "something is mounted in it"
            continue
        try:
            # Renamed first: half removed, with a new modification time, it would look like a cache in use.
            renamed = folder
            if folder not in half_removed:
                renamed = folder.rename(folder.with_name(f"{REMOVAL_PREFIX}{folder.name}"))
            yield str(folder), _remove_tree(renamed)
        except OSError as error:
            yield str(folder), error.strerror or type(error).__name__


def _remove_tree(folder: Path) -> str:
    """Remove a folder; why it could not be, empty where it was. Raises OSError."""
    # A container may nest folders without limit, and shutil.rmtree holds a descriptor of each: up to all there are.
    command = ("rm", "-rf", "--one-file-system", "--", folder)
    removal = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    reason = removal.stderr.decode("utf-8", "replace").partition("\n")[0] or f"rm ended with {removal.returncode}"
    return sanitize(reason) if removal.returncode else ""
