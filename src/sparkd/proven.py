"""Proof of a plan: one that has served for long enough is kept as known good, one that fails is held against it."""

from __future__ import annotations

from sparkd import roles
from sparkd.agent import Agent
from sparkd.host import boot_facts, versions
from sparkd.known_good import history, rollback
from sparkd.known_good.facts import LOOKED_AT, Facts, differences, gathered, own, shown
from sparkd.known_good.history import Entry
from sparkd.lib.text import sanitize
from sparkd.report.node_report import utc_now

MOST_LINES = 12
NAME_LIMIT = 80
HINT = "sparkd diff; to go back to it: sparkd rollback"


def keep(agent: Agent) -> None:
    """The plan that serves into the history."""
    now, context = utc_now(), agent.context
    entry = Entry(
        since=now,
        until=now,
        plan=agent.plan.digest,
        agreement=agent.agreement.digest,
        image_id=agent.reporter.report.engine.image,
        facts=_facts(agent),
        recipe=context.recipe.model_dump(mode="json", by_alias=True),
        engine=context.settings.engine.model_dump(mode="json"),
    )
    known = history.proven(history.read(agent.host.files), entry)
    if agent.keep(history.FILE, history.dump(known)):
        agent.events.info("known-good.plan.kept", plan=entry.plan[:12], recipe=entry.name)


def tell_what_differs(agent: Agent) -> None:
    """Into the journal, for a start that failed: what is otherwise than at the last one that was good."""
    known = history.read(agent.host.files)
    if not known:
        return
    last = known[0]
    found = gathered(differences(last.facts, _facts(agent)))
    if not found:
        agent.events.warning(
            "known-good.nothing.differs",
            since=last.until,
            hint="what sparkd compares is the same: look at the lines above",
        )
        return
    for one in found[:MOST_LINES]:
        then, now = shown(one)
        hint = HINT if one is found[-1] else ""
        agent.events.warning("known-good.value.differs", name=_name(one.name), then=then, now=now, hint=hint)
    if len(found) > MOST_LINES:
        agent.events.warning("known-good.more.differ", count=len(found) - MOST_LINES, hint=HINT)


def _name(text: str) -> str:
    return sanitize(text, NAME_LIMIT)


def _facts(agent: Agent) -> Facts:
    surveyed = bool(agent.agreement.digest)
    values = dict(agent.agreement.values if surveyed else agent.plan.shared)
    return Facts(
        values={**values, **own(agent.plan)},
        versions=agent.reporter.report.versions or versions.without_docker(agent.host),
        boot=boot_facts.read(agent.host, (name for name, _ in agent.plan.sysctls)),
        unseen={} if surveyed else dict.fromkeys(LOOKED_AT, "the start did not come so far"),
    )


def settle_rollback(agent: Agent) -> None:
    """Say that a rollback is in force; remove one that is over."""
    in_force = agent.context.rollback
    if in_force is not None:
        agent.events.warning(
            "rollback.plan.chosen", plan=in_force.plan[:12], recipe=in_force.recipe.name, hint=rollback.HINT
        )
        return
    back = rollback.read(agent.host.files)
    if back is not None and back.replaces == roles.fingerprint(agent.context.configured, agent.host):
        return  # chosen since this life took its plan: the next one's
    if agent.forget(rollback.FILE):
        reason = "the configuration has changed" if back else f"{rollback.PATH} can't be read"
        tell = agent.events.info if back else agent.events.warning
        hint = "" if back else "sparkd rollback --list"
        tell("rollback.plan.ended", reason=f"{reason}: what is configured holds", hint=hint)
