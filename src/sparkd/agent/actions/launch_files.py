"""Files that a launch writes for the rank's container, and room for them: script, Ray's token, names of the nodes."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sparkd.agent.actions import files
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import LaunchError
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.plan.script import HOSTS_FILE, HOSTS_TARGET, RAY_TOKEN_FILE

ROOM_BYTES = 1 << 20
"""Room for the files of a launch in /run: its script, plan and record have some 100 KB."""
HOSTS_LIMIT_BYTES = 64 << 20
"""Largest size of the node's own /etc/hosts: long lists of blocked names have some 10 MB."""


def require_room(folder: Path) -> None:
    """Prove that the folder, in /run, takes the files of a launch. Raises OSError."""
    proof = folder / "room"
    try:
        with proof.open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, ROOM_BYTES)
    finally:
        with suppress(OSError):
            proof.unlink()


def write_script(script: Path, plan: LaunchPlan, ray_token: str) -> None:
    """Write the launch script, and beside it the token where the plan's ranks run on Ray.

    A container's user may be another than root, and reads the script; the token is for root alone. Raises OSError,
    SharedFolderError.
    """
    files.write(script, plan.script, 0o644, durable=False)
    if plan.on_ray:
        files.write(script.with_name(RAY_TOKEN_FILE), ray_token, 0o600, durable=False)


def write_hosts(host_files: Files, script: Path, names: Iterable[tuple[str, str]]) -> None:
    """Write /etc/hosts of the container beside the script: the node's own, as docker gives it to a container in the
    node's network, and these pairs of address and name.

    Raises LaunchError where the node's own can't be read; OSError.
    """
    node_content = b""
    try:
        with suppress(FileNotFoundError):
            node_content = host_files.bytes(HOSTS_TARGET, HOSTS_LIMIT_BYTES)
    except OSError as error:
        raise LaunchError(f"{HOSTS_TARGET} can't be read: {error.strerror}", f"ls -lL {HOSTS_TARGET}") from None
    line_end = b"" if not node_content or node_content.endswith(b"\n") else b"\n"
    added = "".join(f"{address} {name}\n" for address, name in names)
    files.write(script.with_name(HOSTS_FILE), node_content + line_end + added.encode(), 0o644, durable=False)
