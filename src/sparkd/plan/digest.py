"""The values that all ranks of one engine must share: names and texts, and their digest.

They cross the fabric unencrypted, and every user of a node can read the digest and try likely secrets against it. So
neither contains a secret: of a secret's file, or of a variable that looks like one, only the name counts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from sparkd.vllm.args import JsonValue, check_value

if TYPE_CHECKING:
    from sparkd.recipes.schema import Container

TEXT_LIMIT = 2000
"""Characters of a name or a value; a longer one is cut, with its hash appended."""
HIDDEN = "set, not compared"
"""Replaces a secret, in digest and table."""

_SECRET = re.compile(r"secret|passw|passphrase|credential|token(?!i)|key", re.IGNORECASE)
_COUNTED = re.compile(r"tokens", re.IGNORECASE)
_WITH_PASSWORD = re.compile(r"://[^/\s]*@")


def flatten(
    plain: Mapping[str, JsonValue], tables: Mapping[str, Mapping[str, JsonValue]]
) -> tuple[tuple[str, str], ...]:
    """Sorted names and texts; an entry of a table is `table.key`. None and empty lists are left out."""
    entries = [("", name, value) for name, value in plain.items()]
    entries += [(f"{table}.", key, value) for table, values in tables.items() for key, value in values.items()]
    return tuple(
        sorted(
            (bound_text(prefix + key), bound_text(format_value(key, value)))
            for prefix, key, value in entries
            if value is not None and value != []
        )
    )


def container_values(spec: Container) -> dict[str, JsonValue]:
    """A container's options. A mount counts by its target, because its source may differ between nodes."""
    values: dict[str, JsonValue] = spec.model_dump(exclude={"ulimits", "devices", "volumes"})
    values["devices"] = [*sorted(spec.devices)]
    values["mounts"] = [*sorted(f"{one.target} {'read-only' if one.read_only else 'writable'}" for one in spec.volumes)]
    return values | {f"ulimits.{name}": f"{one.soft} to {one.hard}" for name, one in spec.ulimits.items()}


def format_value(name: str, value: JsonValue) -> str:
    """The same text for equal values, never empty, with secrets hidden."""
    if _is_secret(name, value):
        return HIDDEN
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):  # a JSON object in a text is compared by its values
            value = check_value(json.loads(value))
    if isinstance(value, str) and value not in ("", "true", "false") and not value.startswith(("[", '"')):
        return value
    # A text that looks like a list or a switch is quoted, as JSON.
    return json.dumps(_without_secrets(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _without_secrets(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: HIDDEN if _is_secret(key, one) else _without_secrets(one) for key, one in value.items()}
    if isinstance(value, list):
        return [HIDDEN if _is_secret("", one) else _without_secrets(one) for one in value]
    return value


def _is_secret(name: str, value: JsonValue) -> bool:
    """Whether the name (HF_TOKEN) or a password in a URL marks a secret. `max-num-batched-tokens = 16384` is none."""
    if value is None or isinstance(value, bool):
        return False
    if isinstance(value, str) and _WITH_PASSWORD.search(value):
        return True
    if isinstance(value, int | float) or (isinstance(value, str) and value.isdecimal()):
        name = _COUNTED.sub("", name)
    return _SECRET.search(name) is not None


def bound_text(line: str) -> str:
    """The text within the peer's limits; characters that cannot be encoded become escapes."""
    line = line.encode("utf-8", "backslashreplace").decode()
    if len(line) <= TEXT_LIMIT:
        return line
    return f"{line[: TEXT_LIMIT // 2]}… {len(line)} characters, sha256 {hashlib.sha256(line.encode()).hexdigest()}"


def compute_digest(values: Iterable[tuple[str, str]]) -> str:
    """SHA-256 in hex, independent of the order."""
    return hashlib.sha256(json.dumps(sorted(values), separators=(",", ":")).encode()).hexdigest()
