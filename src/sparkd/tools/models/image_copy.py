"""Copies of the engine's image, from this node's docker to the docker of other nodes."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

from sparkd.agent.actions.files import remove
from sparkd.agent.actions.image_archive import lock_scratch
from sparkd.base.cluster.membership import resolve_context
from sparkd.base.config import Settings
from sparkd.base.host import Host, docker, docker_image
from sparkd.base.host.disks import read_rooms
from sparkd.base.lib.dockerd.reader import FORBIDDEN, DockerError, DockerReader
from sparkd.base.lib.errors import BlockedError, ExitCode, SparkdError, UsageError
from sparkd.base.lib.text import parse_json, size
from sparkd.tools.models.image_store import ImageSizes, find_store, read_sizes
from sparkd.tools.models.peers import require_room, run_on_each
from sparkd.tools.models.ssh import USER, SshHost

SCRATCH = ".cache/sparkd"
"""A folder below the user's home, on both sides: nobody else can put a file there."""
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_LIST = 'cd -- "$1" 2>/dev/null && stat -c "%s %n" -- image-* 2>/dev/null; true'
_ARCHIVE = re.compile(r"image-[0-9a-f]{32}\.(?:tar|part)")
_LISTED = re.compile(rf"^(\d{{1,18}}) ({_ARCHIVE.pattern})$", re.MULTILINE)
"""Bytes and name of an archive, in a line of _LIST."""


class Image(Struct, frozen=True):
    """An image to copy."""

    ref: str
    identity: str
    """Its `docker_image.identity_of`, equal on all nodes that have it."""
    sizes: ImageSizes

    @property
    def file(self) -> Path:
        """The archive. Its name is the same on both sides and has the identity, so a partial one can be resumed."""
        return Path.home() / SCRATCH / f"image-{self.identity[:32]}.tar"


def find_image(word: str | None, settings: Settings, host: Host) -> Image:
    """The image of that name, or the plan's. Raises UsageError, BlockedError."""
    planned = ""
    with suppress(SparkdError) if word else nullcontext():
        planned = resolve_context(settings, None, host).plan.image
    ref = word or planned
    if not _REF.fullmatch(ref):
        raise UsageError(f"{ref!r} is no name of an image", "such as name:tag")
    if "@" in ref:
        hint = "sudo docker pull it there; or sudo docker tag it here, and name the tag"
        raise UsageError(f"{ref} is named by its digest, which no docker load brings back", hint)
    preflight = "get it on one node: sudo sparkd preflight --dry-run says how"  # of the plan's image alone
    get = preflight if ref == planned else docker_image.how_to_get(ref, "")
    try:
        image = docker.query(host, partial(_read_image, ref, get))
    except DockerError as error:
        join = f"sudo usermod -aG docker {USER} && newgrp docker"
        hint = join if FORBIDDEN in str(error) else "systemctl status docker"
        raise BlockedError(f"docker can't look up {ref}: {error}", hint) from None
    if image is None:
        raise BlockedError("docker is not running on this node", "sudo systemctl start docker")
    return image


def _read_image(ref: str, get: str, reader: DockerReader) -> Image:
    """Raises BlockedError where there is none, with the hint `get`, and DockerError."""
    identity, image = docker_image.image_identity(reader, ref), docker_image.read_image(reader, ref)
    if identity is None or image is None:
        raise BlockedError(f"image {ref} is not on this node", get)
    return Image(ref, identity, read_sizes(reader, image))


def send_image(
    image: Image, peers: Sequence[SshHost], host: Host, save: Callable[[Image], None], show: Callable[[str], None]
) -> ExitCode:
    """Send the image to each of these nodes. `save` lets docker write it to its file. Returns 10 if any node failed."""
    folder, code = image.file.parent, ExitCode.BLOCKED  # stays so where Ctrl-C ends the copying: the archive is kept
    with lock_scratch(folder):
        paths = sorted(path for path in folder.iterdir() if _ARCHIVE.fullmatch(path.name))
        _show_others(image, ((path.name, path.stat().st_size) for path in paths), f"rm {folder}/", "", show)
        try:
            code = run_on_each(peers, partial(_copy_to, image, host, save, show))
        finally:
            if code is ExitCode.GOOD:
                remove(image.file)
            elif image.file.exists():
                show(f"kept {image.file} ({size(image.file.stat().st_size)}): the same command resumes with it")
    return code


def _show_others(
    image: Image, archives: Iterable[tuple[str, int]], command: str, where: str, show: Callable[[str], None]
) -> None:
    """Name the archives of other images, each with the command that removes it. `archives`: names and bytes.

    None is removed: another node may be sending it at that moment.
    """
    for name, size_bytes in archives:
        if not name.startswith(f"{image.file.stem}."):
            show(f"{where}{size(size_bytes)} are kept of another image; when no sync needs them:")
            show(f"{'' if os.geteuid() else 'sudo '}{command}{name}")


def _copy_to(
    image: Image, host: Host, save: Callable[[Image], None], show: Callable[[str], None], peer: SshHost
) -> None:
    """Copy the image to a peer that does not have it, and load it there. Raises BlockedError."""
    remote_file = f"{SCRATCH}/{image.file.name}"
    listing = peer.run_checked("sh", "-c", _LIST, "sh", SCRATCH)
    archives = ((name, int(size_text)) for size_text, name in _LISTED.findall(listing))
    _show_others(image, archives, f"ssh {peer.login} rm {SCRATCH}/", f"{peer.address}: ", show)
    identity_before = _read_identity(image, peer)
    if identity_before == image.identity:
        peer.run_checked("rm", "-f", "--", remote_file)
        show(f"{peer.address}: has {image.ref} already")
        return
    check_room(image, peer, remote_file)
    if not image.file.exists():
        (room,) = read_rooms(host, (str(image.file.parent),))
        require_room(room, image.sizes.archive_bytes, f" here for {image.file}", "; sudo docker system df", None)
        save(image)
    show(f"{peer.address}: {size(image.file.stat().st_size)} to send")
    # In place, so that a partial file is resumed: nothing reads it meanwhile.
    peer.send(str(image.file), f"{SCRATCH}/", "--inplace")
    show(f"{peer.address}: docker loads it")
    peer.run_checked("docker", "load", "--input", remote_file, seconds=3600.0)
    identity_after = _read_identity(image, peer)
    peer.run_checked("rm", "-f", "--", remote_file)
    if identity_after != image.identity:
        remove(image.file)
        raise BlockedError(f"{peer.address}: what docker has loaded is not {image.ref} as it is here", "try once more")
    replaced = "; the image that had this name stays there without it" if identity_before else ""
    show(f"{peer.address}: has {image.ref} now{replaced}")


def _read_identity(image: Image, peer: SshHost) -> str | None:
    """The identity of the peer's image of that name; None without one. Raises BlockedError."""
    try:
        return docker_image.identity_of(peer.inspect_image(image.ref), image.ref)
    except DockerError as error:
        raise BlockedError(f"{peer.address}: its docker can't look up {image.ref}: {error}") from None


def check_room(image: Image, peer: SshHost, remote_file: str) -> None:
    """Raises BlockedError without room there for the rest of the file, and for the image in docker."""
    info = peer.run_checked("docker", "info", "--format", "{{json .}}")
    try:
        store = find_store(parse_json(info))
    except ValueError:
        raise BlockedError(f"{peer.address}: docker info is not JSON", f"ssh {peer.login} docker info") from None
    file_bytes = max(0, image.sizes.archive_bytes - peer.read_size(remote_file))
    needs = ((peer.read_room(SCRATCH), file_bytes), (peer.read_room(store.folder), image.sizes.in_store(store)))
    for room, _ in needs:  # both may be on one file system, which then needs the sum
        need_bytes = sum(size_bytes for other_room, size_bytes in needs if other_room.mount == room.mount)
        require_room(room, need_bytes, f" for {image.ref}", "; sudo docker system df", peer)
