"""The size of /dev/shm, where the ranks of one engine hand each other their work."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host import docker_defaults, mounts
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.sizes import GIB, MIB, size

if TYPE_CHECKING:
    from sparkd.host import Host

QUEUE_BYTES = 160 * MIB
RANK_BYTES = 24 * MIB
"""vLLM 0.32: the queue to the workers, and one back from each worker of this node (167,772,180 and 25,165,836 B)."""
COMFORT_BYTES = GIB


class ShmSizeFacts(Struct, frozen=True):
    total_bytes: int
    free_bytes: int
    """Less what lies there already."""
    set_by: str
    """Who says so: the recipe, docker, or the mount."""


class ShmSize(Check[ShmSizeFacts], frozen=True):
    """Room in /dev/shm for vLLM's queues and NCCL's buffers."""

    host_ipc: bool
    shm_bytes: int | None
    """That the recipe gives the container; None: docker's default."""
    is_head: bool
    cluster_size: int
    id: ClassVar[str] = "shm-size"
    about: ClassVar[About] = About(
        levels=(Level.WARN, Level.BLOCK, Level.UNKNOWN),
        reads="the plan; /etc/docker/daemon.json and the arguments of dockerd; "
        "/proc/self/mounts and the files in /dev/shm where ipc is host",
        source="measured on vLLM 0.32: 160 MiB and 24 MiB a rank are needed, with 64 MiB the head ends after 20 s",
        page="""\
vLLM hands work to its ranks through segments in /dev/shm: 160 MiB for the queue to the workers and 24 MiB for each
worker's answers. A head without that room ends some 20 seconds after its start, with

  Insufficient space in /dev/shm for shared-memory allocation: 160 MiB required, 64 MiB free

Beside them NCCL and PyTorch put buffers there. One that no longer fits ends a rank with SIGBUS, hours later.

Where the recipe says `container.ipc: host`, it is the machine's /dev/shm: half of the memory by itself, unless somebody
mounted it smaller, and less what lies there already. Else it is the container's own, as large as `container.shm_bytes`,
or docker's default: 64 MiB, or default-shm-size of /etc/docker/daemon.json or of dockerd's own arguments.

  block    a head of several nodes has less than 184 MiB in all. Put `container.ipc: host` or
           `container.shm_bytes: 1073741824` into the recipe; for the machine's own: mount -o remount,size=50% /dev/shm,
           and see /etc/fstab.
  warn     less than 1 GiB is free for a rank of several, or less than 184 MiB on one node or on a worker, which do not
           always need the queues. What fills it may be orphaned segments, which shared-memory unlinks.
  unknown  /etc/docker/daemon.json decides, and can't be read or is not JSON.

The size is a bound, not a reservation: what is not used takes no memory.""",
    )

    def probe(self, host: Host) -> ShmSizeFacts:
        if not self.host_ipc:
            if self.shm_bytes is not None:
                return ShmSizeFacts(self.shm_bytes, self.shm_bytes, "container.shm_bytes of the recipe")
            total = docker_defaults.read(host).shm_bytes
            return ShmSizeFacts(total, total, "docker's default")
        memory = host.meminfo().total_bytes
        mount = mounts.at(host.files, "/dev/shm")  # noqa: S108 - looked at
        total = memory // 2 if mount is None else mount.size_bytes(memory)
        used = sum(segment.allocated_bytes for segment in host.segments())
        return ShmSizeFacts(total, max(0, total - used), "the machine's /dev/shm")

    def judge(self, facts: ShmSizeFacts) -> Verdict:
        needed = QUEUE_BYTES + RANK_BYTES
        several = self.cluster_size > 1
        reason = f"{size(facts.free_bytes)} of {size(facts.total_bytes)} free ({facts.set_by})"
        if facts.free_bytes >= (COMFORT_BYTES if several else needed):
            return Verdict(Level.OK, reason)
        if facts.free_bytes >= needed:
            reason = f"{reason}: NCCL keeps buffers there too, 1 GiB is usual"
            return Verdict(Level.WARN, reason, self._how())
        reason = f"{reason}, vLLM's queues need {size(needed)}"
        if facts.total_bytes >= needed:
            return Verdict(Level.WARN, reason, "ls -lS /dev/shm")
        return Verdict(Level.BLOCK if several and self.is_head else Level.WARN, reason, self._how())

    def _how(self) -> str:
        if self.host_ipc:
            return "mount -o remount,size=50% /dev/shm, and look at /etc/fstab"
        return "set container.ipc: host in the recipe, or container.shm_bytes: 1073741824"
