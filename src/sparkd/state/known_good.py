"""known-good.json: plans proven in service, newest first, with the facts of their starts; and how two starts differ.

rollback.json: one of these plans replaces the configured one. The file has a fingerprint of the configured recipe and
of the section `engine`: once either changes, or the recipe can be loaded again, the configured plan is tried.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from sparkd.config import Engine, Settings
from sparkd.host.files import Files
from sparkd.lib.text import sanitize
from sparkd.plan import agreement
from sparkd.plan.agreement import LONGEST_TEXT, MOST_VALUES, UNCHECKED, VALUE_WIDTH, Difference
from sparkd.plan.model import LaunchPlan
from sparkd.recipes.loader import normalize_switches
from sparkd.recipes.schema import Recipe
from sparkd.state.file import LIMIT_BYTES, Report, StateFile, ignore_report
from sparkd.status.model import FindingReport
from sparkd.vllm.args import JsonValue

ORDER = (
    "args", "env", "image", "recipe", "entrypoint", "assert", "model", "served_name", "secrets", "image.identity",
    "weights", "own_script", "script", "container", "caches", "node", "cluster", "supervise",
    "driver", "kernel", "docker", "sparkd", "plan_schema", "boot", "sysctl",
)  # fmt: skip
"""Names, or their parts before the first dot, likeliest cause first."""
LOOKED_AT = ("image.identity", "weights", "script")
"""Values that are read from the node, not from the configuration."""
MOST_FILES = 3
"""Differing weight files get a line each up to this number; more share one line."""
KEPT = 8
ROLLBACK_HINT = "change the recipe or the section engine, or: sparkd rollback --end"
AS_CONFIGURED = ("load_readahead_kib", "stop_grace_seconds")
"""How the node treats any engine: the unit is made for these settings, and no plan has them."""
DESCRIPTION = {"name", "description", "source", "extends", "expect"}
"""Fields of a recipe that do not change the engine."""
Plain = Annotated[str, Meta(max_length=LONGEST_TEXT, pattern=r"\A[ -~]*\Z")]
ImageId = Annotated[str, Meta(max_length=LONGEST_TEXT, pattern=r"\A(?:[a-z0-9]+:[a-z0-9]+)?\Z")]
"""An image id that may go into a request to docker; empty is none."""
Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]
Texts = Annotated[Mapping[Text, Text], Meta(max_length=MOST_VALUES)]


class Facts(Struct, frozen=True):
    """Of one start. `unseen`: names, or their parts before the first dot, that were not read, each with the reason."""

    values: Texts
    """Shared by all ranks, and this node's own; without secrets."""
    versions: Texts
    boot: Texts
    unseen: Texts = field(default_factory=dict)

    def unseen_for(self, name: str) -> bool:
        return name in self.unseen or name.partition(".")[0] in self.unseen


class Entry(Struct, frozen=True):
    """A proven plan, some 20 KiB, more with a model of many files. Stamps are UTC, ISO 8601."""

    since: Plain
    """First proven."""
    until: Plain
    """Last proven."""
    plan: Plain
    """Digest of settings and recipe."""
    agreement: Plain
    """Digest of the plan, the image, the weights and the script."""
    image_id: ImageId
    facts: Facts
    recipe: dict[str, object]
    """As JSON. With `engine`, the section of the settings, it makes the plan again."""
    engine: dict[str, object]

    @property
    def name(self) -> str:
        return str(self.recipe.get("name", "?"))


class History(Struct, frozen=True):
    known_good: tuple[Entry, ...] = ()


FILE = StateFile("known-good.json", History)


def format_utc(stamp: str) -> str:
    """Minutes are enough for people."""
    return f"{sanitize(stamp[:16]).replace('T', ' ')} UTC"


def read_known_good(files: Files, report: Report = ignore_report) -> tuple[Entry, ...]:
    """Empty where there is no usable file: no start depends on it."""
    return (FILE.read(files, report) or History()).known_good


def add_proven(known: Sequence[Entry], entry: Entry) -> History:
    """The history with `entry` as its newest, perhaps again; without the oldest where it would be too large."""
    same = [one for one in known if (one.agreement, one.image_id) == (entry.agreement, entry.image_id)]
    others = [one for one in known if one not in same]
    entries = (replace(entry, since=same[0].since) if same else entry, *others)[:KEPT]
    made = (History(entries[:count]) for count in range(len(entries), 0, -1))
    return next((one for one in made if len(FILE.encode(one)) <= LIMIT_BYTES), History())


def node_values(plan: LaunchPlan) -> dict[str, str]:
    """Values of this node alone: ranks may differ in them, one node should not from day to day."""
    values = {
        "node.model_folder": plan.model_path,
        "node.script": plan.user_script,
        "node.interface": plan.node.interface,
        "node.hcas": ",".join(plan.node.hcas),
        "node.memory_bytes": "" if plan.memory_bytes is None else str(plan.memory_bytes),
    }
    return {name: text for name, text in values.items() if text}


def find_differences(then: Facts, now: Facts) -> tuple[Difference, ...]:
    """Each with the earlier value as `own` and the current one as `theirs`."""
    before, after = _normalize(then), _normalize(now)
    unlike = []
    for name in before.keys() | after.keys():
        (value_then, text_then), (value_now, text_now) = (values.get(name, (None, "")) for values in (before, after))
        if value_then != value_now and not then.unseen_for(name) and not now.unseen_for(name):
            unlike.append(Difference(name, text_then, text_now))
    for old, new in ((then.versions, now.versions), (then.boot, now.boot)):
        # A value that only one of them has is not known to differ.
        unlike += [Difference(name, old[name], new[name]) for name in old.keys() & new.keys() if old[name] != new[name]]
    return tuple(sorted(unlike, key=lambda one: (_place(one.name), one.name)))


def _normalize(facts: Facts) -> dict[str, tuple[str, str]]:
    """By compared name: the normalized value, and its text."""
    found: dict[str, tuple[str, str]] = {}
    for raw, text in facts.values.items():
        name = raw.removeprefix(UNCHECKED)
        head, _, flag = name.partition(".")
        if head != "args" or not flag:
            found[name] = text, text or '""'
            continue
        given: JsonValue = {"true": True, "false": False}.get(text, text)
        for positive, value in normalize_switches({flag: given}).items():
            display = json.dumps(value) if isinstance(value, bool) else text or '""'
            found[f"args.{positive}"] = json.dumps(value, sort_keys=True, ensure_ascii=False), display
    return found


def _place(name: str) -> int:
    return next((ORDER.index(known) for known in (name, name.partition(".")[0]) if known in ORDER), len(ORDER))


def group_files(found: Sequence[Difference]) -> tuple[Difference, ...]:
    """For people: many weight files become one line."""
    files = [one for one in found if one.name.startswith("weights.")]
    if len(files) <= MOST_FILES:
        return tuple(found)
    names = ", ".join(one.name.removeprefix("weights.") for one in files[:MOST_FILES])
    text = f"{len(files)} files differ: {names} and {len(files) - MOST_FILES} more"
    at = found.index(files[0])
    return *found[:at], Difference("weights", "as they were", text), *(one for one in found[at:] if one not in files)


def excerpt_values(one: Difference) -> tuple[str, str]:
    """Both values, bounded, from shortly before the first differing character."""
    then, now = agreement.diff_excerpt(one, VALUE_WIDTH)
    return then or "not set", now or "not set"


class Rollback(Struct, frozen=True):
    replaces: str
    proven: str
    """When the plan was last proven, in UTC."""
    plan: Plain
    """Digest of the plan when it was proven."""
    image_id: ImageId
    """Empty: run the image that has the name now."""
    recipe: Recipe
    engine: Engine

    @property
    def label(self) -> str:
        return f"the plan that was good on {format_utc(self.proven)} (recipe {self.recipe.name}, plan {self.plan[:12]})"

    @property
    def finding(self) -> FindingReport:
        reason = f"instead of what is configured, {self.label} is in force"
        return FindingReport("rollback", "warn", reason, ROLLBACK_HINT)

    def apply_to(self, settings: Settings) -> Settings:
        kept = {name: getattr(settings.engine, name) for name in AS_CONFIGURED}
        return settings.model_copy(update={"engine": self.engine.model_copy(update=kept)})


ROLLBACK_FILE = StateFile("rollback.json", Rollback)


def make_rollback(entry: Entry, replaces: str, image_id: str) -> Rollback | None:
    """None where this version of sparkd can't read the entry's recipe or settings."""
    fields = {"replaces": replaces, "proven": entry.until, "plan": entry.plan, "image_id": image_id}
    try:
        return ROLLBACK_FILE.convert({**fields, "recipe": entry.recipe, "engine": entry.engine})
    except ValueError:
        return None


def fingerprint_engine(engine: Engine, recipe: Recipe | None) -> str:
    """Of the configuration. `recipe` None: it can't be loaded.

    Defaults are left out: a later version of sparkd, which has more of them, ends no rollback.
    """
    configured = {
        "engine": engine.model_dump(mode="json", exclude_defaults=True, exclude=set(AS_CONFIGURED)),
        "recipe": recipe and recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=DESCRIPTION),
    }
    return sha256(json.dumps(configured, sort_keys=True).encode()).hexdigest()
