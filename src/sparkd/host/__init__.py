"""The machine, looked at: rooted at a path, so that a tree of files is a machine too. It changes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from sparkd.host import addresses, devices, meminfo, owner, processes, shm, sockets, unit_files, users
from sparkd.host.docker_facts import DockerFacts
from sparkd.host.files import Files
from sparkd.host.gpu import GpuFacts
from sparkd.host.meminfo import MemInfo
from sparkd.host.open_files import OpenFiles
from sparkd.host.owner import NodeOwner
from sparkd.host.processes import Details, Process, ProcessTable
from sparkd.host.shm import Segment, Uses
from sparkd.host.sockets import Holder, Listener
from sparkd.host.unit_files import Unit
from sparkd.lib.text import sanitize

if TYPE_CHECKING:
    from sparkd.lib.dockerd.reader import DockerReader


class Host:
    """One machine. Each method looks anew; nothing is kept.

    What is no file (docker, the GPU's driver) is handed in as a function, so that a tree can carry it as data.
    Methods raise OSError or ValueError where they cannot look.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] = "/",
        docker: Callable[[], DockerFacts] | None = None,
        gpu: Callable[[], GpuFacts] | None = None,
    ) -> None:
        self.files = Files(os.path.realpath(root))
        self.told_docker = docker
        self.gpu = gpu or self._gpu

    @property
    def live(self) -> bool:
        """Whether this is the machine that sparkd runs on, rather than a tree of files."""
        return self.files.root == "/"

    def name(self) -> str:
        try:
            return sanitize(self.files.text("/proc/sys/kernel/hostname", limit=4096).strip(), 64)
        except OSError:  # a tree of files that has none
            return "?"

    def uptime_seconds(self) -> float:
        """Since the machine booted: the clock that processes' start times are told by.

        /proc/uptime may be another's: lxcfs shows a container its own.
        """
        if self.live:
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return float(self.files.text("/proc/uptime", limit=4096).split()[0])

    def meminfo(self) -> MemInfo:
        return meminfo.read(self.files)

    def addresses(self) -> tuple[str, ...]:
        """The machine's own IP addresses."""
        return addresses.read(self.files)

    def processes(self) -> ProcessTable:
        return processes.scan(self.files)

    def argv(self, process: Process) -> tuple[str, ...]:
        """Empty for one that has ended."""
        try:
            return processes.argv(self.files, process.pid)
        except processes.GONE:
            return ()

    def details(self, process: Process) -> Details | None:
        """A closer look; None once it has ended."""
        return processes.details(self.files, process)

    def user(self, uid: int) -> str:
        return users.name(self.files, uid)

    def listeners(self) -> tuple[Listener, ...]:
        """Listening TCP ports."""
        return sockets.listeners(self.files)

    def only_ipv6(self) -> frozenset[int]:
        """Inodes of sockets of IPv6 that leave IPv4's ports alone. None are known of a tree of files."""
        from sparkd.host import sock_diag

        with suppress(OSError):  # a kernel without sock_diag
            return sock_diag.only_ipv6() if self.live else frozenset()
        return frozenset()

    def port_holders(self, among: Iterable[Process], wanted: tuple[Listener, ...]) -> tuple[Holder, ...]:
        return sockets.holders(self.files, among, wanted)

    def segments(self) -> tuple[Segment, ...]:
        """Files in /dev/shm; none where there is no such folder."""
        try:
            return shm.segments(self.files, time.time())
        except FileNotFoundError:
            return ()

    def shm_device(self) -> int:
        return shm.device(self.files)

    def segment_uses(self, among: Iterable[Process], wanted: Iterable[Segment]) -> Uses:
        return shm.uses(self.files, among, wanted)

    def owner(self) -> NodeOwner | None:
        """The agent that owns this node."""
        return owner.read(self.files)

    def unit(self, name: str) -> Unit | None:
        return unit_files.read(self.files, name)

    def docker(self) -> DockerFacts:
        """What docker says; a living dockerd that does not answer is an `error` in it."""
        from sparkd.host.docker import read
        from sparkd.lib.dockerd.reader import DockerUnreadableError

        try:
            return self.told_docker() if self.told_docker else read(self)
        except DockerUnreadableError as error:
            return DockerFacts(running=True, containers=(), error=sanitize(str(error)))

    def docker_reader(self) -> DockerReader:
        """Docker's answers, for one thread. Read only while one runs; close it."""
        from sparkd.host.docker import reader

        return reader(self)

    def gpu_present(self) -> bool:
        return devices.gpu_present(self.files)

    def gpu_users(self, among: Iterable[Process]) -> OpenFiles:
        """Who has the GPU's devices open, this process left out: asking the driver opens them too."""
        own = os.getpid() if self.live else 0
        return devices.gpu_users(self.files, (process for process in among if process.pid != own))

    def _gpu(self) -> GpuFacts:
        if self.live:
            from sparkd.host import nvml

            return nvml.read()
        from sparkd.host import gpu

        return gpu.of_tree(self.files)
