"""Makes, cleans and prunes compile caches: one set of folders per image, kept for the images used last."""

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct

from sparkd.agent.actions.shared_folders import SharedFolderError, refuse_shared
from sparkd.base.host import caches
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import LaunchError
from sparkd.base.lib.text import sanitize

KEPT = 3
"""Images that keep their caches: today's, yesterday's for a way back, and one more. DeepSeek's cache is a few GB."""
REMOVAL_PREFIX = ".removed-"
"""Prefix of a folder that is being removed: removing takes minutes, and the agent may end meanwhile."""
_CHECKED = (*caches.KERNELS, ".json", "vllm_compile_cache.py")
"""Endings of files that may be cut. Triton describes each kernel in JSON, and vLLM lists its compiled graphs in Python:
an empty one ends an engine, too."""
_LIST_PREFIX = "__grp__"
"""Prefix of Triton's list of a kernel's files. Triton takes a kernel that has one for a whole one."""
_BINARIES = (".so", ".o", ".cubin", ".hsaco")
_ELF = Struct("<40xQ10xHH2x")
"""The header of an ELF file of 64 bits: where its table of sections begins, and the size and number of the entries."""


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


def remove_cut_kernels(image_id: str, name: str, root: Path = Path(caches.ROOT)) -> int:
    """Remove files of kernels that a power cut has left without content or without their end. Returns how many.

    To be called before an engine loads one. Raises LaunchError where others than root may write to the caches.
    """
    count = 0
    cache_folder = _cache_folder(image_id, name, root)
    for file in caches.walk_files(str(cache_folder)):
        with suppress(OSError):  # a cache never blocks a start
            if file.name.endswith(_CHECKED) and file.is_file(follow_symlinks=False) and _is_cut(file.path):
                remove_cut(cache_folder, file.path[len(str(cache_folder)) + 1 :])
                count += 1
    return count


def _is_cut(path: str) -> bool:
    """Whether a file is empty, or a binary that begins with zeros alone, or whose table of sections, which linkers and
    compilers put last, is beyond its end. Raises OSError.
    """
    size_bytes = os.lstat(path).st_size
    if path.endswith(".json"):
        return _misleads_triton(path, size_bytes)
    if not size_bytes or not path.endswith(_BINARIES):
        return not size_bytes
    head = Files().head(path, _ELF.size)
    if len(head) < _ELF.size and b"\x7fELF".startswith(head[:4]):
        return True
    if head.startswith(b"\x7fELF\x02\x01"):
        start, entry_bytes, entries = _ELF.unpack(head)
        return bool(size_bytes < start + entry_bytes * entries)
    return not head.strip(b"\0")


def _misleads_triton(path: str, size_bytes: int) -> bool:
    """Whether it is the empty description of a listed kernel, or the list of one that is empty or lacks the binary."""
    folder, _, name = path.rpartition("/")
    if not name.startswith(_LIST_PREFIX):
        return not size_bytes and os.path.lexists(f"{folder}/{_LIST_PREFIX}{name}")
    kernel = f"{folder}/{name.removeprefix(_LIST_PREFIX).removesuffix('.json')}"
    has_binary = any(os.path.lexists(kernel + ending) for ending in (".cubin", ".hsaco"))
    return not size_bytes or (os.path.lexists(f"{kernel}.json") and not has_binary)


def _cache_folder(image_id: str, name: str, root: Path) -> Path:
    try:
        refuse_shared(root)
    except SharedFolderError as error:
        raise LaunchError(error.reason, error.hint) from None
    return root / caches.path(image_id, name).removeprefix(f"{caches.ROOT}/")


def remove_cut(top: Path, below: str) -> None:
    """Remove a file that is cut, and the list by which Triton would take its kernel for a whole one.

    Follows no link that a container may have put in place of a folder. Raises OSError.
    """
    *folders, name = below.split("/")
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = inner
        if _is_cut(f"/proc/self/fd/{fd}/{name}"):
            with suppress(FileNotFoundError):  # first: what is left of a kernel without its list is compiled again
                os.unlink(f"{_LIST_PREFIX}{name.rpartition('.')[0]}.json", dir_fd=fd)
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
