"""Who uses the GPU: processes that its driver lists, and processes that only have its devices open, or mapped."""

from contextlib import suppress

from msgspec import Struct

from sparkd.base.host import Host
from sparkd.base.host.cgroups import Group, read_group
from sparkd.base.host.gpu import GpuFacts
from sparkd.base.host.processes import Process, ProcessTable
from sparkd.base.lib.text import MIB

PERSISTENCED = "nvidia-persiste"
"""nvidia-persistenced, which the driver's package installs (the kernel keeps 15 letters): it always has the devices
open, and holds hardly any memory."""
PERSISTENCED_BYTES = 64 * MIB
"""Most that it may hold. It makes no context of CUDA, which alone takes some 500 MiB on an H200."""


class GpuUser(Struct, frozen=True):
    """A process that the driver lists, or that has its devices open or mapped."""

    pid: int
    comm: str
    bytes: int | None
    """GPU memory by the driver's list: 0 where that does not have the process, None where it does not say how much."""
    gone: bool = False
    """Whether the driver lists a process that has ended: its memory is nobody's."""

    @property
    def label(self) -> str:
        return f"pid {self.pid}, which has ended" if self.gone else f"pid {self.pid} ({self.comm})"


def find_gpu_users(host: Host, gpu: GpuFacts) -> tuple[GpuUser, ...] | None:
    """Users of the GPU besides the driver's own daemon; None where they are unknown."""
    if not gpu.names:
        return ()
    if gpu.processes is None:
        return None
    table = host.processes()
    device_files = host.gpu_users(table)
    listed = {process.pid: process.used_bytes for process in gpu.processes}
    unreadable_pids = device_files.unreadable_pids
    users = _describe_users(host, table, listed, {file.pid for file in device_files.found})
    if not users:  # "nobody" is a proof for a reboot, so that the slower look at all mappings is worth it
        mappers, unmapped = host.gpu_mappers(table)
        users, unreadable_pids = _describe_users(host, table, listed, set(mappers)), (*unreadable_pids, *unmapped)
    return None if unreadable_pids and not users else users


def _describe_users(
    host: Host, table: ProcessTable, listed: dict[int, int | None], openers: set[int]
) -> tuple[GpuUser, ...]:
    users = []
    for pid in sorted(listed.keys() | openers):
        process, size = table.get(pid), listed.get(pid, 0)
        if process is None:
            users.append(GpuUser(pid, "", size, gone=True))
        elif not _is_persistenced(host, process, size):
            users.append(GpuUser(pid, process.comm, size))
    return tuple(users)


def _is_persistenced(host: Host, process: Process, size: int | None) -> bool:
    """Whether it is the driver's daemon. Any process may choose its name: only root starts one in a system's unit."""
    if process.comm != PERSISTENCED or size is None or size > PERSISTENCED_BYTES:
        return False
    with suppress(OSError):
        return read_group(host.files, process.pid) == Group(unit="nvidia-persistenced.service")
    return False
