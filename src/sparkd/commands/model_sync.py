"""`sparkd model sync`: a model's folder, copied to the other nodes."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import TYPE_CHECKING

from sparkd.commands import other_nodes
from sparkd.errors import BlockedError
from sparkd.lib.text import sanitize

if TYPE_CHECKING:
    from sparkd.hands.peer import Peer

SPARE_BYTES = 1 << 30
"""Left on the disk beside the model."""
CHECK_SECONDS = 4 * 3600.0
"""To read a model whole, from a slow disk too."""
NOT_FOUND = 127
"""Of a shell that knows no such program."""
OPTIONS = ("--partial-dir=.sparkd-partial", "--exclude=*.incomplete", "--exclude=.sparkd-partial/")
"""A file has its name there once it is whole; what was cut off lies aside, and is gone on with."""


def arguments(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sync = actions.add_parser(
        "sync",
        help="copy a model's folder to the other nodes, or go on with that",
        description="Copy a model's folder to the same place on the other nodes by rsync over ssh, or go on with a "
        "copy that was broken off; then look at it there as `check` does. Nothing is deleted there.",
    )
    sync.add_argument(
        "model", nargs="?", help="folder below engine.models_dir, or an absolute path; the plan's where none is named"
    )
    sync.add_argument("--quick", action="store_true", help="check names and sizes alone there, no hashes")
    other_nodes.arguments(sync)


def run(args: argparse.Namespace) -> int:
    from sparkd import settings
    from sparkd.commands import model_check
    from sparkd.host import Host

    host = Host()
    peers = other_nodes.chosen(args, settings.load(None, os.environ), host)
    folder = model_check.folder_of(args.model, host)
    model_check.check(folder, host)
    model_check.tell_of_use(folder, host)
    return other_nodes.each(peers, partial(_copy, folder, quick=args.quick))


def _copy(folder: str, peer: Peer, *, quick: bool) -> None:
    from sparkd.preflight.sizes import size

    source = f"{folder}/"
    need_bytes = peer.to_send(source, folder, *OPTIONS)
    room = peer.room(folder)
    if need_bytes and room.free_bytes < need_bytes + SPARE_BYTES:
        raise BlockedError(
            f"{peer.address}: {size(room.free_bytes)} free on {room.mount}, {size(need_bytes + SPARE_BYTES)} needed",
            f"make room there: df -h {room.mount}",
        )
    print(
        f"{peer.address}: {size(need_bytes)} to send" if need_bytes else f"{peer.address}: nothing to send", flush=True
    )
    peer.send(source, folder, *OPTIONS)
    ended = peer.run("sparkd", "model", "check", *(("--quick",) if quick else ()), "--", folder, seconds=CHECK_SECONDS)
    if ended.code == NOT_FOUND:
        print(f"{peer.address}: copied, each sent file with its checksum; it has no sparkd to check it with")
        return
    if ended.code:
        lines = ended.trouble.strip().splitlines()
        raise BlockedError(f"{peer.address}: {sanitize(lines[-1], 400) if lines else f'ended with {ended.code}'}")
    for line in ended.answer.splitlines():
        print(f"{peer.address}: {sanitize(line, 400)}", flush=True)
