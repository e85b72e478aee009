"""The compile caches of the plan's image: kept, empty, or to be made."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host import boots, caches, docker, docker_image
from sparkd.lib.dockerd.reader import DockerUnreadableError
from sparkd.lib.text import sanitize
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.problems import Problem, verdict
from sparkd.preflight.sizes import size

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.caches import Folder
    from sparkd.launch.plan import Cache
    from sparkd.lib.dockerd.reader import DockerReader

SLOW = "the first start compiles anew: 36 to 40 minutes were seen"


class CacheFacts(Struct, frozen=True):
    image: str
    """"known", "away" (docker), "missing", or why docker could not be asked."""
    caches: tuple[Folder, ...] = ()
    """Of the plan's image."""
    user: str = ""
    """Whom the image runs as."""
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
    id: ClassVar[str] = "compile-cache"
    about: ClassVar[About] = About(
        levels=(Level.WARN, Level.BLOCK),
        reads="docker's description of the image; /var/lib/sparkd/cache, at most 20,000 entries a folder; "
        "/var/lib/sparkd/boots.json",
        source="sawaichi9527 (caches of another image, or of one rank alone, stop the boot); tonyd2wild "
        "DeepSeek-v4-Flash-Vision-Exp pull request 40 (36 minutes to compile anew)",
        page="""\
vLLM, FlashInfer, Triton and others compile kernels at the first start and keep them. A recipe names the folders to keep
under `caches`; sparkd gives each image its own, in /var/lib/sparkd/cache/IMAGE ID/NAME, and never gives one image the
kernels of another: stale ones were seen to stop a boot. The three images used last keep theirs, older ones are removed.

  ok       they are there, with what they hold; or this image has none yet, and its first start takes long: let
           readiness.timeout_seconds allow it (3600 by itself). What other images keep is said too.
  warn     a cache is gone, or all of them are empty, although the last good start was of this image: somebody has
           removed them, and the next start compiles anew. Or the image runs as a user who can't write to the folder,
           which root owns, so that nothing will be kept: chown it to that user.
  block    something that is no folder is in the way, and the container could not be made. Remove it.

Whether there is room, and whether the disk can be written to, is the concern of disk. Sizes are of at most 20,000
entries: of a larger cache, "at least" is said. Where docker is away or the image is missing nothing is looked at:
docker and image say so.""",
    )

    def probe(self, host: Host) -> CacheFacts:
        if not self.caches:
            return CacheFacts("known")

        def look(reader: DockerReader) -> tuple[docker_image.Image | None, str | None]:
            return docker_image.read(reader, self.image), docker.image_identity(reader, self.image)

        try:
            image, identity = docker.asked(host, look) or (None, "away")
        except DockerUnreadableError as error:
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
            return Verdict(Level.OK, "the recipe keeps none")
        if facts.image != "known":
            return Verdict(Level.OK, f"not looked at: {_why_not(facts.image)}")
        problems = [problem for one in facts.caches if (problem := _problem(one, facts.user)) is not None]
        lost = self._lost(facts) if self.compiles else ""
        if lost:
            reason = f"{lost}, although the last good start was of this image: {SLOW}"
            hint = "let readiness.timeout_seconds allow it; who cleans /var/lib/sparkd/cache?"
            problems.append(Problem(Level.WARN, reason, hint))
        kept = [one for one in facts.caches if one.files]
        total = sum(one.bytes for one in kept)
        whole = all(one.whole for one in kept)
        said = f"{_least(total, whole)} kept for this image" if kept else f"none yet for this image: {SLOW}"
        if facts.others:
            images = "1 other image has" if facts.others == 1 else f"{facts.others} other images have"
            said = f"{said}; {images} {_least(facts.others_bytes, facts.others_whole)}"
        return verdict(problems, said)

    def _lost(self, facts: CacheFacts) -> str:
        """What the last good start had and this one has not. One may stay empty for ever, a folder is always made."""
        known = [one for one in facts.caches if one.name in facts.used_before]
        gone = [one.name for one in known if one.kind == "missing"]
        if gone:
            return f"the cache {', '.join(gone)} is gone"
        return "its caches are empty" if known and all(one.empty for one in facts.caches) else ""


def _used_before(host: Host, identity: str | None) -> tuple[str, ...]:
    try:
        good = boots.read(host.files).good
    except OSError:
        return ()
    if good.get("image.identity") != identity:
        return ()
    return tuple(key.removeprefix("caches.") for key in good if key.startswith("caches."))


def _why_not(image: str) -> str:
    return {"away": "docker is away", "missing": "the image is not on this node"}.get(image, image)


def _least(count: int, whole: bool) -> str:
    return size(count) if whole else f"at least {size(count)}"


def _problem(one: Folder, user: str) -> Problem | None:
    if one.kind not in ("folder", "missing"):
        return Problem(Level.BLOCK, f"{one.path} is no folder, but a {one.kind}", f"remove it: rm {one.path}")
    mine = user in ("", "root", "0", str(one.uid)) or one.writable_by_others
    if one.kind == "folder" and not mine and one.uid == 0:
        reason = f"the image runs as {user}, who can't write to {one.path}: nothing will be kept"
        return Problem(Level.WARN, reason, f"chown it to that user's number: chown UID {one.path}")
    return None
