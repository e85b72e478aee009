"""The cluster key, and the HMAC-SHA256 signatures that nodes make with it on requests and answers.

The key file (`cluster.key_file`, readable by root alone) has one key a line, 64 hex digits. The first key signs, every
key is accepted. To change keys without a break, put the new key above the old one on each node in turn, then remove
the old one. In between, a node repeats a request with the old key where the new one is refused, and an answer is
signed with the key of its request.

Each request has a fresh nonce, so an old answer is worthless, and no clock takes part. Each connection has a challenge,
sent with the 401 to a first request, with which the next ones are signed: an old request is worthless on any other. The
signature covers the address of the serving node: one node's answer can't be passed off as another's.
"""

import hmac
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread

from sparkd.base.host.files import FileFacts, Files
from sparkd.base.host.ownership import read_private
from sparkd.base.lib import start_thread
from sparkd.base.lib.errors import AwaitedError, ConfigError, UnreadableError

CHALLENGE_HEADER = "WWW-Authenticate"
NONCE_HEADER = "Sparkd-Nonce"
SIGNATURE_HEADER = "Sparkd-Signature"
MAX_KEYS = 4
FRESH_SECONDS = 1.0
"""Least time between two reads of the key file while requests come."""

KEY = re.compile(r"[0-9a-fA-F]{64}")
_NEW_KEY = "on one node: sudo sparkd init --new-cluster-key; then copy the file to the others"


def new_nonce() -> str:
    """128 random bits, as hex."""
    return os.urandom(16).hex()


def sign_request(key: bytes, challenge: str, nonce: str, to: str, path: str) -> str:
    """The signature of a request, in hex. `challenge` is that of the connection, and `path` includes the query.

    `to` is the fabric address of the serving node, as in the settings.
    """
    # The first part differs from that of an answer, so that a request never passes for one.
    return _compute_mac(key, "sparkd request 2", challenge, nonce, to, path)


def sign_answer(key: bytes, nonce: str, by: str, path: str, status: int, body: bytes) -> str:
    """The signature of an answer, in hex. `nonce` and `path` are the request's; `by` is the serving node's address."""
    return _compute_mac(key, "sparkd answer 1", nonce, by, path, str(status), body)


def signatures_match(expected: str, received: str) -> bool:
    """Compare in constant time. `received` may be any text of a header."""
    return hmac.compare_digest(expected.encode(), received.encode("utf-8", "surrogatepass"))


def _compute_mac(key: bytes, *parts: str | bytes) -> str:
    mac = hmac.new(key, digestmod="sha256")
    for part in parts:
        content = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        # The length comes first, so no byte can move from one part to the next.
        mac.update(len(content).to_bytes(8, "big") + content)
    return mac.hexdigest()


def read_keys(files: Files, path: str) -> tuple[bytes, ...]:
    """The keys, 32 bytes each, the signing one first. Raises ConfigError, AwaitedError where there is no file."""
    try:
        opened = read_private(files, path, 4096)  # a reader of the key can sign for every node
    except FileNotFoundError:
        raise AwaitedError(f"no cluster key: {path} does not exist", _NEW_KEY) from None
    return _parse_keys(opened.content, path)


def forget_command(path: str) -> str:
    """The shell command that removes all keys but the first from the file, however often it is run."""
    return f"sudo sed -i '0,/^ *[0-9a-fA-F]/b;/^ *[0-9a-fA-F]/d' {path}"


class KeyRing:
    """The current keys of the file. Thread-safe. Raises ConfigError where the file is bad at the start.

    A file that goes bad later is only reported: a slip while keys are changed ends no serving engine.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        on_trouble: Callable[[str], object] = lambda _: None,
        on_older: Callable[[int], object] = lambda _: None,
        *,
        known: tuple[bytes, ...] = (),
        optional: bool = False,
    ) -> None:
        """`on_trouble` gets why the file is not used, once while that stays the same.

        `on_older` gets how many keys are accepted beside the first: at the start, at each change and once a day.
        `known`: the keys, where they have just been read. `optional`: without a file there are no keys, and a bad file
        is only reported; another thread reads it.
        """
        self._files, self._path, self._optional = files, path, optional
        self._on_trouble, self._on_older = on_trouble, on_older
        self._trouble = ""
        self._remind_at = 0.0
        """When `on_older` is called next, by the monotonic clock, as `_read_at` is."""
        self._lock = Lock()
        self._is_reading, self._read_at = False, float("-inf")
        self._last_facts: FileFacts | None = None
        """The file's stat at its last good read; None makes the next call read it again."""
        self._keys = known if known or optional else read_keys(files, path)
        if optional:
            self.latest()

    def keys(self) -> tuple[bytes, ...]:
        """The keys, the signing one first: empty only where `optional`. Rereads a good file if its stat changes."""
        with self._lock:
            facts = None
            with suppress(OSError):
                facts = self._files.stat(self._path)
            if facts is None or facts != self._last_facts:
                self._last_facts = facts
                self._read_file()
            if len(self._keys) > 1 and time.monotonic() >= self._remind_at:
                self._remind_at = time.monotonic() + 86400
                self._on_older(len(self._keys) - 1)
            return self._keys

    def _read_file(self) -> None:
        """Read the file. A bad one leaves the keys as they are."""
        previous_keys, previous_trouble, self._trouble = self._keys, self._trouble, ""
        try:
            self._keys = read_keys(self._files, self._path)
        except ConfigError as error:
            self._last_facts = None  # the failure may be one of the moment: the next call reads again
            is_missing = isinstance(error, AwaitedError) and not isinstance(error, UnreadableError)
            if self._optional and is_missing:
                self._keys = ()
            else:
                self._trouble = error.reason if self._optional else str(error)
        if self._keys != previous_keys:
            self._remind_at = 0.0
        if self._trouble not in ("", previous_trouble):
            self._on_trouble(self._trouble)

    def latest(self) -> tuple[bytes, ...]:
        """The keys as last read, without a wait: the file may lie on a share that hangs. Only one thread may call it.

        Where the last read began FRESH_SECONDS ago or earlier, another thread begins the next one, and a later call
        returns what that has read. While the share hangs, the keys stay as they are.
        """
        now = time.monotonic()
        if not self._is_reading and now - self._read_at >= FRESH_SECONDS:
            self._is_reading, self._read_at = True, now
            try:
                start_thread(Thread(target=self._read_in_thread, name="cluster-key", daemon=True))
            except BlockingIOError:  # no thread now
                self._is_reading = False
        return self._keys

    def _read_in_thread(self) -> None:
        try:
            self.keys()
        finally:
            self._is_reading = False


def _parse_keys(content: bytes, path: str) -> tuple[bytes, ...]:
    """The keys of the file. Raises ConfigError, which quotes no line: it may be most of a key."""
    keys = list[bytes]()
    for number, line in enumerate(content.decode("ascii", "replace").splitlines(), 1):
        text = line.strip()
        if KEY.fullmatch(text):
            keys.append(bytes.fromhex(text))
        elif text and not text.startswith("#"):
            hint = "take that line out, or copy the file from another node"
            raise ConfigError(f"{path}: line {number} is no key, needed are 64 hex digits", hint)
    if not keys:
        hint = f"copy it from another node; where none has a good one: sudo rm {path}; {_NEW_KEY}"
        raise ConfigError(f"{path}: has no key in it", hint)
    if len(keys) > MAX_KEYS:
        hint = "remove the keys that no node signs with"
        raise ConfigError(f"{path}: has {len(keys)} keys, at most {MAX_KEYS} are accepted", hint)
    return tuple(keys)
