"""The values that must be equal on all nodes of one engine, and their digest.

vLLM serves with different flags on its two ranks without an error, so sparkd compares. The values cross the fabric
unencrypted, and every user of a node can read the digest and try likely secrets against it. So neither contains a
secret: of a secret's file, or of a variable that looks like one, only the name counts.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from sparkd.base.host.weights import Manifest
from sparkd.base.lib.text import parse_json
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.recipes.schema import Container
from sparkd.base.vllm.args import JsonValue, check_value

PLAN_PATH = "/plan"
"""The path at which a node serves its values to the others."""
UNCHECKED = "unchecked."
"""Prefix of the name of a value that may differ: it is listed, and left out of the digest."""
IMAGE = ("image", "image.identity")
"""Names of the values that may differ where cluster.allow_image_difference is set."""
MOST_VALUES = 20_000
LONGEST_TEXT = 4096

_Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]
TEXT_LIMIT = 2000
"""Characters of a name or a value; a longer one is cut, with its hash appended."""
HIDDEN = "set, not compared"
"""Replaces a secret, in digest and table."""

_SECRET = re.compile(r"secret|passw|passphrase|credential|token(?!i)|key", re.IGNORECASE)
_COUNTED = re.compile(r"tokens", re.IGNORECASE)
_WITH_SECRET = re.compile(r"://[^/\s]*@|\b(?:hf_|sk-|nvapi-)[\w-]{16}|--(?:api-key|password)[ =]")


class Agreement(Struct, frozen=True):
    values: Mapping[str, str]
    digest: str
    """SHA-256 of all checked values. Nodes launch together only if it is equal."""


def make_agreement(
    plan: LaunchPlan, image_identity: str, weights: Manifest, script_sha256: str, allow_image_difference: bool = False
) -> Agreement:
    """The plan's values and those read on the node. `script_sha256` is empty for a generated script."""
    values = {**dict(plan.shared), "image.identity": image_identity}
    if script_sha256:
        values["script.sha256"] = script_sha256
    values |= {bound_text(f"weights.{name}"): bound_text(text) for name, text in weights}
    if allow_image_difference:
        values = {(UNCHECKED + name if name in IMAGE else name): text for name, text in values.items()}
    checked = ((name, text) for name, text in values.items() if not name.startswith(UNCHECKED))
    return Agreement(values, compute_digest(checked))


def flatten(
    plain: Mapping[str, JsonValue], tables: Mapping[str, Mapping[str, JsonValue]]
) -> tuple[tuple[str, str], ...]:
    """Names and texts, sorted; an entry of a table is `table.key`. None and empty lists are left out."""
    values = dict(plain)
    for table, entries in tables.items():
        values |= {f"{table}.{key}": value for key, value in entries.items()}
    texts = {key: format_value(key, value) for key, value in values.items() if value is not None and value != []}
    return tuple(sorted((bound_text(key), bound_text(text)) for key, text in texts.items()))


def container_values(spec: Container) -> dict[str, JsonValue]:
    """A container's options. A mount counts by its target, because its source may differ between nodes."""
    values: dict[str, JsonValue] = spec.model_dump(exclude={"ulimits", "devices", "volumes"})
    values["shm_bytes"] = spec.shm_size_bytes
    # Null counts as false, as in versions that had no null: their nodes and newer ones may serve together.
    values["no_new_privileges"] = bool(spec.no_new_privileges)
    values["devices"] = [*sorted(spec.devices)]
    mounts = (f"{mount.target} {'read-only' if mount.read_only else 'writable'}" for mount in spec.volumes)
    values["mounts"] = [*sorted(mounts)]
    return values | {f"ulimits.{name}": f"{limit.soft} to {limit.hard}" for name, limit in spec.limits.items()}


def format_value(name: str, value: JsonValue) -> str:
    """A text that is the same for equal values, and never empty. Secrets are hidden."""
    if _is_secret(name, value):
        return HIDDEN
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):  # a JSON object in a text is compared by its values
            value = check_value(parse_json(value))
    if isinstance(value, str) and value not in ("", "true", "false") and not value.startswith(("[", '"')):
        return value
    # A text that looks like a list or a switch is quoted, as JSON.
    return json.dumps(_without_secrets(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _without_secrets(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: HIDDEN if _is_secret(key, inner) else _without_secrets(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [HIDDEN if _is_secret("", inner) else _without_secrets(inner) for inner in value]
    return value


def _is_secret(name: str, value: JsonValue) -> bool:
    """Whether the name (HF_TOKEN) or the text (a password in a URL) marks a secret. A count of tokens is none."""
    if value is None or isinstance(value, bool):
        return False
    if isinstance(value, str) and _WITH_SECRET.search(value):
        return True
    if isinstance(value, int | float) or (isinstance(value, str) and value.isdecimal()):
        name = _COUNTED.sub("", name)
    return _SECRET.search(name) is not None


def bound_text(line: str) -> str:
    """The text, cut to the limits of peers; characters that cannot be encoded become escapes."""
    line = line.encode("utf-8", "backslashreplace").decode()
    if len(line) <= TEXT_LIMIT:
        return line
    return f"{line[: TEXT_LIMIT // 2]}… {len(line)} characters, sha256 {hashlib.sha256(line.encode()).hexdigest()}"


def compute_digest(values: Iterable[tuple[str, str]]) -> str:
    """SHA-256 in hex, independent of the order."""
    return hashlib.sha256(json.dumps(sorted(values), separators=(",", ":")).encode()).hexdigest()


def dump_values(values: Mapping[str, str]) -> bytes:
    return json.dumps(dict(values), sort_keys=True, separators=(",", ":")).encode()


def parse_values(body: bytes) -> Mapping[str, str] | None:
    """The values that `dump_values` wrote; None for any other text, and for values out of bounds."""
    if len(body) > (8 << 20):
        return None
    try:
        values = msgspec.json.decode(body, type=dict[_Text, _Text])
    except (ValueError, RecursionError):
        return None
    return values if len(values) <= MOST_VALUES else None
