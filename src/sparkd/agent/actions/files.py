"""Write and remove files: whole or not at all, also over a power cut. Compile caches: one set of folders per image."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from sparkd.agent.actions.shared_folders import SharedFolderError, refuse_shared
from sparkd.base.host import caches
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import LaunchError, UsageError
from sparkd.base.lib.lock import hold, open_lock
from sparkd.base.lib.text import sanitize
from sparkd.base.plan.script import HOSTS_TARGET
from sparkd.base.state.file import FOLDER, PUBLIC, Content, StateFile, ignore_report

HOSTS_LIMIT_BYTES = 64 << 20
"""Most of the node's own /etc/hosts: long lists of blocked names have some 10 MB."""
KEPT = 3
"""Today's image, yesterday's for a way back, and one more. DeepSeek's compile cache is a few GB."""
_REMEDIES = {errno.ENOSPC: "make room: df -h", errno.EROFS: "it is mounted read-only: findmnt --options ro"}
SETUP_LOCK = "run/sparkd/setup.lock"
LOCK_SECONDS = 5.0
"""Limit for another process to write one file."""
DOOMED = ".removed-"
"""Prefix of a folder that is being removed: that takes minutes, in which the agent may end."""


def write(path: Path, content: str | bytes, mode: int, *, durable: bool, over: bool = True) -> None:
    """Replace `path` in one step. `durable`: also over a power cut (on ext4, a file without fsync came back empty).

    Without `over`, an existing file stays: FileExistsError. SharedFolderError: `as_owner` writes there.
    """
    refuse_shared(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
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
    """Remove a file for good, also over a power cut; whether there was one. Raises OSError, SharedFolderError."""
    refuse_shared(path.parent)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    sync_folder(path.parent)
    return True


def write_hosts(files: Files, path: Path, names: Iterable[tuple[str, str]]) -> None:
    """Write the node's own /etc/hosts, as docker gives it to a container in the node's network, with these names.

    Raises LaunchError.
    """
    own = b""
    try:
        with suppress(FileNotFoundError):
            own = files.bytes(HOSTS_TARGET, HOSTS_LIMIT_BYTES)
    except OSError as error:
        raise LaunchError(f"{HOSTS_TARGET} can't be read: {error.strerror}", f"ls -lL {HOSTS_TARGET}") from None
    added = "".join(f"{address} {name}\n" for address, name in names)
    write(path, own + b"\n" * (own[-1:] not in (b"", b"\n")) + added.encode(), 0o644, durable=False)


def exchange(files: Files, file: StateFile[Content], before: Content | None, after: Content | None) -> bool:
    """Write `after` in place of `before`, or remove the file where that is None; it survives a power cut.

    False where the file holds something else. What is no state file counts as none. Raises OSError.
    """

    def dump(value: Content | None) -> str | None:
        return None if value is None else file.encode(value)

    path = Path(files.real(FOLDER), file.name)
    with alone(path.with_name(f".{path.name}.lock")):
        if dump(file.load(files, ignore_report)) != dump(before):
            return False
        try:
            if after is None:
                return remove(path)
            write(path, file.encode(after), file.mode, durable=True)
            return True
        finally:
            if file.notice:  # rather once too often; a full /run does not undo what is written
                with suppress(OSError):
                    write(Path(files.real(file.notice)), "", PUBLIC, durable=False)


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Let one process in at a time. Raises OSError where another one has the lock."""
    refuse_shared(lock.parent)
    with hold(open_lock(lock), LOCK_SECONDS) as held:
        if not held:
            raise BlockingIOError(errno.EAGAIN, "another process writes it")
        yield


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def usage_error(reason: str, hint: str = "run it as root") -> Iterator[None]:
    """Raises UsageError in place of OSError."""
    try:
        yield
    except SharedFolderError as error:
        raise UsageError(f"{reason}: {error.reason}", error.hint) from None
    except OSError as error:
        raise UsageError(f"{reason}: {error.strerror or error}", _REMEDIES.get(error.errno or 0, hint)) from None


@contextmanager
def locked(root: Path, name: str = SETUP_LOCK, commands: str = "`sparkd init` or `tune`") -> Iterator[None]:
    """Let one of these commands in at a time. Raises UsageError where another one is under way."""
    lock = root / name
    with usage_error(f"{lock} can't be opened"):
        refuse_shared(lock.parent)
        fd = open_lock(lock)
    with hold(fd) as held:
        if not held:
            raise UsageError(f"another {commands} is under way", "wait for it")
        yield


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
    whole = sorted(
        (folder for folder in folders if caches.IMAGE.fullmatch(folder.name)), key=lambda folder: _age(folder, own)
    )
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


def _age(folder: Path, own: str) -> tuple[bool, float]:
    """Sorts the one in use as the youngest of all."""
    return folder.name != own, -folder.stat().st_mtime
