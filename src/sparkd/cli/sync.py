"""Copies to other nodes: what every `sync` shares, and `sparkd image sync`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from msgspec import Struct

from sparkd.config import Settings, load_settings
from sparkd.host import Host
from sparkd.host.disks import Room, read_rooms
from sparkd.lib.errors import BlockedError, ExitCode, SparkdError, UsageError
from sparkd.lib.text import size

if TYPE_CHECKING:
    from sparkd.actions.ssh import PeerRoom, SshHost

SCRATCH = ".cache/sparkd"
"""Below the user's home, on both sides: nobody else can put a file there."""
LOAD_SECONDS = 3600.0
SPARE_BYTES = 1 << 30
"""Left on a disk beside what is written."""
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9._-]+)?")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


def add_targets(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to",
        metavar="ADDRESS",
        action="append",
        help="node to copy to, by address or by name in ssh's configuration, given for each one; all others of "
        "cluster.nodes by default",
    )
    parser.add_argument("--user", help="user to log in as there; ssh's own choice by default")


def choose_peers(args: argparse.Namespace, settings: Settings, host: Host) -> tuple[SshHost, ...]:
    """The nodes of the cluster, or those that are named. Raises UsageError where there are none."""
    from sparkd.actions.ssh import SshHost
    from sparkd.host.network import canonical

    if args.user is not None and not _USER.fullmatch(args.user):
        raise UsageError(f"{args.user!r} is no name of a user")
    own = host.addresses()
    for one in args.to or ():
        if not _HOST.fullmatch(one):
            raise UsageError(f"{one!r} is neither an address nor the name of a host")
        with suppress(ValueError):
            if canonical(one) in own:
                raise UsageError(f"{one} is this node itself")
    addresses = args.to or [one for one in settings.cluster.nodes if canonical(one) not in own]
    if not addresses:
        raise UsageError("cluster.nodes names no other node", "name one: --to ADDRESS")
    return tuple(SshHost(one, args.user or "") for one in dict.fromkeys(addresses))


def run_on_each(peers: Iterable[SshHost], act: Callable[[SshHost], None]) -> ExitCode:
    """One after the other; a failure is printed, and the next peer follows. 10 where any failed."""
    code = ExitCode.GOOD
    for peer in peers:
        try:
            act(peer)
        except SparkdError as error:
            print(f"sparkd: {error}", file=sys.stderr, flush=True)
            code = ExitCode.BLOCKED
    return code


def require_room(room: Room | PeerRoom, need_bytes: int, what: str, remedy: str, peer: SshHost | None) -> None:
    """Raises BlockedError where less than `need_bytes` is free, with some to spare."""
    if room.free_bytes < need_bytes + SPARE_BYTES:
        where, there = (f"{peer.address}: ", " there") if peer else ("", "")
        free, needed = size(room.free_bytes), size(need_bytes + SPARE_BYTES)
        hint = f"make room{there}: df -h {quote(room.mount)}{remedy}"
        raise BlockedError(f"{where}{free} free on {room.mount}, {needed} needed{what}", hint)


def add_image(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    sync = actions.add_parser(
        "sync",
        help="copy an image to the other nodes, or resume that",
        description="Give the other nodes the image that this one has, by docker save, rsync over ssh and docker load. "
        "A node that has it already is left alone.",
    )
    sync.add_argument("ref", nargs="?", metavar="IMAGE", help="such as name:tag; the plan's where none is named")
    sync.set_defaults(run=sync_image)
    add_targets(sync)


def sync_image(args: argparse.Namespace) -> int:
    from sparkd.actions.dockerd import lock_scratch
    from sparkd.actions.files import remove

    host, configured = Host(), load_settings(os.environ)
    peers = choose_peers(args, configured, host)
    image = _inspect(_ref(args.ref, configured, host), host)
    with lock_scratch(image.file.parent):
        code = run_on_each(peers, partial(_copy, image, host))
        if code and image.file.exists():
            print(f"kept {image.file} ({size(image.file.stat().st_size)}): the same command resumes with it")
        else:
            remove(image.file)
    return code


class _Image(Struct, frozen=True):
    ref: str
    identity: str
    size_bytes: int
    """Of its layers, unpacked."""

    @property
    def file(self) -> Path:
        """Its name is the same on both sides: what is there of it is this image's."""
        return Path.home() / SCRATCH / f"image-{self.identity[:32]}.tar"


def _ref(word: str | None, settings: Settings, host: Host) -> str:
    from sparkd.cluster.membership import resolve_context

    ref = word or resolve_context(settings, None, host).plan.image
    if not _REF.fullmatch(ref):
        raise UsageError(f"{ref!r} is no name of an image", "such as name:tag")
    if "@" in ref:
        hint = "docker pull it there; or docker tag it here, and name the tag"
        raise UsageError(f"{ref} is named by its digest, which no docker load brings back", hint)
    return ref


def _inspect(ref: str, host: Host) -> _Image:
    from sparkd.host import docker, docker_image
    from sparkd.lib.dockerd.reader import DockerError

    try:
        found = docker.query(
            host, lambda one: (docker_image.image_identity(one, ref), docker_image.read_image(one, ref))
        )
    except DockerError as error:
        raise BlockedError(f"docker can't look up {ref}: {error}", "systemctl status docker") from None
    match found:
        case None:
            raise BlockedError("docker is not running on this node", "systemctl start docker")
        case str(identity), docker_image.Image(size_bytes=size_bytes):
            return _Image(ref, identity, size_bytes)
    raise BlockedError(f"image {ref} is not on this node", "get it on one node: sparkd preflight says how")


def _copy(image: _Image, host: Host, peer: SshHost) -> None:
    from sparkd.actions.files import remove

    there = f"{SCRATCH}/{image.file.name}"
    before = _identity(image, peer)
    if before == image.identity:
        peer.run_checked("rm", "-f", "--", there)
        print(f"{peer.address}: has {image.ref} already", flush=True)
        return
    _check_room(image, peer, there)
    if not image.file.exists():
        _save(image, host)
    print(f"{peer.address}: {size(image.file.stat().st_size)} to send", flush=True)
    # In place: nothing reads it meanwhile, and a partial file is resumed.
    peer.send(str(image.file), f"{SCRATCH}/", "--inplace")
    print(f"{peer.address}: docker loads it", flush=True)
    peer.run_checked("docker", "load", "--input", there, seconds=LOAD_SECONDS)
    after = _identity(image, peer)
    peer.run_checked("rm", "-f", "--", there)
    if after != image.identity:
        remove(image.file)
        raise BlockedError(f"{peer.address}: what docker has loaded is not {image.ref} as it is here", "try once more")
    replaced = "; the image that had this name stays there without it" if before else ""
    print(f"{peer.address}: has {image.ref} now{replaced}", flush=True)


def _identity(image: _Image, peer: SshHost) -> str | None:
    from sparkd.host import docker_image
    from sparkd.lib.dockerd.reader import DockerError

    try:
        return docker_image.identity_of(peer.inspect_image(image.ref), image.ref)
    except DockerError as error:
        raise BlockedError(f"{peer.address}: its docker can't look up {image.ref}: {error}") from None


def _check_room(image: _Image, peer: SshHost, there: str) -> None:
    """Check the room for the rest of the file, and for the layers that docker unpacks."""
    root = peer.run_checked("docker", "info", "--format", "{{.DockerRootDir}}").strip()
    file_bytes = max(0, image.size_bytes - peer.read_size(there))
    wanted = ((peer.read_room(SCRATCH), file_bytes), (peer.read_room(root or "/"), image.size_bytes))
    for room, _ in wanted:
        need_bytes = sum(size_bytes for other, size_bytes in wanted if other.mount == room.mount)
        require_room(room, need_bytes, f" for {image.ref}", "; docker system df", peer)


def _save(image: _Image, host: Host) -> None:
    from sparkd.actions import dockerd
    from sparkd.cli.console import Progress

    (room,) = read_rooms(host, (str(image.file.parent),))
    require_room(room, image.size_bytes, f" here for {image.file}", "; docker system df", None)
    print(f"docker writes {image.ref} to {image.file}", flush=True)
    with Progress(1, image.size_bytes) as progress:
        progress.next(image.ref)
        dockerd.save(image.ref, image.file, progress.done)
