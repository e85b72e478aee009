"""Read access to the machine below a root path, which may be a tree of files. Nothing here changes anything.

Read this file first: probes get a Host. No judgement is made here; `base.lib.dockerd` sends docker's requests.
"""

import functools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from sparkd.base.host import disks, gpu, meminfo, network, owner, processes, shm, sock_diag, sockets, units
from sparkd.base.host.docker import DockerFacts, read_containers
from sparkd.base.host.files import FIXTURE, Files
from sparkd.base.host.gpu import GpuFacts
from sparkd.base.host.meminfo import FreeMemory, MemInfo
from sparkd.base.host.open_files import OpenFiles
from sparkd.base.host.owner import NodeOwner
from sparkd.base.host.processes import Details, Process, ProcessTable
from sparkd.base.host.shm import ANY, Segment, Uses
from sparkd.base.host.sockets import Holder, Listener, PendingRequest
from sparkd.base.host.units import Unit
from sparkd.base.lib.dockerd.reader import DockerError, DockerReader, RecordedReader, connect
from sparkd.base.lib.text import sanitize


class Host:
    """One machine. Each method reads it again; nothing is cached.

    docker and the GPU's driver are no files: `docker` and `gpu` replace what is recorded of them in a tree of files, or
    what a live machine answers. Methods raise OSError or ValueError where they cannot read.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] = "/",
        docker: Callable[[], DockerFacts] | None = None,
        gpu: Callable[[], GpuFacts] | None = None,
        owner_uid: int = 0,
    ) -> None:
        """`owner_uid`: the same as for Files."""
        self.files = Files(os.path.realpath(root), owner_uid)
        self.docker_fixture = docker
        self.gpu = gpu or self._gpu

    @property
    def live(self) -> bool:
        """Whether this is the machine that sparkd runs on, rather than a tree of files."""
        return self.files.root == "/"

    def name(self) -> str:
        try:
            return sanitize(self.files.value("/proc/sys/kernel/hostname"), 64)
        except OSError:  # a tree of files that has none
            return "?"

    def uptime_seconds(self) -> float:
        """Time since boot, by the clock of processes' start times. In a container, lxcfs may replace /proc/uptime."""
        if self.live:
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return float(self.files.value("/proc/uptime").split()[0])

    @property
    def runs_as_root(self) -> bool:
        """Whether sparkd runs as root: then what is unreadable has ended, or took too long."""
        return os.geteuid() == 0

    def meminfo(self) -> MemInfo:
        return meminfo.read_meminfo(self.files)

    def free_memory(self) -> FreeMemory:
        return meminfo.read_free_memory(self.files)

    def tensor_sizes(self, folder: str) -> Mapping[str, int]:
        """Bytes by tensor of the model in this folder, as `safetensors.read_sizes`. Raises OSError, ValueError."""
        from sparkd.base.host import model_folder, safetensors

        return safetensors.read_sizes(self.files, model_folder.list_tensor_files(self.files, folder))

    def addresses(self) -> tuple[str, ...]:
        return network.read_addresses(self.files)

    def processes(self) -> ProcessTable:
        return processes.scan_processes(self.files)

    def container_processes(self, pid: int, container_id: str) -> tuple[Process, ...]:
        """Processes of the container whose first one is `pid`."""
        return processes.list_container(self.files, pid, container_id)

    def argv(self, process: Process) -> tuple[str, ...]:
        """The first words, enough to know the program; empty for one that has ended."""
        return processes.read_argv(self.files, process.pid, processes.PROGRAM_WORDS)

    def details(self, process: Process) -> Details | None:
        return processes.read_details(self.files, process)

    def user(self, uid: int) -> str:
        return processes.user_name(self.files, uid)

    def listeners(self, ports: tuple[int, ...] = ()) -> tuple[Listener, ...]:
        """Listening sockets of these ports; without ports, of all."""
        if self.live:
            with suppress(FileNotFoundError):  # a kernel without sock_diag
                return sockets.query_kernel_listeners(self.files, ports)
        return tuple(held for held in sockets.read_proc_listeners(self.files) if not ports or held.port in ports)

    def bound_sockets(self, ports: tuple[int, ...]) -> tuple[Listener, ...]:
        """Sockets that have these ports and do not listen, as far as the kernel lists them."""
        with suppress(FileNotFoundError):
            return sockets.query_kernel_listeners(self.files, ports, sock_diag.WITH_PORT) if self.live else ()
        return ()

    def unanswered_requests(self, port: int) -> tuple[PendingRequest, ...]:
        """Requests without an answer, by the kernel; none of a tree of files, and where it can't be queried."""
        with suppress(OSError):
            return sockets.read_pending(port) if self.live else ()
        return ()

    def port_holders(self, among: Iterable[Process], wanted: tuple[Listener, ...]) -> tuple[Holder, ...]:
        return sockets.find_holders(self.files, among, wanted)

    def segments(self, named: re.Pattern[str] = ANY) -> tuple[Segment, ...]:
        """Files in /dev/shm with such a name; none where there is no such folder."""
        return shm.read_segments(self.files, time.time(), named)

    def shm_used_bytes(self) -> int:
        """Memory in the host's own /dev/shm: by its file system where it is a mount, else by its files."""
        if self.live and os.path.ismount(shm.FOLDER):
            space = disks.read_space(shm.FOLDER)
            return space.total_bytes - space.free_bytes
        # The files as they are, also where a subclass counts some as released.
        return sum(segment.allocated_bytes for segment in Host.segments(self))

    def segment_uses(self, among: Iterable[Process], wanted: Iterable[Segment]) -> Uses:
        return shm.find_uses(self.files, among, wanted)

    def owner(self) -> NodeOwner | None:
        return owner.read_owner(self.files)

    def unit(self, name: str) -> Unit | None:
        return units.read_unit(self.files, name)

    def docker(self) -> DockerFacts:
        """All containers. The `error` in it is that of a running dockerd that does not answer."""
        try:
            return self.docker_fixture() if self.docker_fixture else read_containers(self)
        except DockerError as error:
            return DockerFacts(running=True, containers=(), error=sanitize(str(error)))

    def docker_reader(self) -> DockerReader:
        """A reader for one thread. Use it only while dockerd is `docker.running`, and close it."""
        return connect() if self.live else RecordedReader(lambda name: self.files.bytes(f"{FIXTURE}/docker{name}"))

    def gpu_present(self) -> bool:
        return gpu.gpu_present(self.files)

    def gpu_users(self, among: Iterable[Process]) -> OpenFiles:
        """Processes with the GPU's devices open, except this one: a query of the driver opens them too."""
        return gpu.gpu_users(self.files, self._without_own(among))

    def gpu_mappers(self, among: Iterable[Process]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The answer of `gpu.gpu_mappers` without this process."""
        return gpu.gpu_mappers(self.files, self._without_own(among))

    def _without_own(self, among: Iterable[Process]) -> Iterator[Process]:
        return (process for process in among if not self.live or process.pid != os.getpid())

    def _gpu(self) -> GpuFacts:
        return gpu.read_driver() if self.live else gpu.read_fixture(self.files)


class CachedHost(Host):
    """The machine as of its first read: what several checks need is read once, and what hangs is waited for once.

    For one thread. Whatever is judged by it carries its identity, which is checked again before anything is changed.
    """

    def __init__(self, host: Host) -> None:
        super().__init__(docker=host.docker_fixture, gpu=functools.cache(host.gpu))
        self.files = host.files
        self._docker_reader = functools.cache(host.docker_reader)
        self._tensor_sizes = functools.cache(host.tensor_sizes)

    # Not functools.cache of its own methods: in such a cycle the tables stay until the garbage collector runs.
    @functools.cached_property
    def _containers(self) -> DockerFacts:
        return super().docker()

    @functools.cached_property
    def _table(self) -> ProcessTable:
        return super().processes()

    def docker(self) -> DockerFacts:
        return self._containers

    def processes(self) -> ProcessTable:
        return self._table

    def docker_reader(self) -> DockerReader:
        """Shared; closing it only drops the connection, and its answers stay."""
        return self._docker_reader()

    def tensor_sizes(self, folder: str) -> Mapping[str, int]:
        return self._tensor_sizes(folder)
