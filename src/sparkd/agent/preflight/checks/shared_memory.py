"""Segments in /dev/shm: those that engines have left, and whether logind would delete those of a running engine."""

import re

from msgspec import Struct
from msgspec.structs import asdict

from sparkd.agent.preflight.check import Check, Level, Verdict, ok, skipped, warn
from sparkd.agent.preflight.fixes import UnlinkSegment, by_start
from sparkd.base.host import Host, docker_image, processes
from sparkd.base.host.files import Files
from sparkd.base.host.shm import FOLDER, Segment
from sparkd.base.host.units import find_drop_ins, parse_assignments
from sparkd.base.lib.text import size
from sparkd.base.plan.model import LaunchPlan
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
    _owner_uid: int = 0
    """Whose segments are known by name, age and use: root's."""


class SharedMemory(Check[ShmFacts], frozen=True):
    """Orphans are a WARN: they take memory, and no launch fails by them alone.

    Root's orphans are known by name, age and use. Another user may keep such a segment on purpose, without a process
    that uses it: it counts as a rank's only where sparkd has recorded it.
    """

    id = "shared-memory"
    levels = (Level.WARN,)
    fixes = ("unlink-segment",)

    def probe(self, host: Host) -> ShmFacts:
        named = host.segments(NAMES)
        if not named:
            return ShmFacts(0, (), (), 0.0)
        uses, own_device = host.segment_uses(host.processes(), named), host.files.stat(FOLDER).device
        rank = read_rank(host)
        recorded = rank.record.segments if rank.record is not None and not rank.alive else {}
        of_rank = {segment for segment in named if recorded.get(segment.path) == segment.identity}
        segments = (
            SegmentFacts(**asdict(segment), used_by=uses.pids(segment), of_rank=segment in of_rank) for segment in named
        )
        unreadable_pids, uptime_seconds = uses.unreadable_pids, host.uptime_seconds()
        return ShmFacts(own_device, tuple(segments), unreadable_pids, uptime_seconds, host.files.owner_uid)

    def judge(self, facts: ShmFacts) -> Verdict:
        orphans = [segment for segment in facts.segments if _is_orphan(segment, facts)]
        used = sum(bool(segment.used_by) for segment in facts.segments)
        if not orphans:
            return ok(f"no orphaned segments, {used} in use" if used else "no orphaned segments")
        names = ", ".join(segment.name for segment in orphans[:3])
        more = f" and {len(orphans) - 3} more" if len(orphans) > 3 else ""
        total = size(sum(segment.allocated_bytes for segment in orphans))
        if facts.unreadable_pids:
            pids = ", ".join(map(str, facts.unreadable_pids[:3]))
            unread = f"what others use can't be read: {len(facts.unreadable_pids)}, such as pid {pids}"
            reason = f"{names}{more} ({total}) may be orphaned, but {unread}: kept"
            hint = "as root, outside a container: sudo sparkd preflight; end processes with very many mappings"
            return warn(reason, hint)
        fixes = tuple(
            UnlinkSegment(orphan.path, orphan.device, orphan.inode, orphan.allocated_bytes) for orphan in orphans
        )
        return warn(f"{names}{more} hold {total} and belong to no process", by_start("unlinks them"), fixes)


def _is_orphan(segment: SegmentFacts, facts: ShmFacts) -> bool:
    is_old = YOUNGEST_SECONDS < segment.age_seconds <= facts.uptime_seconds
    return (
        not segment.used_by
        and (segment.of_rank or (is_old and segment.uid == facts._owner_uid))
        and segment.device == facts.own_device
        and segment.links == 1
    )


LOGIND_CONF = tuple(f"{folder}/systemd/logind.conf" for folder in ("/etc", "/run", "/usr/lib"))
"""The first one that exists counts; all drop-ins override it."""
KEEP_SERVICES = "sudo loginctl enable-linger"  # words: keep
FIRST_PERSON = 1000
"""Least number of a person. Lower ones are users of the system, whose segments logind leaves alone."""


class RemoveIpcFacts(Struct, frozen=True):
    removes: bool
    image_user: str | None = None
    """The image's user, by number or name; empty is root. None: unknown, without the image or docker."""
    login: str = ""
    """The name of this user on the node; empty where there is none."""
    lingers: bool = False  # words: keep - systemd's word, and a key of the report


class RemoveIpc(Check[RemoveIpcFacts], frozen=True):
    """Whether logind would delete the engine's segments when the engine's user logs out."""

    plan: LaunchPlan
    host_ipc: bool
    id = "remove-ipc"
    levels = (Level.WARN,)

    def probe(self, host: Host) -> RemoveIpcFacts:
        if not self.host_ipc or not removes_ipc(host.files):
            return RemoveIpcFacts(removes=False)
        user = docker_image.read_user(host, self.plan.image_to_run)
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
    main_file = [path for path in LOGIND_CONF if files.exists(path)][:1]
    for path in (*main_file, *find_drop_ins(files, [f"{path}.d" for path in LOGIND_CONF])):
        for section, key, text in parse_assignments(files.text(path, limit=1 << 20)):
            if (section, key) == ("Login", "RemoveIPC") and text:
                value = text
    return value.lower() not in ("no", "false", "off", "0", "n", "f")
