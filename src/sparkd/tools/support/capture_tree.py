"""The files of this machine that the checks read, and docker's answers, for `preflight --root`; and the archive of
`sparkd capture`: one place that every text passes.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain, islice
from pathlib import Path

import msgspec

from sparkd.base.config import Settings
from sparkd.base.host import Host, kernel
from sparkd.base.host.files import FIXTURE
from sparkd.base.host.gpu import read_driver
from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.redaction import HIDDEN, Redaction
from sparkd.base.lib.text import parse_json
from sparkd.base.state.rank_record import FILE as RANK_FILE
from sparkd.tools.node.dry_run import look_at
from sparkd.tools.support.recorder import Member, RecordingHost, read_tree

WORDS, WORD_LENGTH = 6, 100
"""Words of a command line, and characters of a word: enough to know the program."""
_FLAG = re.compile(r"--[a-z][a-z0-9-]{0,60}|-[A-Za-z]?", re.ASCII)
_ENGINE = re.compile(r"(?:/[\w./-]*/)?vllm|serve|vllm\.entrypoints\.[\w.]+", re.ASCII)
"""Words by which a check knows an engine of somebody else."""
_COMMANDS = ("Path", "Cmd", "Entrypoint")
_EMPTIED: dict[str, object] = {"Env": [], "Args": [], "Command": "", "Healthcheck": None, "Output": ""}
"""What is emptied in docker's answers; the last one is a health check's."""
SETTINGS = ("/etc/sparkd", "/etc/docker", "/etc/sysctl.d", "/etc/modprobe.d", "/etc/systemd/system")
STATE = "/var/lib/sparkd"
SUFFIXES = (".toml", ".yaml", ".yml", ".conf", ".json", ".service", ".target")
KEPT_STATE = (
    *("image-asserts.json", "known-good.json", "launch-history.json", "switch.json", "tune.json", "warm.json"),
    RANK_FILE.name,
)
COUNTERS = ("statistics", "counters", "hw_counters")
ZERO_KEY = b"0" * 64 + b"\n"
"""What stands in place of the cluster's key: the tree is checked as the machine was."""


def read_machine(settings: Settings, machine: Host, secret_files: Collection[str]) -> list[Member]:
    host = RecordingHost(read_driver)
    with suppress(ConfigError):
        look_at(settings, host)
    members = []
    for member in read_tree(host.seen, _more()):
        if member.path != kernel.LOG:
            content = keep_content(member.path, member.content, settings.cluster.key_file, secret_files)
            members.append(member._replace(content=content))
    gpu = host.gpu()
    fixtures: dict[str, object] = {"nvml": gpu, "disks": host.seen.rooms}
    fixtures |= {f"docker{path}": without_commands(answer) for path, answer in host.docker_answers().items()}
    members += (Member(f"{FIXTURE}/{name}.json", msgspec.json.encode(value)) for name, value in fixtures.items())
    with suppress(OSError):
        lines = (
            f"6,{line.sequence},{line.seconds * 1e6:.0f},-;{line.text}\n" for line in kernel.read_log(machine.files)
        )
        members.append(Member(kernel.LOG, "".join(lines).encode()))
    return members


def keep_content(path: str, content: bytes | None, key_file: str, secret_files: Collection[str]) -> bytes | None:
    name = path.rpartition("/")[2]
    if path == key_file:
        return ZERO_KEY
    if path.startswith((f"{STATE}/", f"{RANK_FILE.folder}/")) and name not in KEPT_STATE:
        return b""  # such as setup.json, which has what the cluster's key was before
    if path in secret_files or (path.startswith("/proc/") and name == "environ"):
        return b""
    if path.startswith("/proc/") and name == "cmdline" and content:
        words = content.rstrip(b"\0").decode("utf-8", "backslashreplace").split("\0")
        return "\0".join((*hide_values(words), "")).encode()
    return content


def hide_values(words: Sequence[str]) -> list[str]:
    """The program and the names of flags, of a command's first words: any value may be a password or a script.

    A program can write anything into its command line, such as all words into the first.
    """
    program = [word.split()[0] if word.strip() else "" for word in words[:1]]
    return [word[:WORD_LENGTH] for word in (*program, *map(_hide_value, words[1:WORDS]))]


def _hide_value(word: str) -> str:
    flag = _FLAG.match(word)
    return word if _ENGINE.fullmatch(word) else flag[0] if flag else HIDDEN


def _more() -> Iterator[str]:
    """Files beside those that checks read: settings, state, counters of the fabric."""
    # Not what is below STATE, such as compile caches: there a container makes links, and files without number.
    for top, _, names in chain(*map(os.walk, SETTINGS), islice(os.walk(STATE), 1)):
        yield from (f"{top}/{name}" for name in names if name.endswith(SUFFIXES))
    for device in (*Path("/sys/class/infiniband").glob("*"), *Path("/sys/class/net").glob("*")):
        for here, _, names in os.walk(f"{device}/"):
            if Path(here).name in COUNTERS:
                yield from (f"{here}/{name}" for name in names)


def without_commands(answer: object, key: str = "") -> object:
    """docker's answer, at `key` of another one: without environments, of commands the programs and flags."""
    if key in _EMPTIED:
        return _EMPTIED[key]
    match answer:
        case str() if key in _COMMANDS:
            return hide_values([answer])[0]
        case [*words] if key in _COMMANDS:
            return hide_values([str(word) for word in words])
        case [*items]:
            return [without_commands(part) for part in items]
        case {**fields}:
            return {str(name): without_commands(part, str(name)) for name, part in fields.items()}
    return answer


MOST_BYTES = 19 << 20
"""The archive's limit: forums and mail take 20 MB."""


class Archive:
    """A tar file whose every text passes `redact`, JSON as a document. What would make it too long is left out."""

    def __init__(self, name: str, at: datetime, redact: Redaction) -> None:
        self._name, self._at, self._redact = name, at.timestamp(), redact
        self._out = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._out, mode="w:gz", compresslevel=6)  # noqa: SIM115 - until `close`
        self.left_out = 0

    def add(self, path: str, content: bytes | str | None, target: str = "", *, executable: bool = False) -> None:
        """Add a file, or where `content` is None a folder or a symlink to `target`. What is not UTF-8 is left empty."""
        if self._out.getbuffer().nbytes > MOST_BYTES:
            self.left_out += 1
            return
        member = tarfile.TarInfo(f"{self._name}/{self._redact(path)}")
        member.mtime, member.mode = int(self._at), 0o700 if content is None or executable else 0o600
        if target:
            member.type, member.linkname = tarfile.SYMTYPE, self._redact(target)
        elif content is None:
            member.type = tarfile.DIRTYPE
        packed = self._clean(path, content or b"")
        member.size = len(packed)
        self._tar.addfile(member, io.BytesIO(packed))

    def _clean(self, path: str, content: bytes | str) -> bytes:
        if path.endswith(".json"):
            with suppress(ValueError, RecursionError):
                document = self._redact.document(parse_json(content))
                return json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8", "backslashreplace")
        with suppress(UnicodeDecodeError):
            text = content if isinstance(content, str) else content.decode()
            return self._redact(text).encode("utf-8", "backslashreplace")
        return b""

    def close(self) -> bytes:
        self._tar.close()
        return self._out.getvalue()
