"""What all ranks of one engine must share, as settings and recipe say it: flat, each value a line of text.

These values cross the fabric in clear, and their digest can be read by every user of a node, who could try likely
secrets against it. So a secret enters neither: of a file, or a variable that looks like one, only the name counts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

from sparkd import flags
from sparkd.flags import JsonValue
from sparkd.launch.plan import ContainerSpec, Mount

TEXT_LIMIT = 2000
"""Characters of a name or a value; a longer one is cut, and told by its hash."""
HIDDEN = "set, not compared"
"""Stands for a secret, in digest and table alike."""

_SECRET = re.compile(r"secret|passw|passphrase|credential|token(?!i)|key", re.IGNORECASE)
_COUNTED = re.compile(r"tokens", re.IGNORECASE)
_WITH_PASSWORD = re.compile(r"://[^/\s]*@")


def flat(plain: Mapping[str, JsonValue], tables: Mapping[str, Mapping[str, JsonValue]]) -> tuple[tuple[str, str], ...]:
    """Sorted names and texts; each entry of a table is `table.key`. What is None, or an empty list, is left out."""
    entries = [("", name, value) for name, value in plain.items()]
    entries += [(f"{table}.", key, value) for table, values in tables.items() for key, value in values.items()]
    return tuple(
        sorted(
            (bounded(prefix + key), bounded(text(key, value)))
            for prefix, key, value in entries
            if value is not None and value != []
        )
    )


def container(spec: ContainerSpec) -> dict[str, JsonValue]:
    """A container's options; a mount by where it is seen, for nodes may keep its source in different places."""
    plain: dict[str, JsonValue] = {
        "gpus": spec.gpus,
        "ipc": spec.ipc,
        "network": spec.network,
        "privileged": spec.privileged,
        "init": spec.init,
        "shm_bytes": spec.shm_bytes,
        "memory_limit_bytes": spec.memory_limit_bytes,
        "devices": [*sorted(spec.devices)],
        "mounts": _mounts(spec.mounts),
    }
    return plain | {f"ulimits.{one.name}": f"{one.soft} to {one.hard}" for one in spec.ulimits}


def _mounts(mounts: Iterable[Mount]) -> JsonValue:
    return [*sorted(f"{mount.target} {'read-only' if mount.read_only else 'writable'}" for mount in mounts)]


def text(name: str, value: JsonValue) -> str:
    """One text for equal values, never empty, and without the secrets in it."""
    if _is_secret(name, value):
        return HIDDEN
    value = _table(value)
    if isinstance(value, str) and value not in ("", "true", "false") and not value.startswith(("[", '"')):
        return value
    # A text that could be taken for a list or a switch stands in quotes, as JSON.
    return json.dumps(_without_secrets(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _table(value: JsonValue) -> JsonValue:
    """A table that is written as JSON in a text is looked into as any other."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):
            return flags.value(json.loads(value))
    return value


def _without_secrets(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: HIDDEN if _is_secret(key, one) else _without_secrets(one) for key, one in value.items()}
    if isinstance(value, list):
        return [HIDDEN if _is_secret("", one) else _without_secrets(one) for one in value]
    return value


def _is_secret(name: str, value: JsonValue) -> bool:
    """By the name, such as HF_TOKEN, or by a password in an address. `max-num-batched-tokens = 16384` is none."""
    if value is None or isinstance(value, bool):
        return False
    if isinstance(value, str) and _WITH_PASSWORD.search(value):
        return True
    if isinstance(value, int | float) or (isinstance(value, str) and value.isdecimal()):
        name = _COUNTED.sub("", name)
    return _SECRET.search(name) is not None


def bounded(line: str) -> str:
    """The text, short enough for a peer to take; what cannot be encoded reads as its escape."""
    line = line.encode("utf-8", "backslashreplace").decode()
    if len(line) <= TEXT_LIMIT:
        return line
    return f"{line[: TEXT_LIMIT // 2]}… {len(line)} characters, sha256 {hashlib.sha256(line.encode()).hexdigest()}"


def digest(values: Iterable[tuple[str, str]]) -> str:
    """SHA-256 in hex, whatever the order."""
    canonical = json.dumps(sorted(values), separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
