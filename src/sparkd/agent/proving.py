"""Keeps a plan that has proven itself in service as known good, and logs how a failed start differs from it."""

from __future__ import annotations

import time

from sparkd.agent.deps import Deps
from sparkd.host import versions
from sparkd.lib.text import sanitize
from sparkd.state import known_good
from sparkd.state.known_good import LOOKED_AT, Entry, Facts, excerpt_values, find_differences, group_files, node_values
from sparkd.status.model import utc_now

MOST_LINES = 12
NAME_LIMIT = 80
HINT = "sparkd diff; to go back to it: sparkd rollback"


class ProvingPeriod:
    """A plan that has served for `supervise.proven_seconds` is known good, and its failures are reset."""

    def __init__(self, agent: Deps) -> None:
        self._agent = agent
        self._proven_at: float | None = time.monotonic() + agent.settings.supervise.proven_seconds
        agent.record(lambda launches: launches.record_serving(agent.boot_id))

    def tick(self) -> None:
        if self._proven_at is not None and time.monotonic() >= self._proven_at:
            self._proven_at = None
            self._agent.state.proven = True
            self._agent.record(lambda launches: launches.reset(self._agent.plan.counted_as))
            _keep_known_good(self._agent)


def _keep_known_good(agent: Deps) -> None:
    now, context = utc_now(), agent.context
    entry = Entry(
        since=now,
        until=now,
        plan=agent.plan.digest,
        agreement=agent.state.agreement.digest,
        image_id=agent.reporter.report.engine.image,
        facts=_start_facts(agent),
        recipe=context.recipe.model_dump(mode="json", by_alias=True),
        engine=context.settings.engine.model_dump(mode="json"),
    )
    known = known_good.add_proven(known_good.read_known_good(agent.host.files, agent.report_unread), entry)
    if agent.write_state(known_good.FILE, known):
        agent.events.info("known_good.plan.saved", plan=entry.plan[:12], recipe=entry.name)


def log_differences(agent: Deps) -> None:
    """For a failed start: what differs from the last known good one."""
    known = known_good.read_known_good(agent.host.files, agent.report_unread)
    if not known:
        return
    found = group_files(find_differences(known[0].facts, _start_facts(agent)))
    for one in found[:MOST_LINES]:
        then, now = excerpt_values(one)
        name, hint = sanitize(one.name, NAME_LIMIT), HINT if one is found[-1] else ""
        agent.events.warning("known_good.value.changed", name=name, then=then, now=now, hint=hint)
    if len(found) > MOST_LINES:
        agent.events.warning("known_good.values.omitted", count=len(found) - MOST_LINES, hint=HINT)
    if not found:
        hint = "configuration unchanged since the last good start; see the engine log above"
        agent.events.warning("known_good.values.unchanged", since=known[0].until, hint=hint)


def _start_facts(agent: Deps) -> Facts:
    fingerprinted = bool(agent.state.agreement.digest)
    values = agent.state.agreement.values if fingerprinted else agent.plan.shared
    return Facts(
        values={**dict(values), **node_values(agent.plan)},
        versions=agent.reporter.report.versions or versions.read_local_versions(agent.host),
        boot=versions.read_boot(agent.host, (name for name, _ in agent.plan.sysctls)),
        unseen={} if fingerprinted else dict.fromkeys(LOOKED_AT, "the start ended before this was read"),
    )
