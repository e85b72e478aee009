"""Disk: room where a launch writes, and file systems that let it write."""

from shlex import quote

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, block, combine_verdicts, ok, warn
from sparkd.base.host import Host, disks, docker_config
from sparkd.base.host.disks import Room
from sparkd.base.lib.text import GIB, MIB, size
from sparkd.base.plan.model import LaunchPlan

FEW_INODES = 100
"""A launch makes some twenty files; the compile caches make thousands."""


class Place(Struct, frozen=True):
    """A folder that is written to. Below `block_bytes` a launch fails, below `warn_bytes` it may fail later.

    With a `block_bytes` of 0 a full disk fails no launch.
    """

    path: str
    what: str
    """Its use, in words."""
    block_bytes: int
    warn_bytes: int
    optional: bool = False
    """Whether it is judged only where it exists."""
    vital: bool = True
    """Whether a launch fails where it can't be written to."""


STATE = Place("/var/lib/sparkd", "sparkd's own files, such as the count of failed launches", 64 * MIB, 256 * MIB)
CACHES = Place("/var/lib/sparkd/cache", "compile caches", 0, 10 * GIB)
LOGS = Place("/var/log", "the journal", 0, 512 * MIB, optional=True, vital=False)
CONTAINERD = Place("/var/lib/containerd", "docker's images", 256 * MIB, 5 * GIB, optional=True)


class PlaceFacts(Struct, frozen=True):
    place: Place
    room: Room


class DiskFacts(Struct, frozen=True):
    places: tuple[PlaceFacts, ...]


class DiskRoom(Check[DiskFacts], frozen=True):
    plan_if_any: LaunchPlan | None = None
    id = "disk"
    levels = (Level.WARN, Level.BLOCK, Level.UNKNOWN)

    def probe(self, host: Host) -> DiskFacts:
        data_root = docker_config.read_data_root(host)
        docker_data = Place(data_root, "docker's containers and images", 256 * MIB, 5 * GIB, optional=True)
        keeps_caches = self.plan_if_any is None or self.plan_if_any.caches  # also where there is no plan
        all_places = (STATE, *((CACHES,) if keeps_caches else ()), docker_data, CONTAINERD, LOGS)
        places = {place.path: place for place in all_places if not place.optional or host.files.exists(place.path)}
        return DiskFacts(tuple(PlaceFacts(places[room.path], room) for room in disks.read_rooms(host, places)))

    def judge(self, facts: DiskFacts) -> Verdict:
        if not facts.places:
            return ok("this tree of files does not say how full its disks are")
        worst: dict[str, Verdict] = {}  # by mount: of folders on one disk only the worst problem is reported
        for usage in sorted(facts.places, key=lambda usage: -usage.place.warn_bytes):
            problem = _find_problem(usage.place, usage.room)
            worst_problem = worst.get(usage.room.mount)
            if problem and (worst_problem is None or problem.level.severity < worst_problem.level.severity):
                worst[usage.room.mount] = problem
        free_bytes = {usage.room.mount: usage.room.free_bytes for usage in facts.places}
        good = ", ".join(f"{size(count)} free on {mount}" for mount, count in free_bytes.items())
        return combine_verdicts(worst.values(), good)


def _find_problem(place: Place, room: Room) -> Verdict | None:
    place_text, mount = f"{place.path} ({place.what})", quote(room.mount)
    if room.read_only:
        reason = f"{room.mount} is mounted read-only, and {place_text} must be written to"
        return (block if place.vital else warn)(reason, f"look at: sudo dmesg; then: sudo mount -o remount,rw {mount}")
    if room.free_inodes is not None and room.free_inodes < FEW_INODES:
        reason = f"{room.free_inodes} inodes free on {room.mount}, for {place_text}"
        return (block if place.block_bytes else warn)(reason, f"df -i {mount}")
    if room.free_bytes >= place.warn_bytes:
        return None
    level, needed = (warn, place.warn_bytes) if room.free_bytes >= place.block_bytes else (block, place.block_bytes)
    reason = f"{size(room.free_bytes)} free on {room.mount}, {size(needed)} needed for {place_text}"
    return level(reason, f"make room: df -h {mount}; sudo docker system df")
