"""What `sparkd capture` has of this machine and of docker, without secrets: its tree of files, and the containers.

The tree has what the checks read, so `preflight --root` examines it as it would this machine.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import chain, islice
from pathlib import Path

import msgspec

from sparkd.base.config import Settings
from sparkd.base.host import Host, kernel
from sparkd.base.host.files import FIXTURE
from sparkd.base.host.gpu import read_driver
from sparkd.base.lib.errors import BlockedError, ConfigError
from sparkd.base.lib.redaction import HIDDEN
from sparkd.base.state.rank_record import RANK_FILE
from sparkd.tools.node.dry_run import examine_settings
from sparkd.tools.support.recorder import Member, RecordingHost, read_tree

MOST_WORDS, WORD_LENGTH = 6, 100
"""Words of a command line, and characters of a word, that are kept: enough to recognise the program."""
_FLAG = re.compile(r"--[a-z][a-z0-9-]{0,60}|-[A-Za-z]?", re.ASCII)
_ENGINE_WORD = re.compile(r"(?:/[\w./-]*/)?vllm|serve|vllm\.entrypoints\.[\w.]+", re.ASCII)
"""A word by which a check recognises a foreign engine."""
INSPECTED_KEYS = (
    "Id", "Created", "Path", "State", "Image", "Name", "RestartCount", "Driver", "Platform", "HostConfig", "Mounts",
)  # fmt: skip
"""Keys of docker's description of a container that the archive has."""
_COMMAND_KEYS = ("Path", "Cmd", "Entrypoint")
"""Keys of commands in docker's answers."""
_BLANKS: dict[str, object] = {"Env": [], "Args": [], "Command": "", "Healthcheck": None, "Output": ""}
"""Values in place of those in docker's answers; Output is a health check's."""
SETTINGS_FOLDERS = ("/etc/sparkd", "/etc/docker", "/etc/sysctl.d", "/etc/modprobe.d", "/etc/systemd/system")
STATE_FOLDER = "/var/lib/sparkd"
SUFFIXES = (".toml", ".yaml", ".yml", ".conf", ".json", ".service", ".target")
"""Names of files in these folders that get into the tree."""
KEPT_STATE = (
    *("image-asserts.json", "known-good.json", "launch-history.json", "switch.json", "tune.json", "warm.json"),
    RANK_FILE.name,
)
"""Files of sparkd's state that keep their content."""
COUNTER_FOLDERS = ("statistics", "counters", "hw_counters")
"""Folders of a network device's counters, in /sys."""
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
    fixtures |= {f"docker{path}": redact_docker(answer) for path, answer in host.docker_answers().items()}
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
    if path.startswith((f"{STATE_FOLDER}/", f"{RANK_FILE.folder}/")) and name not in KEPT_STATE:
        return b""  # such as setup.json, which may have an earlier key of the cluster
    if path in secret_files or (path.startswith("/proc/") and name == "environ"):
        return b""
    if path == "/etc/fstab" and content:
        return _hide_options(content)
    if path.startswith("/proc/") and name == "cmdline" and content:
        words = content.rstrip(b"\0").decode("utf-8", "backslashreplace").split("\0")
        return "\0".join((*hide_values(words), "")).encode()
    return content


def _hide_options(fstab: bytes) -> bytes:
    """The table with the targets and kinds of mounts only: a share's options may have its password."""
    rows = (line.split() for line in fstab.splitlines() if not line.lstrip().startswith(b"#"))
    return b"".join(b"- %b %b -\n" % (row[1], row[2]) for row in rows if len(row) > 2)


def hide_values(words: Sequence[str]) -> list[str]:
    """The first words of a command, without values: any value may be a password or a script.

    A flag keeps its name. Of the first word only its first part is kept, since a program can write its whole command
    line into it.
    """
    program = [word.split()[0] if word.strip() else "" for word in words[:1]]
    return [word[:WORD_LENGTH] for word in (*program, *map(_hide_value, words[1:MOST_WORDS]))]


def _hide_value(word: str) -> str:
    flag = _FLAG.match(word)
    return word if _ENGINE_WORD.fullmatch(word) else flag[0] if flag else HIDDEN


def _find_more_files() -> Iterator[str]:
    """Yield files for the tree in addition to those that checks read: settings, state, counters of the fabric."""
    # No folders below STATE_FOLDER, such as compile caches: there a container makes links, and any number of files.
    for top, _, names in chain(*map(os.walk, SETTINGS_FOLDERS), islice(os.walk(STATE_FOLDER), 1)):
        yield from (f"{top}/{name}" for name in names if name.endswith(SUFFIXES))
    for device in (*Path("/sys/class/infiniband").glob("*"), *Path("/sys/class/net").glob("*")):
        for folder, _, names in os.walk(f"{device}/"):
            if Path(folder).name in COUNTER_FOLDERS:
                yield from (f"{folder}/{name}" for name in names)


def redact_docker(answer: object, key: str = "") -> object:
    """docker's answer without environments, and with `hide_values` for commands.

    `key`: the one that it has in another answer; empty for a whole answer.
    """
    if key in _BLANKS:
        return _BLANKS[key]
    match answer:
        case str() if key in _COMMAND_KEYS:
            return hide_values([answer])[0]
        case [*words] if key in _COMMAND_KEYS:
            return hide_values([str(word) for word in words])
        case [*parts]:
            return [redact_docker(part) for part in parts]
        case {**fields}:
            return {str(name): redact_docker(part, str(name)) for name, part in fields.items()}
    return answer


def describe_containers(host: Host) -> list[dict[str, object]]:
    """The public part of docker's descriptions of sparkd's containers. Raises BlockedError without docker."""
    facts = host.docker()
    if not facts.running or facts.error:
        raise BlockedError(facts.error or "docker is not running")
    with closing(host.docker_reader()) as reader:
        answers = [reader.container(container.id) for container in facts.containers if container.ours]
    return [_describe_container(answer) for answer in answers if isinstance(answer, dict)]


def _describe_container(answer: Mapping[str, object]) -> dict[str, object]:
    """No values of the environment, and of the command its beginning."""
    config = answer.get("Config")
    config = config if isinstance(config, dict) else {}
    return {
        **{key: redact_docker(answer.get(key), key) for key in INSPECTED_KEYS},
        "Labels": config.get("Labels"),
        "Env": [str(line).partition("=")[0] for line in config.get("Env") or ()],
        "ImageName": config.get("Image"),
    }
