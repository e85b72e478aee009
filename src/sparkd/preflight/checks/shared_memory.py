"""Shared memory: segments that engines left in /dev/shm, and its size."""

from __future__ import annotations

import re

from msgspec import Struct

from sparkd.host import Host, disks, docker_config
from sparkd.host.shm import FOLDER, Segment, Uses
from sparkd.lib.text import GIB, MIB, size
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.fixes import UnlinkSegment

NAMES = re.compile(r"psm_[0-9a-f]{8}|sem\.mp-[\w.-]{1,64}|nccl-[\w.-]{1,64}|vllm_dist_[\w.:,\[\]-]{1,200}", re.ASCII)
"""Names that vLLM and NCCL leave. Every Python program may use psm_ and sem.mp-: so never by name alone."""
YOUNGEST_SECONDS = 60.0
"""A program that has just made a segment may not have mapped it yet, or be about to hand it to another."""


class SegmentFacts(Struct, frozen=True):
    path: str
    device: int
    inode: int
    size_bytes: int
    allocated_bytes: int
    uid: int
    links: int
    age_seconds: float
    used_by: tuple[int, ...]


class ShmFacts(Struct, frozen=True):
    own_device: int
    """Of the machine's own /dev/shm."""
    segments: tuple[SegmentFacts, ...]
    """Those with an engine's names."""
    unreadable_pids: tuple[int, ...]


class SharedMemory(Check[ShmFacts], frozen=True):
    """Orphans are a WARN: they take memory, and no launch fails by them alone."""

    owners: tuple[int, ...] = (0,)
    """Users whose segments may be unlinked."""
    id = "shared-memory"
    about = About(
        levels=(Level.WARN,),
        reads="files of /dev/shm; /proc/PID/maps and fd of every process",
        source="measured on vLLM 0.32: what a killed engine leaves",
        fixes=("unlink-segment",),
        page="""\
vLLM's processes talk through segments in /dev/shm, made in the host's own with `ipc: host`. An engine that is killed
leaves them behind, and their memory with them: 160 MiB for each message queue, more with caches.

Orphaned is a segment named psm_ and 8 hex digits, sem.mp-*, nccl-* or vllm_dist_*, older than 60 s, of root, on the
host's own /dev/shm, of one name, that no process has open or mapped. All that is checked again before it is unlinked.

  warn  orphans were found (preflight unlinks them if nothing else blocks), or segments that may be orphans, but some
        processes can't be inspected: then all are kept.""",
    )

    def probe(self, host: Host) -> ShmFacts:
        named = [segment for segment in host.segments() if NAMES.fullmatch(segment.name)]
        if not named:
            return ShmFacts(0, (), ())
        uses = host.segment_uses(host.processes(), named)
        segments = tuple(_facts(segment, uses) for segment in named)
        return ShmFacts(host.files.stat(FOLDER).device, segments, uses.unreadable_pids)

    def judge(self, facts: ShmFacts) -> Verdict:
        orphans = [segment for segment in facts.segments if self._orphaned(segment, facts.own_device)]
        used = sum(bool(segment.used_by) for segment in facts.segments)
        if not orphans:
            return Verdict(Level.OK, f"no orphaned segments, {used} in use" if used else "no orphaned segments")
        names = ", ".join(segment.path.rpartition("/")[2] for segment in orphans[:3])
        more = f" and {len(orphans) - 3} more" if len(orphans) > 3 else ""
        held = size(sum(segment.allocated_bytes for segment in orphans))
        if facts.unreadable_pids:
            pids = ", ".join(map(str, facts.unreadable_pids[:3]))
            unread = f"what {len(facts.unreadable_pids)} processes use can't be read (pid {pids})"
            reason = f"{names}{more} ({held}) may be orphaned, but {unread}: kept"
            return Verdict(Level.WARN, reason, "run as root, outside a container")
        fixes = tuple(UnlinkSegment(one.path, one.device, one.inode, one.allocated_bytes) for one in orphans)
        return Verdict(Level.WARN, f"{names}{more} hold {held} and belong to no process", "unlink them", fixes)

    def _orphaned(self, segment: SegmentFacts, own_device: int) -> bool:
        return (
            not segment.used_by
            and segment.age_seconds > YOUNGEST_SECONDS
            and segment.uid in self.owners
            and segment.device == own_device
            and segment.links == 1
        )


def _facts(one: Segment, uses: Uses) -> SegmentFacts:
    age_seconds, identity = round(one.age_seconds, 1), (one.path, one.device, one.inode)
    return SegmentFacts(*identity, one.size_bytes, one.allocated_bytes, one.uid, one.links, age_seconds, uses.pids(one))


QUEUE_BYTES = 160 * MIB
RANK_BYTES = 24 * MIB
"""vLLM 0.32: the queue to the workers, and one back from each worker of this node (167,772,180 and 25,165,836 B)."""
COMFORT_BYTES = GIB


class ShmSizeFacts(Struct, frozen=True):
    total_bytes: int
    free_bytes: int
    """Less what lies there already."""
    set_by: str
    """The recipe, docker, or the mount."""


class ShmSize(Check[ShmSizeFacts], frozen=True):
    """Room in /dev/shm for vLLM's queues and NCCL's buffers."""

    host_ipc: bool
    shm_bytes: int | None
    """That the recipe gives the container; None: docker's default."""
    is_head: bool
    cluster_size: int
    id = "shm-size"
    about = About(
        levels=(Level.WARN, Level.BLOCK, Level.UNKNOWN),
        reads="the plan; /etc/docker/daemon.json and the arguments of dockerd; "
        "/proc/self/mounts and the files in /dev/shm where ipc is host",
        source="measured on vLLM 0.32: 160 MiB and 24 MiB a rank are needed, with 64 MiB the head ends after 20 s",
        page="""\
vLLM hands work to its ranks through segments in /dev/shm: 160 MiB for the queue to the workers and 24 MiB for each
worker's answers. A head without that room ends some 20 seconds after its start with "Insufficient space in /dev/shm".
NCCL and PyTorch put buffers there too. One that no longer fits ends a rank with SIGBUS, hours later.

With `container.ipc: host` in the recipe it is the machine's /dev/shm: half of the memory unless it is mounted smaller,
less what lies there already. Else it is the container's own, as large as `container.shm_bytes`, or docker's default:
64 MiB, or default-shm-size of /etc/docker/daemon.json or of dockerd's own arguments.

  block    a head of several nodes has less than 184 MiB in all. Put `container.ipc: host` or
           `container.shm_bytes: 1073741824` into the recipe; for the machine's own: mount -o remount,size=50% /dev/shm,
           and see /etc/fstab. The size is a bound, not a reservation.
  warn     less than 1 GiB is free for a rank of several, or less than 184 MiB on one node or on a worker, which do not
           always need the queues. What fills it may be orphaned segments, which shared-memory unlinks.
  unknown  /etc/docker/daemon.json decides, and can't be read or is not JSON.""",
    )

    def probe(self, host: Host) -> ShmSizeFacts:
        if not self.host_ipc:
            if self.shm_bytes is not None:
                return ShmSizeFacts(self.shm_bytes, self.shm_bytes, "container.shm_bytes of the recipe")
            total = docker_config.read_defaults(host).shm_bytes
            return ShmSizeFacts(total, total, "docker's default")
        memory = host.meminfo().total_bytes
        mount = disks.mount_at(host.files, "/dev/shm")  # noqa: S108 - read only
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
