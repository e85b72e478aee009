"""Files of this machine that the checks read, with docker's answers, for `preflight --root`; and the archive of
`sparkd capture`, which redacts every text.
"""

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
from sparkd.tools.node.dry_run import examine_settings
from sparkd.tools.support.recorder import Member, RecordingHost, read_tree

WORDS, WORD_LENGTH = 6, 100
"""Words of a command line, and characters of a word, that are kept: enough to recognise the program."""
_FLAG = re.compile(r"--[a-z][a-z0-9-]{0,60}|-[A-Za-z]?", re.ASCII)
_ENGINE = re.compile(r"(?:/[\w./-]*/)?vllm|serve|vllm\.entrypoints\.[\w.]+", re.ASCII)
"""Words by which a check recognises a foreign engine."""
_COMMANDS = ("Path", "Cmd", "Entrypoint")
"""Keys of commands in docker's answers."""
_EMPTIED: dict[str, object] = {"Env": [], "Args": [], "Command": "", "Healthcheck": None, "Output": ""}
"""Values in place of those in docker's answers; Output is a health check's."""
SETTINGS = ("/etc/sparkd", "/etc/docker", "/etc/sysctl.d", "/etc/modprobe.d", "/etc/systemd/system")
STATE = "/var/lib/sparkd"
SUFFIXES = (".toml", ".yaml", ".yml", ".conf", ".json", ".service", ".target")
KEPT_STATE = (
    *("image-asserts.json", "known-good.json", "launch-history.json", "switch.json", "tune.json", "warm.json"),
    RANK_FILE.name,
)
"""Files of sparkd's state that keep their content."""
COUNTERS = ("statistics", "counters", "hw_counters")
ZERO_KEY = b"0" * 64 + b"\n"
"""Content in place of the cluster's key, so that checks of the tree find a key, as on the machine."""


def read_machine(settings: Settings, machine: Host, secret_files: Collection[str]) -> list[Member]:
    """Members of the tree: the files that a dry run reads, without secrets, and answers of docker and drivers as files.

    `secret_files`: paths of which only the name is kept.
    """
    host = RecordingHost(read_driver)
    with suppress(ConfigError):
        examine_settings(settings, host)
    members = []
    for member in read_tree(host.recording, _find_more_files()):
        if member.path != kernel.LOG:
            content = keep_content(member.path, member.content, settings.cluster.key_file, secret_files)
            members.append(member._replace(content=content))
    gpu = host.gpu()
    fixtures: dict[str, object] = {"nvml": gpu, "disks": host.recording.rooms}
    fixtures |= {f"docker{path}": without_commands(answer) for path, answer in host.docker_answers().items()}
    members += (Member(f"{FIXTURE}/{name}.json", msgspec.json.encode(value)) for name, value in fixtures.items())
    with suppress(OSError):
        lines = (
            f"6,{line.sequence},{line.seconds * 1e6:.0f},-;{line.text}\n" for line in kernel.read_log(machine.files)
        )
        members.append(Member(kernel.LOG, "".join(lines).encode()))
    return members


def keep_content(path: str, content: bytes | None, key_file: str, secret_files: Collection[str]) -> bytes | None:
    """The content of a member as the archive may have it; empty for a secret."""
    name = path.rpartition("/")[2]
    if path == key_file:
        return ZERO_KEY
    if path.startswith((f"{STATE}/", f"{RANK_FILE.folder}/")) and name not in KEPT_STATE:
        return b""  # such as setup.json, which may have an earlier key of the cluster
    if path in secret_files or (path.startswith("/proc/") and name == "environ"):
        return b""
    if path.startswith("/proc/") and name == "cmdline" and content:
        words = content.rstrip(b"\0").decode("utf-8", "backslashreplace").split("\0")
        return "\0".join((*hide_values(words), "")).encode()
    return content


def hide_values(words: Sequence[str]) -> list[str]:
    """The first words of a command, without values: any value may be a password or a script.

    A flag keeps its name. Of the first word only its first part is kept, since a program can write its whole command
    line into it.
    """
    program = [word.split()[0] if word.strip() else "" for word in words[:1]]
    return [word[:WORD_LENGTH] for word in (*program, *map(_hide_value, words[1:WORDS]))]


def _hide_value(word: str) -> str:
    flag = _FLAG.match(word)
    return word if _ENGINE.fullmatch(word) else flag[0] if flag else HIDDEN


def _find_more_files() -> Iterator[str]:
    """Yield files for the tree in addition to those that checks read: settings, state, counters of the fabric."""
    # No folders below STATE, such as compile caches: there a container makes links, and any number of files.
    for top, _, names in chain(*map(os.walk, SETTINGS), islice(os.walk(STATE), 1)):
        yield from (f"{top}/{name}" for name in names if name.endswith(SUFFIXES))
    for device in (*Path("/sys/class/infiniband").glob("*"), *Path("/sys/class/net").glob("*")):
        for folder, _, names in os.walk(f"{device}/"):
            if Path(folder).name in COUNTERS:
                yield from (f"{folder}/{name}" for name in names)


def without_commands(answer: object, key: str = "") -> object:
    """docker's answer without environments, and with `hide_values` for commands. `key`: its key in another answer."""
    if key in _EMPTIED:
        return _EMPTIED[key]
    match answer:
        case str() if key in _COMMANDS:
            return hide_values([answer])[0]
        case [*words] if key in _COMMANDS:
            return hide_values([str(word) for word in words])
        case [*parts]:
            return [without_commands(part) for part in parts]
        case {**fields}:
            return {str(name): without_commands(part, str(name)) for name, part in fields.items()}
    return answer


MOST_BYTES = 19 << 20
"""The archive's limit: forums and mail take 20 MB."""


class Archive:
    """A tar file. Every text in it is redacted, JSON as a document. Once it is too long, members are left out."""

    def __init__(self, name: str, at: datetime, redact: Redaction) -> None:
        self._name, self._at, self._redact = name, at.timestamp(), redact
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w:gz", compresslevel=6)  # noqa: SIM115 - until `close`
        self.left_out = 0

    def add(self, path: str, content: bytes | str | None, target: str = "", *, executable: bool = False) -> None:
        """Add a file, or with None as `content` a folder or a symlink to `target`. A file that is no UTF-8 is empty."""
        if self._buffer.getbuffer().nbytes > MOST_BYTES:
            self.left_out += 1
            return
        member = tarfile.TarInfo(f"{self._name}/{self._redact(path)}")
        member.mtime, member.mode = int(self._at), 0o700 if content is None or executable else 0o600
        if target:
            member.type, member.linkname = tarfile.SYMTYPE, self._redact(target)
        elif content is None:
            member.type = tarfile.DIRTYPE
        packed = self._redact_content(path, content or b"")
        member.size = len(packed)
        self._tar.addfile(member, io.BytesIO(packed))

    def _redact_content(self, path: str, content: bytes | str) -> bytes:
        """The content without secrets; empty where it is not UTF-8."""
        if path.endswith(".json"):
            with suppress(ValueError, RecursionError):
                document = self._redact.document(parse_json(content))
                return json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8", "backslashreplace")
        with suppress(UnicodeDecodeError):
            text = content if isinstance(content, str) else content.decode()
            return self._redact(text).encode("utf-8", "backslashreplace")
        return b""

    def close(self) -> bytes:
        """The complete file."""
        self._tar.close()
        return self._buffer.getvalue()
