"""The few kernel calls that Python 3.11 lacks: unshare, setns, and making mounts private."""

import ctypes
import os

NEW_MOUNTS, NEW_PIDS, NEW_NET = 0x00020000, 0x20000000, 0x40000000
_REC, _SLAVE, _PRIVATE = 0x4000, 1 << 19, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def _must(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _must(_libc.unshare(flags), "unshare")


def setns(handle: int, flags: int) -> None:
    """For the calling thread only."""
    _must(_libc.setns(handle, flags), "setns")


def own_mounts(follow_host: bool = False) -> None:
    """Mounts of our own, seen by nobody else, gone with the last process in here.

    Elsewhere `unshare -m` of some other program would copy the mounts of a node's disk and pin its loop device.
    """
    unshare(NEW_MOUNTS)
    flags = _REC | (_SLAVE if follow_host else _PRIVATE)
    _must(_libc.mount(b"none", b"/", None, flags, None), "mount")
