"""switch.json: the plan that replaces the configured one, and the way to it and back.

`sparkd use` makes the running agent drain; the next process tries the new plan. Once that has served its smoke test it
is in force, else the plan before it is again. `sparkd rollback` puts a known good plan in force without a try. The file
has a fingerprint of the configured recipe and of the section `engine`. Once either changes, also from a recipe that
can't be loaded to the same one that can, the switch is over and what is configured holds.
"""

from __future__ import annotations

import json
from datetime import datetime
from enum import Enum, StrEnum
from hashlib import sha256
from typing import Annotated, assert_never

from msgspec import Meta, Struct
from msgspec.structs import replace

from sparkd.base.config import Engine, Settings
from sparkd.base.lib.times import format_utc, seconds_since, utc_now
from sparkd.base.recipes.schema import Recipe
from sparkd.base.state.file import StateFile
from sparkd.base.state.known_good import Entry, ImageId, Plain
from sparkd.base.status.model import FindingReport

AS_CONFIGURED = ("load_readahead_kib", "stop_grace_seconds")
"""Settings of `engine` that a chosen plan leaves as configured: the unit is made for them, and no plan has them."""
DESCRIPTION = {"name", "description", "source", "extends", "expect"}
"""Fields of a recipe that do not change the engine."""
TRIES = 2
"""Starts of a new plan that may end without a verdict on it: the first may be ended by a power cut."""
AWAITED_SECONDS = 900
"""How long a new plan may take until its launch, while it awaits docker or another node that may boot."""
LATE = f"not launched within {AWAITED_SECONDS} s"
"""How the reason begins for which a plan is left that docker or another node has kept from its launch."""
MOST_BACK = 8
"""Plans to which a switch can go back."""
CONFIGURED = "what is configured"
NO_REASON = "its starts ended without a reason"


class Chosen(Struct, frozen=True):
    """A plan in place of the configured one: chosen by `sparkd use`, or known good."""

    recipe: Recipe
    engine: Engine
    image_id: ImageId = ""
    """The image to run; empty: the one that has the name now."""
    plan: Plain = ""
    """Digest of the plan when it was proven."""
    proven: str = ""
    """When it was last proven, in UTC; empty for one that `sparkd use` chose."""
    until: str = ""
    """When it ends, in UTC; empty: never by itself."""

    @property
    def label(self) -> str:
        if not self.proven:
            image = f" with image {self.engine.image}" if self.engine.image else ""
            return f"recipe {self.recipe.name}{image}" + (f" until {format_utc(self.until)}" if self.until else "")
        return f"the plan that was good on {format_utc(self.proven)} (recipe {self.recipe.name}, plan {self.plan[:12]})"

    @property
    def hint(self) -> str:
        if self.proven:
            return "change the recipe or the section engine, or: sudo sparkd rollback --end"
        return "back to what is configured: sudo sparkd use --end"

    def is_same_plan(self, other: Chosen | None) -> bool:
        """Whether at most their ends differ."""
        return other is not None and replace(self, until=other.until) == other

    def apply_to(self, settings: Settings) -> Settings:
        kept = {name: getattr(settings.engine, name) for name in AS_CONFIGURED}
        return settings.model_copy(update={"engine": self.engine.model_copy(update=kept)})


class Stage(StrEnum):
    DRAINING = "draining"
    """The agent that runs is to end; its requests get their time."""
    TRYING = "trying"
    IN_FORCE = "in-force"
    RETURNING = "going-back"
    """The same as DRAINING, on the way back."""


class Event(Enum):
    STARTED = "a process has started"
    WORKS = "the plan serves, and its answers make sense"
    FAILED = "the plan did not come up, or its answers make no sense"
    LEFT = "the process ends, and nothing was wrong with the plan"
    EXPIRED = "the plan's time is over"


class Switch(Struct, frozen=True):
    replaces: str
    """Fingerprint of what is configured."""
    stage: Stage
    to: Chosen | None
    """The plan to which is switched; None: what is configured."""
    back: Annotated[tuple[Chosen, ...], Meta(max_length=MOST_BACK)] = ()
    """The plans before, the last one first; below them is what is configured. All but the lowest one have an end."""
    tries: int = 0
    """Starts of the new plan without a verdict on it."""
    drain_seconds: int = 0
    chosen_at: str = ""
    """UTC; differs between two switches."""

    @property
    def chosen(self) -> Chosen | None:
        """The plan that the next process launches; None: what is configured."""
        return self.before if self.stage is Stage.RETURNING else self.to

    @property
    def before(self) -> Chosen | None:
        """The plan to go back to; None: what is configured."""
        return self.back[0] if self.back else None

    @property
    def plans(self) -> tuple[Chosen, ...]:
        """Plans to which a switch from here may go back: the plan in force, if it is a chosen one, and earlier ones."""
        return (self.to, *self.back) if self.stage is Stage.IN_FORCE and self.to is not None else self.back

    @property
    def findings(self) -> tuple[FindingReport, ...]:
        """Findings for the report: at most one."""
        if self.stage is Stage.TRYING:
            reason = f"{label(self.to)} is being tried; if it fails, sparkd goes back to {label(self.before)}"
            return (FindingReport("use", "warn", reason, ""),)
        if self.chosen is None:
            return ()
        reason = f"instead of {CONFIGURED}, {self.chosen.label} is in force"
        return (FindingReport("rollback" if self.chosen.proven else "use", "warn", reason, self.chosen.hint),)

    def expired(self, now: datetime) -> bool:
        """Whether the time of the plan that serves, or is tried, is over. It is also where `until` is no time."""
        if self.to is None or not self.to.until or self.stage not in (Stage.TRYING, Stage.IN_FORCE):
            return False
        return seconds_since(self.to.until, now) != 0.0  # 0 for all that is still to come


def label(chosen: Chosen | None) -> str:
    return CONFIGURED if chosen is None else chosen.label


def step(switch: Switch, event: Event) -> Switch | None:
    """The switch after this event; None: nothing replaces the configuration any more. Pure."""
    match switch.stage, event:
        case Stage.DRAINING, Event.STARTED:
            return replace(switch, stage=Stage.TRYING, tries=1)
        case Stage.TRYING, Event.STARTED:
            return replace(switch, tries=switch.tries + 1) if switch.tries < TRIES else _go_back(switch)
        case Stage.TRYING, Event.WORKS:
            return _settle(switch, switch.to, switch.back)
        case Stage.TRYING, Event.FAILED | Event.EXPIRED:
            return _go_back(switch)
        case Stage.TRYING, Event.LEFT:
            return replace(switch, tries=max(0, switch.tries - 1))
        case Stage.IN_FORCE, Event.EXPIRED:
            return replace(switch, stage=Stage.RETURNING)
        case Stage.RETURNING, Event.STARTED:
            return _go_back(switch)
        case Stage.DRAINING | Stage.TRYING | Stage.IN_FORCE | Stage.RETURNING, _:
            return switch
        case _:
            assert_never(switch.stage)


def _go_back(switch: Switch) -> Switch | None:
    return _settle(switch, switch.before, switch.back[1:])


def _settle(switch: Switch, chosen: Chosen | None, back: tuple[Chosen, ...]) -> Switch | None:
    """Put `chosen` in force; None: what is configured. Only a plan that ends by itself keeps a way back."""
    if chosen is None:
        return None
    back = back if chosen.until else ()
    return Switch(switch.replaces, Stage.IN_FORCE, chosen, back, 0, switch.drain_seconds, switch.chosen_at)


NOTICE = "/run/sparkd/switch.changed"
FILE = StateFile(Switch, "switch.json", notice=NOTICE)


def make_rollback(entry: Entry, replaces: str, image_id: str) -> Switch | None:
    """The switch to a known good plan; None where this version of sparkd can't read its recipe or settings."""
    plan = {"image_id": image_id, "plan": entry.plan_digest, "proven": entry.until}
    to = {**plan, "recipe": entry.recipe, "engine": entry.engine}
    try:
        return FILE.convert({"replaces": replaces, "stage": Stage.IN_FORCE, "to": to, "chosen_at": utc_now()})
    except ValueError:
        return None


def fingerprint_engine(engine: Engine, recipe: Recipe | None) -> str:
    """Fingerprint of what is configured. `recipe`: None where it can't be loaded.

    Defaults are left out: a later version of sparkd, which has more of them, ends no choice.
    """
    values = engine.model_dump(mode="json", exclude_defaults=True, exclude=set(AS_CONFIGURED))
    configured = {
        "engine": values,
        "recipe": recipe and recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=DESCRIPTION),
    }
    return sha256(json.dumps(configured, sort_keys=True).encode()).hexdigest()
