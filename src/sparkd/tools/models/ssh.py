"""Another node over ssh and rsync, with the user's own keys and configuration: programs, copies, and why one failed.

It deletes nothing there except sparkd's own file, and no program waits for input.
"""

import os
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from posixpath import normpath
from signal import SIGKILL
from threading import Thread, Timer
from typing import IO, NamedTuple

from msgspec import Struct

from sparkd.base.lib.dockerd.reader import DockerError
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.text import parse_json, sanitize

SSH = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")
USER = '"$USER"'  # of ssh's own choice, in a command that a person types there
COMMAND_SECONDS = 60.0
_ANSWER_LIMIT_BYTES = 4 << 20
"""Limit of what a program prints; beyond it the program is killed."""
NOT_FOUND = 127
"""Exit code of a shell that does not find the program."""

_PACKAGES = {"ssh": "openssh-client", "rsync": "rsync"}
_JOIN = 'test "$(id -u)" = 0 || set -- sudo -n; exec "$@" sparkd init --yes --join'
"""Runs as root, or by sudo without a password."""
_ROOM = 'd=$1; while [ ! -d "$d" ]; do d=$(dirname -- "$d"); done; df -Pk -- "$d"'
"""df of the path, or of the nearest folder above it that exists."""
_OWNERS = 'test "$(id -u)" != 0 || LC_ALL=C namei -l -- "$1"'
"""Each part of the path with its owner; nothing where the login is not root."""
_DF = re.compile(r"\s\d{1,18}\s+\d{1,18}\s+(-?\d{1,18})\s+\S{1,9}\s+(/.*)$")
"""Free KiB and mount, of the last line of `df -Pk`."""
_OWNER = re.compile(r"^ *([a-z-])([rwxsStT-]{9})\S? +(\S+) +\S+ +(.*)$", re.MULTILINE)
"""Kind, modes, owner and name, of a line of namei."""
_HIDDEN = re.compile(r"^ {12,}(\S.*) - (?!No such file or directory$)(.+)$", re.MULTILINE)
"""A part that root can't look at, and why, as namei has it."""
LOGIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_WRITER = re.compile(r"runuser -u (\S+)")
_UNWRITABLE = re.compile(
    r'(?m)^rsync: \[(?i:receiver|generator)\].*?"(/[^"\n]*)/[^"/\n]*"(?: failed: Permission|: Operation not permitted)'
)
"""A folder in messages of rsync's other side."""
_TO_SEND = re.compile(r"^Total transferred file size: (\d{1,18}) bytes$", re.MULTILINE)

_KNOWN_FAILURES = (
    (
        "(?s)IDENTIFICATION HAS CHANGED.*Host key verification failed",  # with StrictHostKeyChecking=no ssh continues
        *("its host key has changed", "if the machine was replaced: {forget}; then: {ssh}"),
    ),
    ("Host key verification failed", "its host key is not known here", "once by hand: {ssh}"),
    (r"Permission denied \([a-z]", "it takes none of {whose} ssh keys", "{copy_id}; or {otherwise}"),
    ("Connection (reset|closed) by|kex_exchange", "its sshd hung up", "refused logins make it: try again in a minute"),
    ("rsync: .*not found", "it has no rsync", "there: sudo apt install rsync"),
    ("sparkd: .*not found", "it has no sparkd", "install the package there"),
    ("sudo: a password is required", "sudo wants a password there", "sudo sparkd init --join, there by hand"),
    ("docker: .*not found", "it has no docker", "install docker there"),
    ("permission denied .*[dD]ocker", "its docker is not for this user", "there: sudo usermod -aG docker {user}"),
    ("No space left on device", "its disk is full", "make room there: df -h; the same command resumes"),
    (r"\[sender\].* Permission denied \(13\)", "this user may not read all here", "sudo, or sudo chmod -R a+rX, here"),
    ("symlink has no referent", "a link in it leads to nothing here", "find it by -xtype l, and fix or remove it"),
    (r"Permission denied \(13\)", "this user may not write there", "--user root, or give the user the folder"),
)
"""Pattern in stderr, reason and hint, with fields that `diagnose` fills in: the first pattern that matches counts."""


class ProgramResult(NamedTuple):
    """What a program there left at its end."""

    code: int
    answer: str
    """Its stdout; empty where that was shown instead."""
    trouble: str
    """The end of its stderr."""


class PeerRoom(NamedTuple):
    mount: str
    free_bytes: int


class SshHost(Struct, frozen=True):
    """A node that ssh reaches. `user` is empty for ssh's own choice."""

    address: str
    user: str = ""
    otherwise: str = "log in as another by --user"
    """What else helps where the login is refused."""

    @property
    def login(self) -> str:
        """USER@ADDRESS, or the address alone, as ssh takes it."""
        return f"{self.user}@{self.address}" if self.user else self.address

    def run(self, *words: str, seconds: float = COMMAND_SECONDS, stdin_text: str = "") -> ProgramResult:
        """Run a program there, with a line or two for its stdin. Raises BlockedError where ssh fails."""
        command = ["ssh", *SSH, *(("-l", self.user) if self.user else ()), "--", self.address, shlex.join(words)]
        ended = _run(command, seconds, text=stdin_text)
        if ended.code == 255:  # of ssh itself
            raise self.failure(ended)
        return ended

    def run_checked(self, *words: str, seconds: float = COMMAND_SECONDS, stdin_text: str = "") -> str:
        """stdout of a program there. Raises BlockedError where it fails."""
        ended = self.run(*words, seconds=seconds, stdin_text=stdin_text)
        if ended.code:
            raise self.failure(ended)
        return ended.answer

    def join(self, code: str) -> str:
        """Let sparkd there join the cluster by this code, and return what it printed.

        The code goes to its stdin, so that no list of processes shows it.
        """
        return self.run_checked("sh", "-c", _JOIN, seconds=300.0, stdin_text=f"{code}\n")  # it examines the node first

    def read_room(self, path: str) -> PeerRoom:
        """Free space of the file system that holds, or will hold, a path there. Raises BlockedError."""
        answer = self.run_checked("sh", "-c", _ROOM, "sh", path)
        if not (match := _DF.search(answer.rstrip())):
            raise BlockedError(f"{self.address}: df says nothing of {path}")
        return PeerRoom(sanitize(match[2]), int(match[1]) << 10)

    def read_size(self, path: str) -> int:
        """Bytes of a file there; 0 where there is none."""
        answer = self.run_checked("sh", "-c", 'stat -c %s -- "$1" 2>/dev/null || echo 0', "sh", path).strip()
        return int(answer) if answer.isdecimal() and len(answer) < 19 else 0

    def choose_writer(self, folder: str) -> tuple[str, ...]:
        """Options by which rsync writes there as the owner of the folder, or of a folder above it, instead of as root.

        A link that this user puts there then leads to nothing that only root may change. No options where the login is
        not root, or root alone may write to the whole path. Raises BlockedError where several users may.
        """
        listing = self.run("sh", "-c", _OWNERS, "sh", folder)
        parts = _OWNER.findall(listing.answer)
        if (listing.answer and not parts) or listing.code == NOT_FOUND:
            raise self.failure(listing)
        for number, (kind, modes, owner, name) in enumerate(parts, 1):
            if owner != "root" and LOGIN.fullmatch(owner):
                return (f"--rsync-path=runuser -u {owner} -- rsync",)
            is_sticky = modes[-1] in "tT"  # only the owner of the next part of the path may replace it
            is_writable = kind != "l" and "w" in (modes[4], modes[7])  # by the group or by others
            if owner != "root" or (is_writable and (not is_sticky or number == len(parts))):
                reason = f"nothing is written there as root: others may write to {sanitize(name)}, of {folder}"
                repair = "sudo chown root: and sudo chmod go-w what it is: namei -l"
                hint = f"there: {'sudo mkdir -p' if is_sticky else repair} {shlex.quote(folder)}"
                raise BlockedError(f"{self.address}: {reason}", hint)
        self._refuse_hidden(listing.answer, folder)
        return ()

    def _refuse_hidden(self, listing: str, folder: str) -> None:
        """Raise BlockedError for a user's mount, as of FUSE: once unmounted, what is below it is that user's."""
        if hidden := _HIDDEN.search(listing):
            reason = f"nothing is written there as root, which can't look at {sanitize(hidden[1])}: {hidden[2]}"
            hint = f"there: namei -l {shlex.quote(folder)}; if it is a user's mount: sudo umount FOLDER"
            raise BlockedError(f"{self.address}: {reason}", hint)

    def inspect_image(self, ref: str) -> object:
        """docker's description of an image there; None where it has none.

        Raises BlockedError, and DockerError where the answer is not JSON.
        """
        ended = self.run("docker", "image", "inspect", "--format", "{{json .}}", "--", ref)
        if ended.code == 0:
            try:
                return parse_json(ended.answer)
            except ValueError:
                raise DockerError(f"GET /images/{ref}/json: not JSON") from None
        if any(words in ended.trouble.lower() for words in ("no such image", "no such object")):
            return None
        raise self.failure(ended)

    def count_to_send(self, source: str, target: str, *options: str) -> int:
        """Bytes of the files that `send` would send, each in its full size."""
        ended = self._rsync(source, target, "--dry-run", "--stats", "--no-human-readable", *options)
        if not (match := _TO_SEND.search(ended.answer)):
            raise BlockedError(f"{self.address}: rsync does not say how much there is to send")
        return int(match[1])

    def send(self, source: str, target: str, *options: str) -> None:
        """Copy a file, or what is in a folder whose name ends in a slash. Raises BlockedError.

        rsync verifies each sent file by checksum. It shows progress on a terminal only.
        """
        self._rsync(source, target, *options, shown=sys.stdout.isatty())

    def _rsync(self, source: str, target: str, *options: str, shown: bool = False) -> ProgramResult:
        host = f"[{self.address}]" if ":" in self.address else self.address
        where = f"{self.user}@{host}:{target}" if self.user else f"{host}:{target}"
        # -s: no shell of the other side reads the names. -L: a folder of links becomes one of files. The timeout is
        # long, because both sides may read some GB without sending a byte.
        flags = ("-s", "-rtpL", "--mkpath", "--timeout=300", "-e", shlex.join(("ssh", *SSH)))
        progress = ("--info=progress2", "--no-inc-recursive") if shown else ()
        ended = _run(["rsync", *flags, *progress, *options, "--", source, where], None, shown=shown)
        writer, unwritable = _WRITER.search(" ".join(options)), _UNWRITABLE.search(ended.trouble)
        folder = sanitize(normpath(unwritable[1])) if unwritable else ""
        if ended.code and writer and f"{folder}/".startswith(f"{target.rstrip('/')}/"):
            reason = f"{writer[1]} may not write all of {folder}: an earlier sync left files of root's there"
            raise BlockedError(f"{self.address}: {reason}", f"there: sudo chown -hR {writer[1]}: {shlex.quote(folder)}")
        if ended.code and unwritable and not writer:
            path = shlex.quote(target)
            hint = f"there: sudo mkdir -p {path} && sudo chown -hR {self.user or USER} {path}; or --user root"
            raise BlockedError(f"{self.address}: this user may not write to {sanitize(target)}", hint)
        if ended.code:
            raise self.failure(ended)
        return ended

    def failure(self, ended: ProgramResult) -> BlockedError:
        """The error for a program there that failed."""
        reason, hint = diagnose(ended, self.login, self.otherwise)
        return BlockedError(f"{self.address}: {reason}", hint)


def diagnose(
    ended: ProgramResult, login: str, otherwise: str, *, uid: int | None = None, root: Path = Path("/root")
) -> tuple[str, str]:
    """Reason and hint for a program that failed. `login`: as ssh takes it, for the hint. `uid`: whose keys ssh has.

    Root's keys and known hosts are its own, and mostly missing: what a user does without sudo does not help it.
    """
    is_root = (os.geteuid() if uid is None else uid) == 0
    keygen = "sudo ssh-keygen -N '', then: " if is_root and not any(root.glob(".ssh/id*.pub")) else ""
    sudo, whose, (user, _, host) = "sudo " * is_root, "root's" if is_root else "your", login.rpartition("@")
    forget, copy_id = f"{sudo}ssh-keygen -R {host}", f"{keygen}{sudo}ssh-copy-id {login}"
    fields = {"ssh": f"{sudo}ssh {login}", "copy_id": copy_id, "user": user or USER, "forget": forget}
    again = "is it on, and reachable? The same command resumes"
    for pattern, reason, hint in _KNOWN_FAILURES:
        if re.search(pattern, ended.trouble):
            return reason.format(whose=whose), hint.format(**fields, otherwise=otherwise)
    if ended.code == -SIGKILL:
        return "it did not answer in time", again
    if (words := read_error(ended.trouble)) is not None:
        return words
    lines = [sanitize(line) for line in ended.trouble.splitlines() if line.strip()]
    return (lines[0] if lines else f"ended with {ended.code}"), again


def read_error(printed: str) -> tuple[str, str] | None:
    """Reason and hint of a sparkd there, as `SparkdError.lines`; None where none printed an error."""
    marked = [line.partition(": ") for line in printed.splitlines()]
    reason, hint = ("; ".join(text for mark, _, text in marked if mark == wanted) for wanted in ("sparkd", "hint"))
    return (sanitize(reason, 400), sanitize(f"there: {hint}", 400) if hint else "") if reason else None


def _run(command: list[str], seconds: float | None, *, shown: bool = False, text: str = "") -> ProgramResult:
    """Run a program here. `seconds` None: it has a time limit of its own. `shown`: its stdout goes to this terminal."""
    try:
        out, env = None if shown else subprocess.PIPE, {**os.environ, "LC_ALL": "C"}
        stdin = subprocess.PIPE if text else subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=stdin, stdout=out, stderr=subprocess.PIPE, env=env)
    except FileNotFoundError:
        hint = f"sudo apt install {_PACKAGES[command[0]]}"
        raise BlockedError(f"{command[0]} is not on this node", hint) from None
    trouble = bytearray()
    reader = Thread(target=_keep_end, args=(process.stderr, trouble), daemon=True)
    reader.start()
    timer = Timer(seconds or 0, process.kill)
    if seconds is not None:
        timer.start()
    try:
        if process.stdin:
            with suppress(BrokenPipeError), process.stdin:
                process.stdin.write(text.encode())
        answer = process.stdout.read(_ANSWER_LIMIT_BYTES) if process.stdout else b""
        if len(answer) == _ANSWER_LIMIT_BYTES:
            process.kill()
        process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        timer.cancel()
    reader.join(1.0)  # ssh's ControlPersist leaves a process behind that keeps stderr open
    return ProgramResult(
        process.returncode, answer.decode("utf-8", "replace"), bytes(trouble).decode("utf-8", "replace")
    )


def _keep_end(stderr: IO[bytes], kept: bytearray) -> None:
    """Keep the last 4 KiB: the other node may write without end."""
    with stderr:
        for piece in iter(lambda: os.read(stderr.fileno(), 65536), b""):
            kept[:] = (kept + piece)[-4096:]
