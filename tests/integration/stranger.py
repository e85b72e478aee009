"""A local user without rights, who runs programs: what sparkd has to bear from each who has a login on the node.

A keeper of root starts the program and adopts what the program orphans, as PID 1 would: so everything that
descends from it is known by pid, and ended and reaped with it.
"""

import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

UID = 64000
MOST_PROCESSES = 4096
KEEPER = """\
import ctypes, os, resource, select, signal, sys, time
uid, seconds, most, program, *arguments = sys.argv[1:]
uid, end = int(uid), time.monotonic() + float(seconds)
libc = ctypes.CDLL(None)
assert libc.prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
libc.prctl(15, b"init", 0, 0, 0)  # PR_SET_NAME: what it does for orphans
go, ready = os.pipe()
main = os.fork()
if main == 0:
    os.read(go, 1)
    os.closerange(3, 256)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(1, 2)
    os.setsid()
    os.chdir("/")
    resource.setrlimit(resource.RLIMIT_NPROC, (int(most), int(most)))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.execv(sys.executable, [sys.executable, "-I", "-c", program, *arguments])
print(main, flush=True)
os.write(ready, b"1")

def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    except ChildProcessError:
        return False

while time.monotonic() < end and not select.select([0], [], [], 0.05)[0] and reap():
    pass
me = os.getpid()
os.setresuid(uid, uid, 0)  # so that the kernel refuses to end anybody else's process under a reused pid
while reap():
    children = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                children.setdefault(int(file.read().rpartition(b")")[2].split()[1]), []).append(int(name))
        except OSError:
            pass
    descendants = children.get(me, [])
    for pid in descendants:
        descendants += children.get(pid, [])
    for pid in descendants:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    time.sleep(0.01)
"""


def _interpreter() -> str:
    """One that everybody may run: that of the tests may lie below /root."""
    own = Path(sys.executable).resolve()
    open_to_all = all(folder.stat().st_mode & 0o001 for folder in own.parents)
    return str(own) if open_to_all else "/usr/bin/python3"


class Stranger:
    """`program` is Python source text; it runs as UID, without groups and capabilities, in its own session.

    All of it is over `seconds` after the start, whatever the test does. `close` ends it, and the end of the tests too.
    """

    def __init__(self, program: str, *arguments: str, seconds: float = 30) -> None:
        words = ("-I", "-c", KEEPER, str(UID), str(seconds), str(MOST_PROCESSES), program, *arguments)
        self._keeper = subprocess.Popen(
            [_interpreter(), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._end = time.monotonic() + seconds
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.pid = int(self.wait_for(""))
        """Of the program itself."""

    def wait_for(self, beginning: str) -> str:
        """The next line of its output that begins so. Raises AssertionError with all others where none comes."""
        others = []
        while (line := self._next()) is not None:
            if line.startswith(beginning):
                return line
            others.append(line)
        raise AssertionError(f"the stranger never printed {beginning!r}, but {others}")

    def output(self) -> list[str]:
        """The rest of its output, once it and all that descends from it ended or closed it."""
        return list(iter(self._next, None))

    def close(self) -> None:
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        self._keeper.stdin.close()
        self._keeper.wait()
        self._reader.join()
        self._keeper.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        assert self._keeper.stdout is not None
        for line in self._keeper.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _next(self) -> str | None:
        try:
            line = self._lines.get(timeout=max(0.0, self._end - time.monotonic()))
        except queue.Empty:
            return None
        if line is None:
            self._lines.put(None)
        return line
