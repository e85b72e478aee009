"""A machine made of files: what a test writes below `tree.root` is all that Host sees."""

import fcntl
import json
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True)
class Tree:
    root: Path

    def path(self, path: str) -> Path:
        """Where an absolute path of the tree is on this machine."""
        return self.root / path.lstrip("/")

    def file(self, path: str, text: str = "", mode: int = 0o644) -> Path:
        """Write a file at an absolute path of the tree."""
        real = self.path(path)
        try:
            real.write_text(text)
        except FileNotFoundError:
            real.parent.mkdir(parents=True, exist_ok=True)
            real.write_text(text)
        real.chmod(mode)
        return real

    def folder(self, path: str) -> Path:
        real = self.path(path)
        real.mkdir(parents=True, exist_ok=True)
        return real

    def link(self, path: str, target: str) -> Path:
        """A symlink that says `target`, which may be absolute (below the tree) or no path at all."""
        real = self.path(path)
        real.parent.mkdir(parents=True, exist_ok=True)
        real.symlink_to(target)
        return real

    def process(
        self,
        pid: int,
        comm: str,
        *,
        parent: int = 1,
        group: int | None = None,
        state: str = "S",
        threads: int = 1,
        start_time: int = 100,
        argv: tuple[str, ...] = (),
        cgroup: str = "0::/system.slice/some.service",
        namespace_pid: int | None = None,
        private_kib: int = 0,
        kernel: bool = False,
        opened: tuple[str, ...] = (),
        maps: str = "",
        uid: int = 0,
    ) -> None:
        """Everything of /proc/PID that Host reads."""
        leader = pid if group is None else group
        flags = 0x0020_0000 if kernel else 0x40_0000
        before = f"{pid} ({comm}) {state} {parent} {leader} {leader} 0 -1 {flags} 1 2 3 4 5 6 7 8 20 0 {threads} 0"
        after = " ".join(["1000 10 18446744073709551615", *["0"] * 27])
        self.file(f"/proc/{pid}/stat", f"{before} {start_time} {after}\n")
        ids_of_user = f"\t{uid}" * 4
        ids = f"{pid}\t{namespace_pid}" if namespace_pid is not None else str(pid)
        self.file(
            f"/proc/{pid}/status",
            f"Name:\t{comm}\nUid:{ids_of_user}\nNSpid:\t{ids}\nRssAnon:\t{private_kib} kB\nRssShmem:\t0 kB\n",
        )
        self.file(f"/proc/{pid}/cmdline", "".join(f"{word}\0" for word in argv))
        self.file(f"/proc/{pid}/cgroup", cgroup + "\n")
        self.groups(cgroup)
        self.file(f"/proc/{pid}/maps", maps)
        self.folder(f"/proc/{pid}/fd")
        for number, target in enumerate(opened):
            self.link(f"/proc/{pid}/fd/{number}", target)

    def groups(self, cgroup: str) -> None:
        """The folders of the groups in a text of /proc/PID/cgroup: of the same owner as their root, as docker's are."""
        for line in cgroup.splitlines():
            _, controllers, path = line.split(":", 2)
            self.folder(f"/sys/fs/cgroup/{controllers}{path}")

    def owner(self, pid: int, invocation: str = "x", start_time: int = 100) -> None:
        """An agent with this invocation, which is process `pid`, owns the node."""
        account = {"pid": pid, "command": "sparkd run --role head", "invocation": invocation, "start_time": start_time}
        self.file("/run/sparkd/owner.json", json.dumps(account))

    @contextmanager
    def lock_held(self, how: int = fcntl.LOCK_EX) -> Iterator[IO[str]]:
        with self.file("/run/sparkd/hands.lock", "").open() as lock:
            fcntl.flock(lock, how)
            yield lock

    def segment(self, name: str, text: str = "x", age_seconds: float = 3600) -> os.stat_result:
        """A file in /dev/shm, last written so long ago."""
        if not (self.root / "proc/uptime").exists():
            self.file("/proc/uptime", "86400.00 0.00\n")
        real = self.file(f"/dev/shm/{name}", text)
        then = time.time() - age_seconds
        os.utime(real, (then, then))
        return real.stat()

    def meminfo(self, **gib: float) -> None:
        """/proc/meminfo from figures in GiB."""
        self.file("/proc/meminfo", "".join(f"{key}: {round(value * 2**20)} kB\n" for key, value in gib.items()))
        self.buddyinfo(gib.get("MemFree", 0))

    def buddyinfo(self, large_gib: float, small_gib: float = 0) -> None:
        """/proc/buddyinfo of one zone: so much is free in blocks of 1024 pages, and so much in single pages."""
        counts = (round(small_gib * 2**30 / mmap.PAGESIZE), *[0] * 9, round(large_gib * 2**20 / mmap.PAGESIZE))
        self.file("/proc/buddyinfo", f"Node 0, zone   Normal{''.join(f' {count:6}' for count in counts)} \n")

    def listening(self, *sockets: tuple[int, int]) -> None:
        """/proc/net/tcp with (port, inode) listening on every address."""
        head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        rest = "00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0"
        lines = [f"   0: 00000000:{port:04X} {rest} {inode} 1 0" for port, inode in sockets]
        self.file("/proc/net/tcp", head + "\n".join(lines) + "\n")

    def sparse(self, path: str, size_bytes: int) -> Path:
        """A file of some size that takes no room."""
        real = self.file(path)
        os.truncate(real, size_bytes)
        return real

    def dockerd(self, pid: int = 700, argv: tuple[str, ...] = ()) -> None:
        """A dockerd that lives and listens."""
        self.process(pid, "dockerd", argv=argv, opened=(f"socket:[{pid}]",))
        self.file(f"/proc/{pid}/comm", "dockerd\n")
        self.file("/run/docker.pid", f"{pid}\n")
        self.file("/proc/net/unix", f"Num\n0: 00000002 00000000 00010000 0001 01 {pid} /run/docker.sock\n")

    def docker_engine(self, **info: object) -> None:
        """A docker of this version, which answers /info with these fields too."""
        self.dockerd()
        self.docker("/version", {"Version": "29.2.1", "Arch": "arm64"})
        self.docker("/info", {"Runtimes": {"runc": {}}, **info})

    def safetensors(self, path: str, data_bytes: int = 16) -> Path:
        """A whole file of weights: one tensor, which takes no room."""
        tensor = {"dtype": "U8", "shape": [data_bytes], "data_offsets": [0, data_bytes]}
        header = json.dumps({"__metadata__": {"format": "pt"}, "w": tensor}).encode()
        real = self.file(path)
        real.write_bytes(len(header).to_bytes(8, "little") + header)
        os.truncate(real, 8 + len(header) + data_bytes)
        return real

    def docker(self, path: str, answer: object, *, fails: bool = False) -> None:
        """What docker answers to GET of a path, without its query."""
        self.file(f"/.sparkd/docker{path}.{'500.' if fails else ''}json", json.dumps(answer))


def maps_line(device: int, inode: int, path: str) -> str:
    """A file that a process has mapped, as /proc/PID/maps lists it."""
    return f"7f0000000000-7f0040000000 rw-s 00000000 {os.major(device):02x}:{os.minor(device):02x} {inode} {path}\n"
