"""known-good.json: plans that have proven themselves in service, newest first, each with all that it was made of."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from sparkd.known_good.facts import Facts
from sparkd.launch.agreement import LONGEST_TEXT, MOST_VALUES
from sparkd.lib.text import sanitize

if TYPE_CHECKING:
    from sparkd.host.files import Files

FILE = "known-good.json"
PATH = f"/var/lib/sparkd/{FILE}"
KEPT = 8
LIMIT_BYTES = 16 << 20
"""An entry has some 20 KiB, more with a model of many files."""
_IMAGE_ID = re.compile(r"(?:[a-z0-9]+:[a-z0-9]+)?")


class Entry(Struct, frozen=True):
    """A plan that has proven itself. Stamps are UTC, ISO 8601."""

    since: str
    """When it had done so for the first time."""
    until: str
    """And when for the last."""
    plan: str
    """Digest of what settings and recipe say."""
    agreement: str
    """Digest of that, the image, the weights and the script."""
    image_id: str
    facts: Facts
    recipe: Mapping[str, object]
    """As JSON: what it takes to make the plan again, with `engine`, the section of the settings."""
    engine: Mapping[str, object]

    @property
    def name(self) -> str:
        return str(self.recipe.get("name", "?"))


def in_utc(stamp: str) -> str:
    """A stamp for people."""
    return f"{sanitize(stamp[:16]).replace('T', ' ')} UTC"


def proven(known: Sequence[Entry], entry: Entry) -> tuple[Entry, ...]:
    """The history once `entry` has proven itself, perhaps again."""
    same = [one for one in known if (one.agreement, one.image_id) == (entry.agreement, entry.image_id)]
    others = [one for one in known if one not in same]
    return (replace(entry, since=same[0].since) if same else entry, *others)[:KEPT]


def read(files: Files) -> tuple[Entry, ...]:
    """Empty where the file is not there, or can't be read: it is there to help, and keeps nobody from starting."""
    try:
        return parse(files.text(PATH, LIMIT_BYTES))
    except OSError:
        return ()


def dump(known: Sequence[Entry]) -> str:
    """What `read` takes: the oldest entries are left out where all would be too large."""
    entries = [to_builtins(one) for one in known]
    for kept in range(len(entries), 0, -1):
        text = json.dumps({"schema": 1, "known_good": entries[:kept]}, indent=1) + "\n"
        if len(text) <= LIMIT_BYTES:
            return text
    return json.dumps({"schema": 1, "known_good": []}) + "\n"


def parse(text: str) -> tuple[Entry, ...]:
    """What is no such file counts as empty, and what is no entry as none."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    match said:
        case {"schema": 1, "known_good": list(entries)}:
            return tuple(entry for one in entries[:KEPT] if (entry := _entry(one)) is not None)
        case _:
            return ()


def _entry(said: object) -> Entry | None:
    match said:
        case {
            "since": str(since),
            "until": str(until),
            "plan": str(plan),
            "agreement": str(agreement),
            "image_id": str(image_id),
            "facts": {"values": values, "versions": versions, "boot": boot},
            "recipe": dict(recipe),
            "engine": dict(engine),
        }:
            tables = [_texts(one) for one in (values, versions, boot)]
            stamps = (since, until, plan, agreement, image_id)
            if not all(map(_plain, stamps)) or not is_image_id(image_id) or None in tables:
                return None
            return Entry(since, until, plan, agreement, image_id, Facts(*(one or {} for one in tables)), recipe, engine)
        case _:
            return None


def is_image_id(text: str) -> bool:
    """Whether docker may be asked for it; empty is none."""
    return _plain(text) and _IMAGE_ID.fullmatch(text) is not None


def _plain(text: str) -> bool:
    return len(text) <= LONGEST_TEXT and text.isascii() and (text.isprintable() or not text)


def _texts(said: object) -> dict[str, str] | None:
    if not isinstance(said, dict) or len(said) > MOST_VALUES:
        return None
    texts = {name: text for name, text in said.items() if isinstance(text, str) and len(text) <= LONGEST_TEXT}
    return texts if len(texts) == len(said) else None
