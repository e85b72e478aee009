"""Mounts that hang: a FUSE file system on each folder, whose requests nobody reads, until a line or the end of input.

python -I -S hung_mounts.py FOLDER...: prints `up`; then each access hangs, and an unmount by force ends that.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

MNT_FORCE, MNT_DETACH = 1, 2


def main(*folders: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    opened = []
    for folder in folders:
        opened.append(os.open("/dev/fuse", os.O_RDWR))  # closed, it would end the hang
        options = f"fd={opened[-1]},rootmode=40000,user_id=0,group_id=0"
        if libc.mount(b"hung", folder.encode(), b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), folder)
    os.write(1, b"up\n")
    os.read(0, 1)
    for folder in folders:
        gone = libc.umount2(folder.encode(), MNT_FORCE | MNT_DETACH)
        if gone and ctypes.get_errno() != errno.ENOENT:  # a folder in /proc goes with its process
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
