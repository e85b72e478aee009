"""Messages of the kernel's log that matter, from kernel-log.toml: their meaning, and the action that they require."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field, toml

from sparkd.base.host.kernel import Record
from sparkd.base.lib import read_data
from sparkd.base.lib.errors import Action
from sparkd.base.lib.text import sanitize

LINE_LIMIT = 1000
"""Characters that are searched: a message is printed in pieces of at most that."""
Text = Annotated[str, Meta(min_length=1)]


class Effect(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    action: Action
    meaning: Text
    """A text with `{device}` and `{code}` in the places of the message's own."""
    hint: Text
    preflight: Literal["", "warn", "block"] = ""


class Kind(Effect, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A kind of message. Its own effect is that of each code without an entry in `codes`."""

    name: Text
    patterns: Annotated[tuple[Text, ...], Meta(min_length=1)]
    """Groups: `device`, which may be a process, and `code`."""
    base: Literal[10, 16] = 10
    """The base of `code`."""
    codes: Mapping[str, Effect] = field(default_factory=dict)


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    kinds: tuple[Kind, ...]


KINDS = {kind.name: kind for kind in toml.decode(read_data("kernel-log.toml"), type=_Table).kinds}
_PATTERNS = tuple((name, re.compile(pattern)) for name, kind in KINDS.items() for pattern in kind.patterns)
COUNTED = tuple(
    sorted({(kind.name, effect.action.value) for kind in KINDS.values() for effect in (kind, *kind.codes.values())})
)
"""Each kind with each of its actions."""


class Event(Struct, frozen=True):
    kind: str
    device: str
    code: int
    """The Xid, or the recovery action; else 0."""
    count: int
    last_seconds: float
    """Since boot."""
    text: str

    @property
    def effect(self) -> Effect:
        kind = KINDS[self.kind]
        return kind.codes.get(str(self.code), kind)

    @property
    def reason(self) -> str:
        meaning = self.effect.meaning.replace("{code}", str(self.code)).replace("({device})", f"({self.device or '?'})")
        return meaning.replace("{device}", self.device).replace("  ", " ").strip()


def parse_event(record: Record) -> Event | None:
    """The event of a record; None where it does not matter: mlx5 warns of 27 W at each boot of a healthy machine."""
    line = record.text[:LINE_LIMIT]
    for name, pattern in _PATTERNS:
        if match := pattern.match(line):
            groups = match.groupdict()
            code = int((groups.get("code") or "0")[:8], KINDS[name].base)
            device = sanitize(groups.get("device") or "", 40)
            return Event(name, device, code, 1, round(record.seconds, 3), sanitize(record.text))
    return None


_DATE = r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}"
_PREFIX = re.compile(rf"(?:\[(?:[ \d.]{{1,20}}|{_DATE})\] |[^|()]{{0,80}}\bkernel: |(?=NVRM: ))")
"""How dmesg, dmesg -T and journalctl -k begin a line, or the driver its own; none of the engine's lines begins so."""


def parse_printed(line: str) -> Event | None:
    """The event of a line of the kernel's log as a program printed it; None for any other line."""
    prefix = _PREFIX.match(line)
    return parse_event(Record(0, 0.0, line[prefix.end() :])) if prefix else None
