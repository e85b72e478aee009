"""Files of keys for `sparkd init`, and the cluster's key, made and rotated by `sparkd init --new-cluster-key`."""

import os
from collections.abc import Iterable
from typing import NamedTuple

from sparkd.base.cluster import head_key
from sparkd.base.cluster.auth import KEY, forget_command, read_keys
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import UsageError
from sparkd.tools.setup.setup_manifest import Setup

NEW_KEY = "--new-cluster-key"
KEY_BYTES = 32
KEY_HEADER = "# Key of the cluster, the same on all its nodes: the first line signs, every line is accepted."
HEAD_HEADER = "# Private key of this head, of no other node: each line signs what the workers run."
PUBLIC_HEADER = "# Public key of the head that this node has joined: each line is accepted."


class SecretFile(NamedTuple):
    """A file to write that only root may read: keys, or a URL with a secret in it."""

    path: str
    text: str
    replaces: bool = False
    """Whether it is written over another text; else an existing file stays."""
    description: str = "a new key"
    """Its content in words, for the list of changes."""


def new_files(path: str) -> tuple[SecretFile, ...]:
    """Files for a head: the cluster's key at `path`, and the head's private key, both new."""
    private = key_text(os.urandom(KEY_BYTES).hex(), header=HEAD_HEADER)
    return SecretFile(path, key_text(os.urandom(KEY_BYTES).hex())), SecretFile(head_key.PRIVATE, private)


def joined_files(path: str, keys: Iterable[bytes], head_keys: Iterable[bytes]) -> tuple[SecretFile, ...]:
    """Files for a node that joins: the cluster's keys at `path`, and the head's public keys."""
    public = key_text(*(key.hex() for key in head_keys), header=PUBLIC_HEADER)
    cluster = key_text(*(key.hex() for key in keys))
    return SecretFile(path, cluster, replaces=True), SecretFile(head_key.PUBLIC, public, replaces=True)


def key_text(*keys: str, header: str = KEY_HEADER) -> str:
    """The file's text. `keys`: in hex."""
    return "\n".join([header, *keys, ""])


def is_key_text(text: str) -> bool:
    """Whether the text has one of sparkd's headers and otherwise only keys, however many a rotation has left."""
    header, *keys = text.splitlines() or [""]
    return header in (KEY_HEADER, HEAD_HEADER, PUBLIC_HEADER) and all(map(KEY.fullmatch, keys))


def create_key(path: str, setup: Setup) -> str:
    """Write a new key where no file is, or an empty one; return what to do next. Raises UsageError, ConfigError."""
    if setup.read(path):
        hint = f"sudo sparkd init {NEW_KEY} --rotate puts a new key above it"
        raise UsageError(f"{path} exists, and is never overwritten", hint)
    return f"wrote {path}\n{_write_key(path, setup)}"


def rotate_key(path: str, setup: Setup) -> str:
    """Put a new key above the only one in the file; return what to do next. Raises UsageError, ConfigError."""
    old_key, *older_keys = read_keys(Files(setup.files.root, os.geteuid()), path)
    if older_keys:
        hint = f"once all nodes have the new key, on each: {forget_command(path)}"
        raise UsageError(f"{path} has {1 + len(older_keys)} keys: the rotation before is not complete", hint)
    return (
        f"wrote {path}: a new key, with the old one below it\n{_write_key(path, setup, old_key.hex())}\n"
        f"once all nodes have it, on each of them: {forget_command(path)}\n"
        "running agents need no restart, and warn each day while the old key is accepted (cluster.key.outdated)"
    )


def _write_key(path: str, setup: Setup, *old_keys: str) -> str:
    """Write the file with a new key above the old ones, which are in hex; return what to do next."""
    setup.write(path, key_text(os.urandom(KEY_BYTES).hex(), *old_keys), 0o600, own=True)
    return f"next: copy {path} to each other node, of root there too and with mode 0600; make no other key there"
