"""`sparkd image`: the engine's image, copied to the other nodes."""

from __future__ import annotations

import argparse
import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from sparkd.commands import other_nodes
from sparkd.errors import BlockedError, UsageError
from sparkd.preflight.sizes import size

if TYPE_CHECKING:
    from sparkd.hands.peer import Peer
    from sparkd.host import Host
    from sparkd.lib.dockerd.reader import DockerReader
    from sparkd.settings import Settings

SCRATCH = ".cache/sparkd"
"""Below the home of whoever copies, on both sides: nobody else can put a file there."""
LOAD_SECONDS = 3600.0
SPARE_BYTES = 1 << 30
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    sync = actions.add_parser(
        "sync",
        help="copy an image to the other nodes, or go on with that",
        description="Give the other nodes the image that this one has, by docker save, rsync over ssh and docker load. "
        "A node that has it already is left alone.",
    )
    sync.add_argument("ref", nargs="?", metavar="IMAGE", help="such as name:tag; the plan's where none is named")
    other_nodes.arguments(sync)


def run(args: argparse.Namespace) -> int:
    from sparkd import settings
    from sparkd.hands.images import alone, remove
    from sparkd.host import Host

    host = Host()
    configured = settings.load(None, os.environ)
    peers = other_nodes.chosen(args, configured, host)
    image = _look(_ref(args.ref, configured, host), host)
    with alone(image.file.parent):
        code = other_nodes.each(peers, partial(_copy, image, host))
        if code and image.file.exists():
            print(f"kept {image.file} ({size(image.file.stat().st_size)}): the same command goes on with it")
        else:
            remove(image.file)
    return code


class _Image(Struct, frozen=True):
    ref: str
    identity: str
    size_bytes: int
    """Of its layers, unpacked."""

    @property
    def name(self) -> str:
        """Of the file, the same on both sides: what is there of it is this image's."""
        return f"image-{self.identity[:32]}.tar"

    @property
    def file(self) -> Path:
        return Path.home() / SCRATCH / self.name


def _ref(word: str | None, settings: Settings, host: Host) -> str:
    from sparkd.roles import context

    ref = word or context(settings, None, host).plan.image
    if not _REF.fullmatch(ref):
        raise UsageError(f"{ref!r} is no name of an image", "such as name:tag")
    if "@" in ref:
        raise UsageError(
            f"{ref} is named by its digest, which no docker load brings back",
            "docker pull it there; or docker tag it here, and name the tag",
        )
    return ref


def _look(ref: str, host: Host) -> _Image:
    from sparkd.host import docker, docker_image
    from sparkd.lib.dockerd.reader import DockerUnreadableError

    def ask(reader: DockerReader) -> tuple[str | None, docker_image.Image | None]:
        return docker.image_identity(reader, ref), docker_image.read(reader, ref)

    try:
        found = docker.asked(host, ask)
    except DockerUnreadableError as error:
        raise BlockedError(f"docker can't be asked for {ref}: {error}", "systemctl status docker") from None
    if found is None:
        raise BlockedError("docker is not running on this node", "systemctl start docker")
    identity, image = found
    if identity is None or image is None:
        raise BlockedError(f"image {ref} is not on this node", f"docker pull {ref}")
    return _Image(ref, identity, image.size_bytes)


def _copy(image: _Image, host: Host, peer: Peer) -> None:
    from sparkd.hands.images import remove

    there = f"{SCRATCH}/{image.name}"
    before = _identity(image, peer)
    if before == image.identity:
        peer.ask("rm", "-f", "--", there)
        print(f"{peer.address}: has {image.ref} already", flush=True)
        return
    _room(image, peer, there)
    if not image.file.exists():
        _save(image, host)
    length = size(image.file.stat().st_size)
    print(f"{peer.address}: {length} to send", flush=True)
    # In place: nobody reads it meanwhile, and what is there of it is gone on with whatever ended the copy before.
    peer.send(str(image.file), f"{SCRATCH}/", "--inplace")
    print(f"{peer.address}: docker loads it", flush=True)
    peer.ask("docker", "load", "--input", there, seconds=LOAD_SECONDS)
    after = _identity(image, peer)
    peer.ask("rm", "-f", "--", there)
    if after != image.identity:
        remove(image.file)
        raise BlockedError(f"{peer.address}: what docker has loaded is not {image.ref} as it is here", "try once more")
    replaced = "; the image that had this name stays there without it" if before else ""
    print(f"{peer.address}: has {image.ref} now{replaced}", flush=True)


def _identity(image: _Image, peer: Peer) -> str | None:
    from sparkd.hands.images import PeerDocker
    from sparkd.host.docker import image_identity
    from sparkd.lib.dockerd.reader import DockerUnreadableError

    try:
        return image_identity(PeerDocker(peer), image.ref)
    except DockerUnreadableError as error:
        raise BlockedError(f"{peer.address}: its docker can't be asked for {image.ref}: {error}") from None


def _room(image: _Image, peer: Peer, there: str) -> None:
    """For the file, less what is there of it, and for what docker makes of it."""
    root = peer.ask("docker", "info", "--format", "{{.DockerRootDir}}").strip()
    file_bytes = max(0, image.size_bytes - peer.length(there))
    wanted = ((peer.room(SCRATCH), file_bytes), (peer.room(root or "/"), image.size_bytes))
    for (mount, free_bytes), _ in wanted:
        need_bytes = SPARE_BYTES + sum(size_bytes for room, size_bytes in wanted if room.mount == mount)
        if free_bytes < need_bytes:
            raise BlockedError(
                f"{peer.address}: {size(free_bytes)} free on {mount}, {size(need_bytes)} needed for {image.ref}",
                f"make room there: df -h {mount}; docker system df",
            )


def _save(image: _Image, host: Host) -> None:
    from sparkd.commands.console import Progress
    from sparkd.hands import images
    from sparkd.host.disks import rooms

    (room,) = rooms(host, (str(image.file.parent),))
    need_bytes = image.size_bytes + SPARE_BYTES
    if room.free_bytes < need_bytes:
        raise BlockedError(
            f"{size(room.free_bytes)} free on {room.mount} here, {size(need_bytes)} needed for {image.file}",
            f"make room: df -h {room.mount}; docker system df",
        )
    print(f"docker writes {image.ref} to {image.file}", flush=True)
    with Progress(1, image.size_bytes) as progress:
        progress.next(image.ref)
        images.save(image.ref, image.file, progress.done)
