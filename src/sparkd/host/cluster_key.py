"""The key that the nodes of a cluster sign with: `cluster.key_file`, readable by root alone.

One key a line, 64 hex digits. The first one signs, every one is accepted: so keys are changed without a break, by a
file with the new key above the old one on each node in turn, and without the old one when all have it. Meanwhile a node
asks who does not know its new key with the old one, and answers with the key that it was asked with.
"""

from __future__ import annotations

import errno
import re
from threading import Lock

from sparkd.errors import ConfigError
from sparkd.host.files import FileFacts, Files, Kind

MAX_KEYS = 4
LIMIT_BYTES = 4096

_KEY = re.compile(r"[0-9a-fA-F]{64}")
_NEW_KEY = "on one node: sparkd init --new-cluster-key; then copy the file to the others"


def read(files: Files, path: str, owner_uid: int = 0) -> tuple[bytes, ...]:
    """The keys, 32 bytes each, the one that signs first. Raises ConfigError."""
    return _look(files, path, owner_uid)[1]


class KeyRing:
    """The keys as the file has them now. For any thread. Raises ConfigError where the file is bad at the start.

    A file that goes bad later changes nothing but `trouble`: a slip while keys are changed ends no serving engine.
    """

    def __init__(self, files: Files, path: str, owner_uid: int = 0) -> None:
        self._files = files
        self._path = path
        self._owner_uid = owner_uid
        self._lock = Lock()
        self._seen: FileFacts | None
        self._seen, self._keys = _look(files, path, owner_uid)
        self.trouble = ""
        """Why the file as it is now is not used; empty where it is."""

    def keys(self) -> tuple[bytes, ...]:
        """The keys, the one that signs first: never empty. Reads the file again only if its stat has changed."""
        with self._lock:
            facts = self._facts()
            if facts is None or facts != self._seen:
                self._seen = facts
                try:
                    self._seen, self._keys = _look(self._files, self._path, self._owner_uid)
                    self.trouble = ""
                except ConfigError as error:
                    self.trouble = str(error)
            return self._keys

    def _facts(self) -> FileFacts | None:
        try:
            return self._files.stat(self._path)
        except OSError:
            return None


def _look(files: Files, path: str, owner_uid: int) -> tuple[FileFacts, tuple[bytes, ...]]:
    try:
        opened = files.itself(path, LIMIT_BYTES)
    except FileNotFoundError:
        raise ConfigError(f"no cluster key: {path} does not exist", _NEW_KEY) from None
    except OSError as error:
        found = (
            "is a symlink, needed is the file itself" if error.errno == errno.ELOOP else error.strerror or str(error)
        )
        raise ConfigError(f"{path}: {found}", f"ls -l {path}") from None
    _check(opened.facts, path, owner_uid)
    return opened.facts, _keys(opened.content, path)


def _check(facts: FileFacts, path: str, owner_uid: int) -> None:
    """Whoever can read the key can speak for every node."""
    if facts.kind is not Kind.FILE:
        raise ConfigError(f"{path}: is no regular file", f"ls -l {path}")
    if facts.uid != owner_uid:
        raise ConfigError(f"{path}: belongs to uid {facts.uid}, needed is root", f"chown root:root {path}")
    if facts.permissions & 0o077:
        raise ConfigError(f"{path}: has mode {facts.permissions:04o}, needed is 0600", f"chmod 600 {path}")


def _keys(content: bytes, path: str) -> tuple[bytes, ...]:
    """No reason quotes a line: it may be most of a key."""
    keys = []
    for number, line in enumerate(content.decode("ascii", "replace").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if not _KEY.fullmatch(text):
            raise ConfigError(f"{path}: line {number} is no key, needed are 64 hex digits", _NEW_KEY)
        keys.append(bytes.fromhex(text))
    if not keys:
        raise ConfigError(f"{path}: has no key in it", _NEW_KEY)
    if len(keys) > MAX_KEYS:
        raise ConfigError(
            f"{path}: has {len(keys)} keys, at most {MAX_KEYS} are accepted", "take away those that no node signs with"
        )
    return tuple(keys)
