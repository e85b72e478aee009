"""What an agent keeps of its rank in /run, once that serves: the next agent takes it over by this alone."""

import json
from collections.abc import Mapping
from contextlib import suppress

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.agent.cluster.monitor import ExpectedPeer
from sparkd.agent.daemon.configuration_stamp import digest_stamp
from sparkd.agent.daemon.context import Agent
from sparkd.agent.engine.rank import Running
from sparkd.base.cluster.membership import NodeContext
from sparkd.base.config import Settings, units
from sparkd.base.plan.agreement import Agreement
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.recipes.schema import Recipe
from sparkd.base.state.file import VERSION, StateFile
from sparkd.base.state.rank_record import RANK_FILE, RankStage
from sparkd.base.state.shared_config import Kept
from sparkd.base.state.switch import Switch


class KeptRank(Struct, frozen=True):
    """What the next agent needs of the rank, whatever is configured then."""

    rank_id: str
    name: str
    """Name of the container."""
    image_id: str
    plan: LaunchPlan
    """The plan that `without_mounts_and_asserts` returns."""
    settings: Settings
    """The settings in force: the configured ones, with the engine of the chosen plan or the head's values, if any."""
    configured: Settings
    """The settings as configured on this node."""
    recipe: Recipe
    agreement: Agreement
    peers: tuple[ExpectedPeer, ...]
    stamp: str
    """Digest of the configuration's stamp that the rank's agent had read."""
    service: str
    """Digest of the agent's unit, by `units.digest_service`; empty where that could not be read."""
    sources: frozenset[str] = frozenset()
    """Sources of the rank's log, as in LoadProgress: without them no line of a serving engine proves why it ended."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """The secrets that the engine has: their files may have changed since."""
    switch: Switch | None = None
    followed: Kept | None = None

    @property
    def context(self) -> NodeContext:
        return NodeContext(self.plan, self.settings, self.recipe, self.configured, self.switch, self.followed)


class _KeptRankFile(StateFile[KeptRank], frozen=True):
    def encode(self, value: KeptRank) -> str:
        """Encode without defaults, so that a version that does not know their keys can read it."""
        return json.dumps({"schema": VERSION, **msgspec.to_builtins(value, enc_hook=_dump_model)}) + "\n"


def _dump_model(model: Settings | Recipe) -> object:
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True)


FILE = _KeptRankFile(KeptRank, "rank-plan.json", folder=RANK_FILE.folder)


def without_mounts_and_asserts(plan: LaunchPlan) -> LaunchPlan:
    """The plan without what only a launch needs."""
    return replace(plan, asserts=(), container=plan.container.model_copy(update={"volumes": ()}))


def keep_rank(agent: Agent, running: Running) -> None:
    """Keep a rank that serves, once: from then on it may outlive this agent.

    Where /run is full, the caller calls again.
    """
    if running.record.stage is not RankStage.STARTING:
        return
    context, rank = agent.context, running.rank

    def read_service() -> str:
        # An upgrade during the load may have brought another version's template.
        with suppress(LookupError, ValueError):
            return units.digest_service(context.role, context.configured)
        return ""

    kept_rank = KeptRank(
        rank_id=running.record.rank_id,
        name=rank.name,
        image_id=rank.image_id,
        plan=without_mounts_and_asserts(context.plan),
        settings=context.settings,
        configured=context.configured,
        recipe=context.recipe,
        agreement=agent.agreed.agreement,
        peers=agent.monitor.tracked,
        stamp=digest_stamp(agent),
        service=agent.look(read_service, 5.0, "the unit", ""),
        sources=running.log.progress.sources,
        secrets=agent.secrets,
        switch=agent.switching.switch,
        followed=context.followed,
    )
    if agent.store.write_private(FILE, kept_rank):
        running.note_if_written(stage=RankStage.READY)
