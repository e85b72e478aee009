"""`sparkd init`: make the key that the nodes of a cluster sign with."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from sparkd.lib.errors import ExitCode, UsageError

OPTION = "--new-cluster-key"
KEY_BYTES = 32
_HEADER = "# Key of the cluster, the same on all its nodes: the first line signs, every line is accepted."


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(OPTION, action="store_true", help="make a key, on one node; the others get a copy of the file")
    parser.add_argument(
        "--rotate", action="store_true", help="put the new key above the one that there is, on one node"
    )


def run(args: argparse.Namespace) -> int:
    if not args.new_cluster_key:
        raise UsageError("nothing to make", f"sparkd init {OPTION}")
    if os.geteuid():
        raise UsageError("only root may make the key of a cluster", f"sudo sparkd init {OPTION}")
    from sparkd.config import load_settings

    path = load_settings(os.environ).cluster.key_file
    print(rotate(path) if args.rotate else create(path))
    return ExitCode.GOOD


def create(path: str) -> str:
    """Write a new key where there is no file; what to do next. Raises UsageError."""
    if os.path.lexists(path):
        hint = f"sparkd init {OPTION} --rotate puts a new key above it"
        raise UsageError(f"{path} exists, and is never overwritten", hint)
    _write(path, over=False)
    return f"wrote {path}\n{_copy(path)}"


def rotate(path: str, owner_uid: int = 0) -> str:
    """Put a new key above the first one that there is; what to do next. Raises UsageError, ConfigError."""
    from sparkd.cluster.auth import read_keys
    from sparkd.host.files import Files

    old, *older = read_keys(Files(), path, owner_uid)
    if older:
        raise UsageError(
            f"{path} has {1 + len(older)} keys: the rotation before is not complete",
            "take the old lines away first, once all nodes have the new key",
        )
    _write(path, old.hex())
    return (
        f"wrote {path}: a new key, with the old one below it\n{_copy(path)}\n"
        "when all nodes have it, take the last line away on each of them; running agents need no restart"
    )


def _write(path: str, *old_keys: str, over: bool = True) -> None:
    from sparkd.actions import files

    lines = [_HEADER, os.urandom(KEY_BYTES).hex(), *old_keys, ""]
    with files.usage_error(f"{path} can't be written", f"ls -ld {Path(path).parent}"):
        files.write(Path(path), "\n".join(lines), 0o600, durable=True, over=over)


def _copy(path: str) -> str:
    return f"next: copy {path} to each other node, of root there too and with mode 0600; make no other key there"
