"""PID 1 of a bed: it holds the bed's processes, mounts and network in namespaces of its own.

Everything that a bed runs lives in here, so the kernel ends all of it when the keeper ends. The keeper ends when it is
killed, or when the process that owns the bed is gone, however that died.
"""

import os
import select
import signal
import sys
from pathlib import Path
from typing import NoReturn

from . import namespaces
from .command import run
from .processes import Identity


def main(owner: Identity) -> int:
    """Fork the keeper, say its pid on standard output, and wait for its end."""
    watch = os.pidfd_open(owner.pid)
    if not owner.alive:
        return 1
    namespaces.own_mounts(follow_host=True)
    namespaces.unshare(namespaces.NEW_NET | namespaces.NEW_PIDS)
    ready_read, ready_write = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.close(ready_read)
        keep(watch, ready_write)
    os.close(ready_write)
    if os.read(ready_read, 1) == b"1":
        print(keeper, flush=True)
    _, status = os.waitpid(keeper, 0)
    return max(0, os.waitstatus_to_exitcode(status))  # to kill the keeper is how a bed ends


def keep(watch: int, ready: int) -> NoReturn:
    """Prepare, report it, and end this process once the owner has ended: with 1 where something failed."""
    code = 0
    try:
        prepare_mounts_and_network()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans are reaped by the kernel
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.write(ready, b"1")
        os.close(ready)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1):
            os.dup2(null, stream)
        select.select([watch], [], [])
    except BaseException as error:
        print(f"bed keeper: {error!r}", file=sys.stderr, flush=True)
        code = 1
    finally:
        os._exit(code)


def prepare_mounts_and_network() -> None:
    """Own /proc, own empty /run (where nspawn and lxcfs leave files), loopback up."""
    run("mount", "-t", "proc", "proc", "/proc")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    Path("/run/bed").mkdir()
    run("ip", "link", "set", "lo", "up")


if __name__ == "__main__":
    sys.exit(main(Identity(int(sys.argv[1]), int(sys.argv[2]))))
