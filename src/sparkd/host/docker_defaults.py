"""What docker gives a container that asks for nothing else: /etc/docker/daemon.json and dockerd's flags, as far as it
matters.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec import Struct

from sparkd.host import docker, processes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkd.host import Host
    from sparkd.host.files import Files

PATH = "/etc/docker/daemon.json"
ROOT = "/var/lib/docker"
SHM_BYTES = 64 << 20

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?) ?([kmgtp]?)i?b?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}
_MEMLOCK = re.compile(r"memlock=(-?\d{1,19})(?::-?\d{1,19})?", re.ASCII)


class DockerDefaults(Struct, frozen=True):
    shm_bytes: int = SHM_BYTES
    memlock_bytes: int | None = None
    """The soft limit, -1 unlimited. None: what containerd itself runs with."""


def root(host: Host) -> str:
    """Where dockerd keeps containers and images. A file that it would not start with says nothing."""
    words = _words(host)
    said: Mapping[str, object] = {}
    with suppress(OSError, ValueError):
        said = _table(host.files, _config(words))
    path = next(iter(_values(words, "--data-root")), said.get("data-root"))
    return path if isinstance(path, str) and path.startswith("/") else ROOT


def read(host: Host) -> DockerDefaults:
    """Raises OSError, and ValueError for what dockerd would refuse too. It takes nothing from flag and file at once."""
    words = _words(host)
    path = _config(words)
    said = _table(host.files, path)
    shm = next(iter(_values(words, "--default-shm-size")), said.get("default-shm-size"))
    limits = (_MEMLOCK.fullmatch(value) for value in _values(words, "--default-ulimit"))
    memlock = next((int(limit[1]) for limit in limits if limit), _memlock(said.get("default-ulimits")))
    return DockerDefaults(_shm(shm, path), memlock)


def _config(words: tuple[str, ...]) -> str:
    return next(iter(_values(words, "--config-file")), PATH)


def _words(host: Host) -> tuple[str, ...]:
    """Of the dockerd that lives; none where none does."""
    with suppress(OSError):
        pid = docker.daemon_pid(host)
        return processes.argv(host.files, int(pid))[1:] if pid else ()
    return ()


def _values(words: tuple[str, ...], flag: str) -> list[str]:
    """Of a flag of dockerd: `--flag value` or `--flag=value`."""
    joined = [word.removeprefix(f"{flag}=") for word in words if word.startswith(f"{flag}=")]
    return joined + [following for word, following in pairwise(words) if word == flag]


def _table(files: Files, path: str) -> Mapping[str, object]:
    """As dockerd reads it: with a byte order mark or without, and a file of nothing but blanks says nothing."""
    try:
        said = json.loads(files.text(path, limit=1 << 20).removeprefix("\ufeff").strip() or "{}")
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not JSON") from None
    if not isinstance(said, dict):
        raise ValueError(f"{path} is no JSON object")
    return said


def _shm(said: object, path: str) -> int:
    if said is None:
        return SHM_BYTES
    match = _SIZE.fullmatch(str(said).strip())
    if match is None:
        raise ValueError(f"{path}: default-shm-size is {str(said)[:40]!r}")
    return int(float(match[1]) * (1 << _UNITS[match[2].lower()]))


def _memlock(said: object) -> int | None:
    match said:
        case {"memlock": {"Soft": int(soft)}}:
            return soft
        case _:
            return None
