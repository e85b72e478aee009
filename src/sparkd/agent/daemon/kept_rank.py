"""rank-plan.json: what the next agent needs to take a rank over that serves, whatever is configured by then."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.agent.cluster.monitor import ExpectedPeer
from sparkd.base.cluster.membership import NodeContext
from sparkd.base.config import Settings, units
from sparkd.base.plan.agreement import Agreement
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.recipes.schema import Recipe
from sparkd.base.state.file import VERSION, StateFile
from sparkd.base.state.rank_record import FILE as RANK_FILE
from sparkd.base.state.rank_record import RankStage
from sparkd.base.state.shared_config import Kept
from sparkd.base.state.switch import Switch

if TYPE_CHECKING:
    from sparkd.agent.daemon.context import Agent
    from sparkd.agent.engine.rank import Running


class KeptRank(Struct, frozen=True):
    """Stands beside the rank's record, and is written once the rank serves."""

    rank_id: str
    name: str
    """The container's."""
    image_id: str
    plan: LaunchPlan
    """Without what only a launch needs, by `without_launch`."""
    settings: Settings
    configured: Settings
    recipe: Recipe
    agreement: Agreement
    peers: tuple[ExpectedPeer, ...]
    stamp: str
    """Digest of the configuration's stamp, as this rank's agent had read it."""
    service: str
    """Digest of its unit, by `units.digest_service`; empty where that could not be read."""
    sources: frozenset[str] = frozenset()
    """Sources of its log, as in LoadProgress: without them no line of a serving engine proves why it ended."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """As the engine has them: their files may hold others since."""
    switch: Switch | None = None
    followed: Kept | None = None

    @property
    def context(self) -> NodeContext:
        return NodeContext(self.plan, self.settings, self.recipe, self.configured, self.switch, self.followed)


class _File(StateFile[KeptRank], frozen=True):
    def encode(self, value: KeptRank) -> str:
        """Defaults are left out: a version that does not know their keys can read it."""
        return json.dumps({"schema": VERSION, **msgspec.to_builtins(value, enc_hook=_dump)}) + "\n"


def _dump(model: Settings | Recipe) -> object:
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True)


FILE = _File("rank-plan.json", KeptRank, folder=RANK_FILE.folder)


def without_launch(plan: LaunchPlan) -> LaunchPlan:
    """Without what only a launch needs: the container's mounts, and what the recipe asserts of its image."""
    return replace(plan, asserts=(), container=plan.container.model_copy(update={"volumes": ()}))


def keep_rank(agent: Agent, running: Running) -> None:
    """Keep a rank that serves: from now on it may outlive this agent, unless /run is full, or not writable."""
    context, rank, service = agent.context, running.rank, ""
    with suppress(OSError):
        read = partial(units.digest_service, context.role, context.configured)
        service = agent.loop.beside(read, 5.0, "the unit")
    kept = KeptRank(
        running.record.rank_id,
        rank.name,
        rank.image_id,
        without_launch(context.plan),
        context.settings,
        context.configured,
        context.recipe,
        agent.agreed.agreement,
        agent.monitor.tracked,
        digest_stamp(agent.configured_at),
        service,
        running.log.progress.sources,
        agent.secrets,
        agent.switching.switch,
        context.followed,
    )
    if agent.store.write_private(FILE, kept):
        running.note(stage=RankStage.READY)


def digest_stamp(stamp: object) -> str:
    """Digest of what `stamp_configuration` returns."""
    return sha256(repr(stamp).encode()).hexdigest()
