"""Disk: room where a launch writes, file systems that let it write, and the compile caches that are kept there."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from sparkd.host import Host, caches, disks, docker, docker_config, docker_image
from sparkd.host.caches import Folder
from sparkd.host.disks import Room
from sparkd.lib.dockerd.reader import DockerError, DockerReader
from sparkd.lib.text import GIB, MIB, sanitize, size
from sparkd.plan.model import Cache
from sparkd.preflight.check import Check, Level, Verdict, block, ok, verdict, warn
from sparkd.state import launch_history

FEW_INODES = 100
"""A launch makes some twenty files; the compile caches make thousands."""


class Place(Struct, frozen=True):
    """A folder that is written to. Below `block_bytes` a launch fails, below `warn_bytes` it may fail later."""

    path: str
    what: str
    block_bytes: int
    warn_bytes: int
    optional: bool = False
    """It is judged only where it is there."""
    vital: bool = True
    """A launch fails where it can't be written to."""


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
    caches: bool = True
    id = "disk"
    levels = (Level.WARN, Level.BLOCK, Level.UNKNOWN)
    reads = """statvfs of /var/lib/sparkd, /var/log and docker's folders; /proc/1/mounts; /etc/docker/daemon.json and
    dockerd's arguments"""
    source = "statvfs(3), mounts in proc(5); measured: a compile cache of DeepSeek-V4-Flash has a few GB"
    page = """\
A disk that is full, or that the kernel has made read-only after an error, shows late: the container can't be made, the
engine fails while it compiles, or the count of failed launches is lost. This check requires room in

  /var/lib/sparkd        block below 64 MiB, warn below 256 MiB: state that must survive a power cut
  /var/lib/sparkd/cache  warn below 10 GiB, where the recipe has compile caches; they are kept for three images
  docker's folders       block below 256 MiB, warn below 5 GiB: the container's own layer, its log, new images.
                         data-root of dockerd, else /var/lib/docker; and /var/lib/containerd
  /var/log               warn below 512 MiB: the journal drops old entries

and file systems that are mounted writable. Room reserved for root counts as free, since sparkd and docker are root.
Without free inodes a disk is full too. The model's disk is only read and not judged.

  block  sparkd or docker can't write. Make room (df -h, docker system df). For a file system that has become read-only,
         see dmesg first: a disk that fails does this.
  warn   there is little room."""

    def probe(self, host: Host) -> DiskFacts:
        data_root = docker_config.read_data_root(host)
        dockers = Place(data_root, "docker's containers and images", 256 * MIB, 5 * GIB, optional=True)
        all_places = (STATE, *((CACHES,) if self.caches else ()), dockers, CONTAINERD, LOGS)
        places = {one.path: one for one in all_places if not one.optional or host.files.exists(one.path)}
        return DiskFacts(tuple(PlaceFacts(places[room.path], room) for room in disks.read_rooms(host, places)))

    def judge(self, facts: DiskFacts) -> Verdict:
        if not facts.places:
            return ok("this tree of files does not say how full its disks are")
        worst: dict[str, Verdict] = {}  # folders on one disk: the most pressing one says it for all
        for one in sorted(facts.places, key=lambda one: -one.place.warn_bytes):
            problem = _problem(one.place, one.room)
            known = worst.get(one.room.mount)
            if problem and (known is None or problem.level.severity < known.level.severity):
                worst[one.room.mount] = problem
        free = {one.room.mount: size(one.room.free_bytes) for one in facts.places}
        return verdict(worst.values(), ", ".join(f"{room} free on {mount}" for mount, room in free.items()))


def _problem(place: Place, room: Room) -> Verdict | None:
    where = f"{place.path} ({place.what})"
    if room.read_only:
        reason = f"{room.mount} is mounted read-only, and {where} must be written to"
        return (block if place.vital else warn)(reason, f"look at: dmesg; then: mount -o remount,rw {room.mount}")
    if room.free_inodes is not None and room.free_inodes < FEW_INODES:
        reason = f"{room.free_inodes} inodes free on {room.mount}, for {where}"
        return (block if place.block_bytes else warn)(reason, f"df -i {room.mount}")
    if room.free_bytes >= place.warn_bytes:
        return None
    level, needed = (warn, place.warn_bytes) if room.free_bytes >= place.block_bytes else (block, place.block_bytes)
    reason = f"{size(room.free_bytes)} free on {room.mount}, {size(needed)} needed for {where}"
    return level(reason, f"make room: df -h {room.mount}; docker system df")


WHY_NOT = {"away": "docker is away", "missing": "the image is not on this node"}
SLOW = "the first start compiles from scratch: 36 to 40 minutes were seen"


class CacheFacts(Struct, frozen=True):
    """Of the plan's image, and of the `others` that have caches."""

    image: str
    """"known", "away" (docker), "missing", or why docker did not answer."""
    caches: tuple[Folder, ...] = ()
    user: str = ""
    used_before: tuple[str, ...] = ()
    """Names of the caches that the last good start had, where it was of this very image."""
    others: int = 0
    others_bytes: int = 0
    others_whole: bool = True


class CompileCache(Check[CacheFacts], frozen=True):
    """The image's compile caches can be used, and are still there. A slow start is no fault, and never blocks."""

    image: str
    caches: tuple[Cache, ...]
    compiles: bool = True
    """Whether the plan lets vLLM compile: an eager engine may leave them empty."""
    id = "compile-cache"
    levels = (Level.WARN, Level.BLOCK)
    reads = """docker's description of the image; /var/lib/sparkd/cache, at most 20,000 entries a folder;
    /var/lib/sparkd/launch-history.json"""
    source = """sawaichi9527 (caches of another image, or of one rank alone, stop the boot); tonyd2wild
    DeepSeek-v4-Flash-Vision-Exp pull request 40 (36 minutes to compile again)"""
    page = """\
vLLM, FlashInfer, Triton and others compile kernels at the first start and keep them. A recipe names the folders to keep
under `caches`; sparkd gives each image its own, in /var/lib/sparkd/cache/IMAGE ID/NAME, since kernels of another image
were seen to stop a boot. The three images used last keep theirs, older ones are removed. An image's first start takes
long: readiness.timeout_seconds must allow it (default 3600).

  warn     a cache is gone, or all of them are empty, although the last good start used this image: the next start
           compiles from scratch. Or the image runs as a user who can't write to the folder, which root owns, so nothing
           is kept: chown it to that user.
  block    something other than a folder is in the way, and the container could not be made. Remove it.

Sizes cover at most 20,000 entries: a larger cache has "at least" that size. Where docker is away or the image is
missing, nothing is inspected: see docker and image."""

    def probe(self, host: Host) -> CacheFacts:
        if not self.caches:
            return CacheFacts("known")

        def look(reader: DockerReader) -> tuple[docker_image.Image | None, str | None]:
            return docker_image.read_image(reader, self.image), docker_image.image_identity(reader, self.image)

        try:
            image, identity = docker.query(host, look) or (None, "away")
        except DockerError as error:
            return CacheFacts(sanitize(str(error)))
        if image is None:
            return CacheFacts(identity or "missing")
        good = launch_history.read_history(host.files).good
        same = good.get("image.identity") == identity
        others = caches.others(host.files, image.id)
        return CacheFacts(
            image="known",
            caches=tuple(caches.folder(host.files, caches.path(image.id, one.name)) for one in self.caches),
            user=image.user.partition(":")[0],
            used_before=tuple(key.removeprefix("caches.") for key in good if same and key.startswith("caches.")),
            others=len(others),
            others_bytes=sum(one.bytes for one in others),
            others_whole=all(one.whole for one in others),
        )

    def judge(self, facts: CacheFacts) -> Verdict:
        if not self.caches:
            return ok("the recipe keeps none")
        if facts.image != "known":
            return ok(f"not inspected: {WHY_NOT.get(facts.image, facts.image)}")
        kept = [one for one in facts.caches if one.files]
        least = _least(sum(one.bytes for one in kept), all(one.whole for one in kept))
        good = f"{least} kept for this image" if kept else f"none yet for this image: {SLOW}"
        if facts.others:
            images = "1 other image has" if facts.others == 1 else f"{facts.others} other images have"
            good += f"; {images} {_least(facts.others_bytes, facts.others_whole)}"
        return verdict(self._problems(facts), good)

    def _problems(self, facts: CacheFacts) -> Iterator[Verdict]:
        for one in facts.caches:
            mine = facts.user in ("", "root", "0", str(one.uid)) or one.writable_by_others
            if one.kind not in ("folder", "missing"):
                yield block(f"{one.path} is no folder, but a {one.kind}", f"remove it: rm {one.path}")
            elif one.kind == "folder" and not mine and one.uid == 0:
                reason = f"the image runs as {facts.user}, who can't write to {one.path}: nothing will be kept"
                yield warn(reason, f"chown it to that user's number: chown UID {one.path}")
        # One cache of the last good start may be empty now, but its folder stays.
        known = [one for one in facts.caches if one.name in facts.used_before]
        gone = ", ".join(one.name for one in known if one.kind == "missing")
        if self.compiles and (gone or (known and all(one.empty for one in facts.caches))):
            lost = f"the cache {gone} is gone" if gone else "its caches are empty"
            reason = f"{lost}, although the last good start was of this image: {SLOW}"
            yield warn(reason, "let readiness.timeout_seconds allow it; find what cleans /var/lib/sparkd/cache")


def _least(count: int, whole: bool) -> str:
    return size(count) if whole else f"at least {size(count)}"
