"""boots.json: how far a launch came in each of the last boots, so that the next one can tell how they ended.

A launch is written down before its container starts, and closed at every end that sparkd lives to see. One that a later
boot finds open was ended with its machine: by a power cut, a freeze, or a kernel that died.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

if TYPE_CHECKING:
    from sparkd.host.files import Files

PATH = "/var/lib/sparkd/boots.json"
LOADING, SERVING = "loading", "serving"
KEPT = 8
"""Boots; a good start forgets those before it."""
LIMIT_BYTES = 4 << 20
MOST_FACTS = 400
FACT_LENGTH = 2000


class Boot(Struct, frozen=True):
    """The last launch in a boot of the machine."""

    boot_id: str
    digest: str
    """Of its plan."""
    phase: str
    """LOADING or SERVING."""
    open: bool
    """Whether sparkd has not seen its end."""


class Boots(Struct, frozen=True):
    """Since the last good start, oldest first."""

    boots: tuple[Boot, ...] = ()
    tried: Mapping[str, str] = field(default_factory=dict)
    """What the last launch was made of: versions, image, values of the plan."""
    good: Mapping[str, str] = field(default_factory=dict)
    """The same of the last good start."""

    def opened(self, boot_id: str, digest: str, facts: Mapping[str, str]) -> Boots:
        """A launch begins."""
        latest = (*self.before(boot_id), Boot(boot_id, digest, LOADING, open=True))
        return replace(self, boots=latest[-KEPT:], tried=_bounded(facts))

    def served(self, boot_id: str) -> Boots:
        """It has come to its end: what failed before does not count any more."""
        return Boots(
            tuple(replace(one, phase=SERVING) for one in self.boots if one.boot_id == boot_id), self.tried, self.tried
        )

    def closed(self, boot_id: str) -> Boots:
        """Its end was seen. Also for a launch that a dead agent of this boot left: the machine outlived it."""
        return replace(self, boots=tuple(replace(one, open=one.open and one.boot_id != boot_id) for one in self.boots))

    def forgiven(self) -> Boots:
        """Handed to a person: the next launch begins at zero."""
        return replace(self, boots=())

    def before(self, boot_id: str) -> tuple[Boot, ...]:
        """Boots before this one."""
        return tuple(one for one in self.boots if one.boot_id != boot_id)


def read(files: Files) -> Boots:
    """The file as it stands; where there is none, nothing is known. Raises OSError where it can't be read."""
    try:
        return parse(files.text(PATH, LIMIT_BYTES))
    except FileNotFoundError:
        return Boots()


def dump(boots: Boots) -> str:
    return json.dumps({"schema": 1, **to_builtins(boots)}, indent=1) + "\n"


def parse(text: str) -> Boots:
    """What is no such file (edited, cut off) counts as empty: it is there to help, and keeps nobody from starting."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return Boots()
    match said:
        case {"schema": 1, "boots": list(boots), "tried": dict(tried), "good": dict(good)}:
            found = tuple(boot for one in boots if (boot := _boot(one)) is not None)
            return Boots(found[-KEPT:], _bounded(tried), _bounded(good))
        case _:
            return Boots()


def _boot(said: object) -> Boot | None:
    match said:
        case {"boot_id": str(boot_id), "digest": str(digest), "phase": str(phase), "open": bool(opened)}:
            return Boot(boot_id, digest, phase, opened)
        case _:
            return None


def _bounded(facts: Mapping[str, str]) -> dict[str, str]:
    texts = ((str(name)[:FACT_LENGTH], str(value)[:FACT_LENGTH]) for name, value in facts.items())
    return dict(list(texts)[:MOST_FACTS])
