"""What docker gives a container that asks for nothing else: /etc/docker/daemon.json, as far as it matters."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from sparkd.host.files import Files

PATH = "/etc/docker/daemon.json"
SHM_BYTES = 64 << 20

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


@dataclass(frozen=True)
class DockerDefaults:
    shm_bytes: int = SHM_BYTES
    memlock_bytes: int | None = None
    """The soft limit, -1 unlimited. None: what containerd itself runs with."""


def read(files: Files) -> DockerDefaults:
    """Raises OSError, and ValueError for what dockerd would refuse too."""
    try:
        said = json.loads(files.text(PATH, limit=1 << 20) or "{}")
    except FileNotFoundError:
        return DockerDefaults()
    except (ValueError, RecursionError):
        raise ValueError(f"{PATH} is not JSON") from None
    if not isinstance(said, dict):
        raise ValueError(f"{PATH} is no JSON object")
    return DockerDefaults(_shm(said.get("default-shm-size")), _memlock(said.get("default-ulimits")))


def _shm(said: object) -> int:
    if said is None:
        return SHM_BYTES
    match = _SIZE.fullmatch(str(said).strip())
    if match is None:
        raise ValueError(f"{PATH}: default-shm-size is {str(said)[:40]!r}")
    return int(match[1]) << _UNITS[match[2].lower()]


def _memlock(said: object) -> int | None:
    match said:
        case {"memlock": {"Soft": int(soft)}}:
            return soft
        case _:
            return None
