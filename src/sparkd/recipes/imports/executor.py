"""sparkrun's `executor_config`: options of the container, over what sparkrun itself starts one with."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sparkd.recipes.imports.source import Source

KEY = "executor_config"
UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d{1,15})(?:\.(\d{1,9}))?\s*([kmgt]?)i?b?", re.IGNORECASE)
_ULIMIT = re.compile(r"([a-z]+)=(-?\d{1,18})(?::(-?\d{1,18}))?")
_YES = ("true", "yes", "y", "t", "1", "on")
_NAMES_OF_SPARKD = {"shm_size": "shm_bytes", "memory_limit": "memory_limit_bytes"}
_IDLE = {
    "auto_remove": "sparkd removes its containers itself",
    "restart_policy": "restarting is systemd's job",
    "labels": "sparkd sets its own",
    "user": "the image's own user stays",
    "entrypoint": "sparkd starts its own script",
    "security_opt": "a recipe has no such option",
    "cap_add": "a recipe has no such option",
}


def container(source: Source) -> Mapping[str, object]:
    """Keys of schema 1's `container`; what has none is told."""
    found: dict[str, object] = {"privileged": True, "ipc": "host"}
    for name, value in source.mapping(KEY).items():
        if value is None:
            continue
        taken = _taken(name, value)
        if taken is None:
            reason = _IDLE.get(name) or "a recipe cannot say it"
            source.note((KEY, name), f"{KEY}.{name}: left out: {reason}")
        else:
            found.update(taken)
    return found


def _taken(name: str, value: object) -> dict[str, object] | None:
    text = str(value)
    if name == "privileged":
        return {"privileged": text.lower() in _YES}
    if (name, text) in (("gpus", "all"), ("network", "host")):
        return {}
    if name == "gpus" and text in ("none", ""):
        return {"gpus": "none"}
    if name == "ipc" and text in ("host", "private", "shareable"):
        return {"ipc": text}
    if name in _NAMES_OF_SPARKD:
        return _bytes(_NAMES_OF_SPARKD[name], text)
    if name in ("ulimit", "devices"):
        words = [str(one) for one in value] if isinstance(value, list) else [text]
        return _ulimits(words) if name == "ulimit" else _devices(words)
    return None


def _bytes(name: str, text: str) -> dict[str, object] | None:
    size = _SIZE.fullmatch(text)
    if size is None:
        return None
    found = int(float(f"{size[1]}.{size[2] or 0}") * UNITS[size[3].lower()])
    return {name: found} if 0 < found <= 2**50 else None


def _ulimits(words: list[str]) -> dict[str, object] | None:
    limits = [_ULIMIT.fullmatch(word) for word in words]
    if not all(limits):
        return None
    return {"ulimits": {one[1]: {"soft": int(one[2]), "hard": int(one[3] or one[2])} for one in limits if one}}


def _devices(words: list[str]) -> dict[str, object] | None:
    return {"devices": words} if all(re.fullmatch(r"/[\w./-]+", word) for word in words) else None
