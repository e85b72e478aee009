"""Access of others than root: to a secret, and to a file that root runs, reads as a recipe or gives to a container."""

import errno
import os
from contextlib import suppress
from shlex import quote
from stat import S_ISVTX

from sparkd.base.host import disks
from sparkd.base.host.files import Files, Kind, Opened, follow
from sparkd.base.lib.errors import AwaitedError, ConfigError, unreadable

LOCAL = frozenset(
    ("bcachefs", "btrfs", "devtmpfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "overlay", "squashfs", "tmpfs", "vfat",
     "xfs", "zfs")
)  # fmt: skip
"""Kinds of file systems that no other machine and no program of a user's changes."""


def _list_steps(files: Files, path: str) -> list[str]:
    """Each path that is looked up on the way to `path`, symlinks followed; of a circle, its links."""
    steps = list[str]()

    def read_link(here: str, _rest: list[str]) -> str:
        steps.append(here)
        return files.link(here)

    with suppress(OSError):
        follow(path, read_link)
    return steps


def find_writable(files: Files, path: str, *trusted: int, sticky: bool = False) -> str:
    """The path that others than root may write to: the file, or a folder or symlink on its way; empty without one.

    `trusted`: uids that may write to it, too. A sticky folder on the way counts only where the next step is missing:
    anybody may make it, while nobody can replace another owner's. `sticky`: `path` itself may be such a folder. A step
    that root can't look at counts, as in a user's own file system; for anybody else it ends the search.
    """
    steps, others_may_write = ["/", *_list_steps(files, path)], dict[str, bool]()
    owners = (files.owner_uid, *trusted)
    for step in steps:
        try:
            facts = files.lstat(step)
        except (FileNotFoundError, NotADirectoryError):
            return parent if others_may_write.get(parent := step.rpartition("/")[0] or "/") else ""
        except OSError:
            return "" if os.geteuid() else step
        others_may_write[step] = facts.writable_by_others and facts.kind is not Kind.LINK
        is_fixed = facts.permissions & S_ISVTX and (sticky or step != steps[-1])
        if facts.uid not in owners or (others_may_write[step] and not is_fixed):
            return step
    return ""


def find_writable_parent(files: Files, path: str) -> str:
    """A folder where another than root may put something else on the way to `path`; empty where there is none.

    Raises OSError where the mounts can't be read.
    """
    folders = [step.rpartition("/")[0] or "/" for step in _list_steps(files, path)]
    kinds = {mount.target: mount.kind for mount in disks.read_mounts(files, "self")}
    for folder in folders:
        is_local = kinds.get(disks.find_nearest(kinds, folder)) in LOCAL
        if find_writable(files, folder, os.geteuid()) or not is_local:
            return folder
    return ""


def refuse_writable(files: Files, path: str, what: str) -> None:
    """Raises AwaitedError where others than root, or than the user who runs this, may change the file."""
    writable = find_writable(files, path, os.geteuid())
    if not writable:
        return
    reason = f"others than root may write to {writable}"
    target, hint = quote(writable), "move it to a folder that only root may write to, such as /etc/sparkd"
    try:
        is_link = files.lstat(writable).kind is Kind.LINK
        if writable == path or f"{writable}/".startswith("/etc/sparkd/"):  # there sparkd looks for it
            repair = f"sudo chown root: {target} && sudo chmod go-w {target}"
            hint = f"look at what is in it, then: {f'sudo chown -h root: {target}' if is_link else repair}"
    except OSError as error:  # as on a disk that fails, or a user's own file system
        reason = f"root can't look at {writable}: {error.strerror}"
        hint = f"look at: sudo dmesg; if it is a user's mount: sudo umount {target}"
    raise AwaitedError(f"{what} {path} is not used: {reason}", hint)


def read_private(files: Files, path: str, limit: int, *owners: int) -> Opened:
    """A file that its owner alone can read. Raises FileNotFoundError, or ConfigError for any other fault.

    `owners`: uids, one of which it has to belong to; root's without any.
    """
    try:
        opened = files.itself(path, limit)
    except FileNotFoundError:
        raise
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        reason = "is a symlink, needed is the file itself" if is_link else error.strerror or str(error)
        raise unreadable(error)(f"{path}: {reason}", f"ls -l {quote(path)}") from None
    facts = opened.facts
    if facts.kind is not Kind.FILE:
        raise ConfigError(f"{path}: is no regular file", f"ls -l {quote(path)}")
    if facts.uid not in (owners or (files.owner_uid,)):
        raise ConfigError(f"{path}: belongs to uid {facts.uid}, needed is root", f"sudo chown root:root {quote(path)}")
    if facts.permissions & 0o077:
        raise ConfigError(f"{path}: has mode {facts.permissions:04o}, needed is 0600", f"sudo chmod 600 {quote(path)}")
    return opened
