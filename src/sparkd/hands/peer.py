"""Another node, reached as a person reaches it: by ssh and rsync, with the user's own keys and configuration.

Nothing is deleted there but a file of sparkd's own, and nothing waits for an answer that nobody gives.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from signal import SIGKILL
from tempfile import TemporaryFile
from threading import Timer
from typing import IO, NamedTuple

from msgspec import Struct

from sparkd.errors import BlockedError
from sparkd.lib.text import sanitize

SSH = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
ASK_SECONDS = 60.0
SILENCE_SECONDS = 300
"""Of rsync: both sides may read a file of some GB between two words."""
ANSWER_LIMIT_BYTES = 4 << 20
TOLD_LIMIT_BYTES = 4096
SSH_FAILED = 255

_PACKAGES = {"ssh": "openssh-client", "rsync": "rsync"}
_ROOM = 'd=$1; while [ ! -d "$d" ]; do d=$(dirname -- "$d"); done; df -Pk -- "$d"'
_LENGTH = 'stat -c %s -- "$1" 2>/dev/null || echo 0'
_DF = re.compile(r"\s\d+\s+\d+\s+(-?\d+)\s+\S+\s+(/.*)$")
_TO_SEND = re.compile(r"^Total transferred file size: (\d+) bytes$", re.MULTILINE)

_KNOWN = (
    ("Host key verification failed", "its host key is not known here, or has changed", "ssh {} once by hand"),
    (r"Permission denied \([a-z]", "it takes none of your ssh keys", "ssh-copy-id {}; or log in as another by --user"),
    (
        r"Connection (reset|closed) by|kex_exchange",
        "its sshd hung up",
        "refused logins make it: wait a minute, try again",
    ),
    ("rsync: .*not found", "it has no rsync", "apt install rsync"),
    ("docker: .*not found", "it has no docker", "install docker there"),
    ("permission denied .*[dD]ocker", "its docker is not for this user", "--user root, or a user in the group docker"),
    ("No space left on device", "its disk is full", "make room there: df -h; the same command goes on"),
    (r"\[sender\].* Permission denied \(13\)", "this user may not read all of it here", "sudo, or chmod -R a+rX here"),
    ("symlink has no referent", "a link in it leads to nothing here", "find it by -xtype l, and mend or remove it"),
    (r"Permission denied \(13\)", "this user may not write there", "--user root, or give the user the folder"),
)


class Ended(NamedTuple):
    code: int
    answer: str
    """What it said; empty where that was shown instead."""
    trouble: str
    """The end of what it said on stderr."""


class PeerRoom(NamedTuple):
    mount: str
    free_bytes: int


class Peer(Struct, frozen=True):
    """`user` is empty for whom ssh takes by itself."""

    address: str
    user: str = ""

    def run(self, *words: str, seconds: float = ASK_SECONDS) -> Ended:
        """Run a program there, by its words. Raises BlockedError where ssh fails."""
        command = ["ssh", *SSH, *(("-l", self.user) if self.user else ()), "--", self.address, shlex.join(words)]
        ended = _run(command, seconds)
        if ended.code == SSH_FAILED:
            raise self.failed(ended)
        return ended

    def ask(self, *words: str, seconds: float = ASK_SECONDS) -> str:
        """What a program there answers. Raises BlockedError where it fails."""
        ended = self.run(*words, seconds=seconds)
        if ended.code:
            raise self.failed(ended)
        return ended.answer

    def room(self, path: str) -> PeerRoom:
        """Of the file system that a path there is on, or will be."""
        answer = self.ask("sh", "-c", _ROOM, "sh", path)
        if not (match := _DF.search(answer.rstrip())):
            raise BlockedError(f"{self.address}: df says nothing of {path}")
        return PeerRoom(sanitize(match[2]), int(match[1]) << 10)

    def length(self, path: str) -> int:
        """Of a file there; 0 where there is none."""
        answer = self.ask("sh", "-c", _LENGTH, "sh", path).strip()
        return int(answer) if answer.isdecimal() else 0

    def to_send(self, source: str, target: str, *options: str) -> int:
        """Bytes of the files that `send` would send, each in its full size."""
        ended = self._rsync(source, target, "--dry-run", "--stats", "--no-human-readable", *options)
        if not (match := _TO_SEND.search(ended.answer)):
            raise BlockedError(f"{self.address}: rsync does not say how much there is to send")
        return int(match[1])

    def send(self, source: str, target: str, *options: str) -> None:
        """Copy a file, or what is in a folder whose name ends in a slash. Raises BlockedError.

        What rsync sends it compares by checksum in the end. Its progress is shown on a terminal alone.
        """
        self._rsync(source, target, *options, shown=sys.stdout.isatty())

    def _rsync(self, source: str, target: str, *options: str, shown: bool = False) -> Ended:
        host = f"[{self.address}]" if ":" in self.address else self.address
        where = f"{self.user}@{host}:{target}" if self.user else f"{host}:{target}"
        # -s: no shell of the other side reads the names. -L: a folder of links becomes one of files.
        flags = ("-s", "-rtpL", "--mkpath", f"--timeout={SILENCE_SECONDS}", "-e", shlex.join(("ssh", *SSH)))
        progress = ("--info=progress2", "--no-inc-recursive") if shown else ()
        ended = _run(["rsync", *flags, *progress, *options, "--", source, where], None, shown=shown)
        if ended.code:
            raise self.failed(ended)
        return ended

    def failed(self, ended: Ended) -> BlockedError:
        """What to tell of a program there that failed."""
        reason, hint = diagnose(ended, f"{self.user}@{self.address}" if self.user else self.address)
        return BlockedError(f"{self.address}: {reason}", hint)


def diagnose(ended: Ended, login: str) -> tuple[str, str]:
    """What a failure is about, and what to do."""
    again = "is it on, and reachable? The same command goes on where this one ended"
    for pattern, reason, hint in _KNOWN:
        if re.search(pattern, ended.trouble):
            return reason, hint.format(login)
    if ended.code == -SIGKILL:
        return "it did not answer in time", again
    lines = [sanitize(line) for line in ended.trouble.splitlines() if line.strip()]
    return (lines[0] if lines else f"ended with {ended.code}"), again


def _run(command: list[str], seconds: float | None, *, shown: bool = False) -> Ended:
    """Without `seconds` it ends by limits of its own."""
    with TemporaryFile() as told:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=None if shown else subprocess.PIPE,
                stderr=told,
                env={**os.environ, "LC_ALL": "C"},
            )
        except FileNotFoundError:
            raise BlockedError(f"{command[0]} is not on this node", f"apt install {_PACKAGES[command[0]]}") from None
        timer = Timer(seconds or 0, process.kill)
        if seconds is not None:
            timer.start()
        try:
            answer = process.stdout.read(ANSWER_LIMIT_BYTES) if process.stdout else b""
            if len(answer) == ANSWER_LIMIT_BYTES:
                process.kill()
            process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            timer.cancel()
        return Ended(process.returncode, answer.decode("utf-8", "replace"), _end(told))


def _end(told: IO[bytes]) -> str:
    told.seek(max(0, told.seek(0, os.SEEK_END) - TOLD_LIMIT_BYTES))
    return told.read().decode("utf-8", "replace")
