"""The compile caches of the plan's image: kept, empty, or missing."""

from __future__ import annotations

from msgspec import Struct

from sparkd.host import Host, caches, docker, docker_image
from sparkd.host.caches import Folder
from sparkd.lib.dockerd.reader import DockerError, DockerReader
from sparkd.lib.text import sanitize, size
from sparkd.plan.model import Cache
from sparkd.preflight.check import Check, Level, Verdict, block, ok, verdict, warn
from sparkd.state import launch_history
from sparkd.state.file import ignore_report

WHY_NOT = {"away": "docker is away", "missing": "the image is not on this node"}
SLOW = "the first start compiles from scratch: 36 to 40 minutes were seen"


class CacheFacts(Struct, frozen=True):
    image: str
    """"known", "away" (docker), "missing", or why docker did not answer."""
    caches: tuple[Folder, ...] = ()
    """Of the plan's image."""
    user: str = ""
    """User of the image."""
    used_before: tuple[str, ...] = ()
    """Names of the caches that the last good start had, where it was of this very image."""
    others: int = 0
    """Other images with caches."""
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
    reads = (
        "docker's description of the image; /var/lib/sparkd/cache, at most 20,000 entries a folder; "
        "/var/lib/sparkd/launch-history.json"
    )
    source = (
        "sawaichi9527 (caches of another image, or of one rank alone, stop the boot); tonyd2wild "
        "DeepSeek-v4-Flash-Vision-Exp pull request 40 (36 minutes to compile again)"
    )
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
        own = tuple(caches.folder(host.files, caches.path(image.id, one.name)) for one in self.caches)
        others = caches.others(host.files, image.id)
        return CacheFacts(
            image="known",
            caches=own,
            user=image.user.partition(":")[0],
            used_before=_used_before(host, identity),
            others=len(others),
            others_bytes=sum(one.bytes for one in others),
            others_whole=all(one.whole for one in others),
        )

    def judge(self, facts: CacheFacts) -> Verdict:
        if not self.caches:
            return ok("the recipe keeps none")
        if facts.image != "known":
            return ok(f"not inspected: {WHY_NOT.get(facts.image, facts.image)}")
        problems = [problem for one in facts.caches if (problem := _problem(one, facts.user)) is not None]
        lost = self._lost(facts) if self.compiles else ""
        if lost:
            reason = f"{lost}, although the last good start was of this image: {SLOW}"
            hint = "let readiness.timeout_seconds allow it; find what cleans /var/lib/sparkd/cache"
            problems.append(warn(reason, hint))
        kept = [one for one in facts.caches if one.files]
        least = _least(sum(one.bytes for one in kept), all(one.whole for one in kept))
        good = f"{least} kept for this image" if kept else f"none yet for this image: {SLOW}"
        if facts.others:
            images = "1 other image has" if facts.others == 1 else f"{facts.others} other images have"
            good += f"; {images} {_least(facts.others_bytes, facts.others_whole)}"
        return verdict(problems, good)

    def _lost(self, facts: CacheFacts) -> str:
        """Caches of the last good start that are gone now, or all empty: one may be empty, but its folder stays."""
        known = [one for one in facts.caches if one.name in facts.used_before]
        gone = [one.name for one in known if one.kind == "missing"]
        if gone:
            return f"the cache {', '.join(gone)} is gone"
        return "its caches are empty" if known and all(one.empty for one in facts.caches) else ""


def _used_before(host: Host, identity: str | None) -> tuple[str, ...]:
    good = launch_history.read_history(host.files, ignore_report).good
    same = good.get("image.identity") == identity
    return tuple(key.removeprefix("caches.") for key in good if same and key.startswith("caches."))


def _least(count: int, whole: bool) -> str:
    return size(count) if whole else f"at least {size(count)}"


def _problem(one: Folder, user: str) -> Verdict | None:
    if one.kind not in ("folder", "missing"):
        return block(f"{one.path} is no folder, but a {one.kind}", f"remove it: rm {one.path}")
    mine = user in ("", "root", "0", str(one.uid)) or one.writable_by_others
    if one.kind == "folder" and not mine and one.uid == 0:
        reason = f"the image runs as {user}, who can't write to {one.path}: nothing will be kept"
        return warn(reason, f"chown it to that user's number: chown UID {one.path}")
    return None
