"""Shared memory: segments that engines left in /dev/shm, its size, and segments that logind would delete."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import asdict

from sparkd.agent.preflight.check import Check, Level, Verdict, block, ok, skipped, warn
from sparkd.agent.preflight.fixes import UnlinkSegment
from sparkd.base.host import Host, disks, docker_image, processes
from sparkd.base.host.files import Files
from sparkd.base.host.shm import FOLDER, Segment
from sparkd.base.host.units import find_drop_ins, parse_assignments
from sparkd.base.lib.text import GIB, MIB, size
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.state.rank_record import read_rank

NAMES = re.compile(r"psm_[0-9a-f]{8}|sem\.mp-[\w.-]{1,64}|nccl-[\w.-]{1,64}|vllm_dist_[\w.:,\[\]-]{1,200}", re.ASCII)
"""Names that vLLM and NCCL leave. Every Python program may use psm_ and sem.mp-: so never by name alone."""
YOUNGEST_SECONDS = 60.0
"""A program that has just made a segment may not have mapped it yet, or be about to hand it to another."""


class SegmentFacts(Segment, frozen=True):
    """A segment, with the pids of those processes that have it open or mapped."""

    used_by: tuple[int, ...]
    of_rank: bool = False
    """Whether sparkd has recorded it as that of a rank that has ended."""


class ShmFacts(Struct, frozen=True):
    own_device: int
    segments: tuple[SegmentFacts, ...]
    """Those with an engine's names."""
    unreadable_pids: tuple[int, ...]
    uptime_seconds: float
    """None is older: where one seems to be, the clock was set since, as at a boot with a bad RTC."""


class SharedMemory(Check[ShmFacts], frozen=True):
    """Orphans are a WARN: they take memory, and no launch fails by them alone.

    Root's are known by name, age and use. A person may keep such a segment without a process that uses it: of other
    users it is a rank's only where sparkd has recorded that.
    """

    owners: tuple[int, ...] = (0,)
    id = "shared-memory"
    levels = (Level.WARN,)
    fixes = ("unlink-segment",)

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> SharedMemory:  # noqa: ARG003  # an engine's user may be a person's too
        return cls()

    def probe(self, host: Host) -> ShmFacts:
        named = host.segments(NAMES)
        if not named:
            return ShmFacts(0, (), (), 0.0)
        uses = host.segment_uses(host.processes(), named)
        rank = read_rank(host)
        recorded = rank.record.segments if rank.record is not None and not rank.alive else {}
        segments = tuple(
            SegmentFacts(
                **asdict(segment), used_by=uses.pids(segment), of_rank=recorded.get(segment.path) == segment.identity
            )
            for segment in named
        )
        return ShmFacts(host.files.stat(FOLDER).device, segments, uses.unreadable_pids, host.uptime_seconds())

    def judge(self, facts: ShmFacts) -> Verdict:
        orphans = [segment for segment in facts.segments if self._orphaned(segment, facts)]
        used = sum(bool(segment.used_by) for segment in facts.segments)
        if not orphans:
            return ok(f"no orphaned segments, {used} in use" if used else "no orphaned segments")
        names = ", ".join(segment.name for segment in orphans[:3])
        more = f" and {len(orphans) - 3} more" if len(orphans) > 3 else ""
        held = size(sum(segment.allocated_bytes for segment in orphans))
        if facts.unreadable_pids:
            pids = ", ".join(map(str, facts.unreadable_pids[:3]))
            unread = f"what {len(facts.unreadable_pids)} processes use can't be read (pid {pids})"
            reason = f"{names}{more} ({held}) may be orphaned, but {unread}: kept"
            return warn(reason, "run as root, outside a container; end processes with very many mappings")
        fixes = tuple(
            UnlinkSegment(orphan.path, orphan.device, orphan.inode, orphan.allocated_bytes) for orphan in orphans
        )
        return warn(f"{names}{more} hold {held} and belong to no process", "unlink them", fixes)

    def _orphaned(self, segment: SegmentFacts, facts: ShmFacts) -> bool:
        old = YOUNGEST_SECONDS < segment.age_seconds <= facts.uptime_seconds
        return (
            not segment.used_by
            and (segment.of_rank or (old and segment.uid in self.owners))
            and segment.device == facts.own_device
            and segment.links == 1
        )


QUEUE_BYTES = 160 * MIB
RANK_BYTES = 24 * MIB
"""vLLM 0.32: the queue to the workers, and one back from each worker of this node (167,772,180 and 25,165,836 B)."""


class ShmSizeFacts(Struct, frozen=True):
    total_bytes: int
    free_bytes: int
    set_by: str


class ShmSize(Check[ShmSizeFacts], frozen=True):
    own_bytes: int | None
    """Size of the container's own; None: it has the machine's."""
    is_head: bool
    cluster_size: int
    id = "shm-size"
    levels = (Level.WARN, Level.BLOCK, Level.UNKNOWN)

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> ShmSize:
        own_bytes = None if inputs.host_ipc else inputs.plan.container.shm_size_bytes
        return cls(own_bytes, inputs.plan.node.rank == 0, inputs.plan.node.cluster_size)

    def probe(self, host: Host) -> ShmSizeFacts:
        if self.own_bytes is not None:
            return ShmSizeFacts(self.own_bytes, self.own_bytes, "the container's own /dev/shm")
        memory = host.meminfo().total_bytes
        mount = disks.mount_at(host.files, "/dev/shm")  # noqa: S108 - read only
        total = memory // 2 if mount is None else mount.size_bytes(memory)
        return ShmSizeFacts(total, max(0, total - host.shm_used_bytes()), "the machine's /dev/shm")

    def judge(self, facts: ShmSizeFacts) -> Verdict:
        needed = QUEUE_BYTES + RANK_BYTES
        several = self.cluster_size > 1
        reason = f"{size(facts.free_bytes)} of {size(facts.total_bytes)} free ({facts.set_by})"
        hint = "take container.shm_bytes out of the recipe, or set at least 1073741824"
        if self.own_bytes is None:
            hint = "sudo mount -o remount,size=50% /dev/shm, and look at /etc/fstab"
        if facts.free_bytes >= (GIB if several else needed):
            return ok(reason)
        if facts.free_bytes >= needed:
            return warn(f"{reason}: NCCL keeps buffers there too, 1 GiB is usual", hint)
        reason = f"{reason}, vLLM's queues need {size(needed)}"
        if facts.total_bytes >= needed:
            return warn(reason, "ls -lS /dev/shm")
        return (block if several and self.is_head else warn)(reason, hint)


LOGIND_CONF = tuple(f"{folder}/systemd/logind.conf" for folder in ("/etc", "/run", "/usr/lib"))
"""The first that there is counts, under all drop-ins."""
KEEP_SERVICES = "sudo loginctl enable-linger"  # words: keep
FIRST_PERSON = 1000
"""Users below are the system's own, whose segments logind leaves alone."""


class RemoveIpcFacts(Struct, frozen=True):
    removes: bool
    image_user: str | None = None
    """The image's user, by number or name; empty is root. None: unknown, without the image or docker."""
    login: str = ""
    lingers: bool = False  # words: keep - systemd's word, and a key of the report


class RemoveIpc(Check[RemoveIpcFacts], frozen=True):
    image: str
    host_ipc: bool
    id = "remove-ipc"
    levels = (Level.WARN,)

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> RemoveIpc:
        return cls(inputs.plan.image_to_run, inputs.host_ipc)

    def probe(self, host: Host) -> RemoveIpcFacts:
        if not self.host_ipc or not removes_ipc(host.files):
            return RemoveIpcFacts(removes=False)
        user = docker_image.read_user(host, self.image)
        if user is None or not user.isdecimal():
            return RemoveIpcFacts(removes=True, image_user=user)
        login = processes.user_name(host.files, int(user))
        if login.startswith("uid "):
            return RemoveIpcFacts(removes=True, image_user=user)
        kept = host.files.exists(f"/var/lib/systemd/linger/{login}")  # words: keep
        return RemoveIpcFacts(True, user, login, kept)

    def judge(self, facts: RemoveIpcFacts) -> Verdict:
        if not self.host_ipc:
            return ok("the container has its own /dev/shm")
        if not facts.removes:
            return ok("logind removes no segments")
        if facts.image_user is None:
            return skipped("not checked: docker or the image is away")
        if facts.image_user in ("", "root"):
            return ok("the image runs as root, whose segments stay")
        if not facts.image_user.isdecimal():
            reason = f"the image runs as {facts.image_user}; logind removes the segments of users who log out"
            return warn(reason, "set RemoveIPC=no in /etc/systemd/logind.conf.d")
        runs_as = f"the image runs as {int(facts.image_user)}"
        if int(facts.image_user) < FIRST_PERSON:
            return ok(f"{runs_as}, a user of the system, whose segments stay")
        if not facts.login:
            return ok(f"{runs_as}, who can't log in here")
        if facts.lingers:  # words: keep
            return ok(f"{runs_as}, {facts.login}, whose services logind keeps")
        reason = f"{runs_as}, {facts.login} here: logind removes its segments when {facts.login} logs out"
        return warn(reason, f"{KEEP_SERVICES} {facts.login}")


def removes_ipc(files: Files) -> bool:
    """Whether logind deletes a user's segments and semaphores with the last session: RemoveIPC= of logind.conf(5)."""
    if not files.exists("/usr/lib/systemd/systemd-logind"):
        return False
    value = "yes"
    main = [path for path in LOGIND_CONF if files.exists(path)][:1]
    for path in (*main, *find_drop_ins(files, [f"{path}.d" for path in LOGIND_CONF])):
        for section, key, text in parse_assignments(files.text(path, limit=1 << 20)):
            if (section, key) == ("Login", "RemoveIPC") and text:
                value = text
    return value.lower() not in ("no", "false", "off", "0", "n", "f")
