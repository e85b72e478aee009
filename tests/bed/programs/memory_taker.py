"""memory_taker.py WAY MIB: takes memory that no process has mapped, prints "ready", and keeps it.

`sockets` and `tcp`: as what has been sent and nobody has read; `pipes`: as what has been written and nobody has read;
`given`: as pages of its own that it has given to pipes, and has unmapped.
"""

import ctypes
import fcntl
import mmap
import os
import resource
import socket
import sys
import time
from contextlib import suppress

MIB = 1 << 20
PIPE_BYTES = MIB
SENT_BYTES = 212_992
"""net.core.wmem_default, by which the kernel bounds what one socket takes; its own overhead is counted in it."""


def take_sockets(size_bytes: int) -> list[object]:
    kept: list[object] = []
    for _ in range(size_bytes // SENT_BYTES):
        kept.append(pair := socket.socketpair())
        fill(pair[0])
    return kept


def take_tcp(size_bytes: int) -> list[object]:
    kept: list[object] = []
    sent_bytes = 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        while sent_bytes < size_bytes:
            kept.append(sender := socket.create_connection(server.getsockname()))
            kept.append(server.accept())
            sent_bytes += fill(sender)
    return kept


def fill(sender: socket.socket) -> int:
    """What it took, in bytes."""
    sender.setblocking(False)
    sent_bytes = 0
    with suppress(BlockingIOError):
        while True:
            sent_bytes += sender.send(b"x" * 4096)
    return sent_bytes


def take_pipes(size_bytes: int) -> list[object]:
    kept: list[object] = []
    for _ in range(size_bytes // PIPE_BYTES):
        kept.append(end := make_pipe())
        os.write(end, b"x" * PIPE_BYTES)
    return kept


def give_pages(size_bytes: int) -> list[object]:
    libc = ctypes.CDLL(None, use_errno=True)
    kept: list[object] = []
    for _ in range(size_bytes // PIPE_BYTES):
        pages = mmap.mmap(-1, PIPE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.write(b"x" * PIPE_BYTES)
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        kept.append(end := make_pipe())
        vector = (ctypes.c_size_t * 2)(address, PIPE_BYTES)
        if libc.vmsplice(end, vector, 1, 0) != PIPE_BYTES:
            raise OSError(ctypes.get_errno(), "vmsplice")
        # The window of ctypes keeps the map open; what it maps goes at once.
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(PIPE_BYTES))
        kept.append(pages)
    return kept


def make_pipe() -> int:
    """Its writing end; the reading end stays open, too."""
    _, end = os.pipe()
    fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return end


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    take = {"sockets": take_sockets, "tcp": take_tcp, "pipes": take_pipes, "given": give_pages}[sys.argv[1]]
    kept = take(int(sys.argv[2]) * MIB)
    print("ready", flush=True)
    time.sleep(600)
