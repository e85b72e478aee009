"""Processes that look to the kernel as vLLM's do: names, groups, a mapped segment, a listening port.

python -m tests.integration.engine_alike PORT [stubborn]: a main process in a session of its own, with an EngineCore and
below it a worker. Says `up` once the worker listens.
"""

import ctypes
import mmap
import os
import signal
import socket
import sys
import time

SEGMENT = "/dev/shm/psm_0123abcd"
SEMAPHORE = "/dev/shm/sem.mp-a8x_0lk2"
PR_SET_NAME = 15


def named(name: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def worker(port: int, stubborn: bool) -> None:
    named("VLLM::Worker_TP0")
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    listener = socket.create_server(("", port))
    with open(SEGMENT, "wb+") as file:
        file.truncate(1 << 20)
        mapped = mmap.mmap(file.fileno(), 1 << 20)
    opened = open(SEMAPHORE, "wb+")  # noqa: SIM115 - open for as long as the worker lives
    mapped[:5] = b"alive"
    print("up", flush=True)
    while listener.fileno() >= 0 and not opened.closed:
        time.sleep(60)


def main(port: int, stubborn: bool) -> None:
    os.setsid()
    named("vllm")
    if os.fork() == 0:
        named("VLLM::EngineCore")
        if os.fork() == 0:
            worker(port, stubborn)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(int(sys.argv[1]), "stubborn" in sys.argv)
