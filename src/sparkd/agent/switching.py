"""The agent's part in `sparkd use`: it leaves for another plan, tries a new one, and goes back from one that fails.

Each step is written before it is taken, so that a power cut at any moment leaves a file from which the next process
continues. Workers take no part: they run what their head runs.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from sparkd.actions import Actions
from sparkd.cluster import membership
from sparkd.config import Settings
from sparkd.host import Host
from sparkd.lib.endings import StopRequested
from sparkd.lib.errors import (
    AwaitedError,
    Cause,
    ConfigError,
    ExitCode,
    NotReadyError,
    OutdatedPlanError,
    SparkdError,
)
from sparkd.lib.http_client import HttpError
from sparkd.lib.log import Events
from sparkd.state import launch_history
from sparkd.state.launch_history import End
from sparkd.state.switch import CONFIGURED, FILE, NO_REASON, Event, Stage, Switch, label, step
from sparkd.status.model import Phase, utc_now
from sparkd.status.phases import PHASES
from sparkd.vllm.api import Endpoint

if TYPE_CHECKING:
    from sparkd.agent.deps import Deps
    from sparkd.engine.rank import Running

COUNTERS_SECONDS = 1.0
LOOK_SECONDS = 0.5
QUIET_SECONDS = 3.0
"""Without a request, until a drain is over: a client that has just read 200 from /readyz may still send one."""
BLOCKED_SECONDS = 120.0
"""How long a new plan may be blocked on some node."""
AWAITED_SECONDS = 900.0
"""How long it may await docker or another node, which may boot, until its launch."""
RETURNS_HINT = "repair it and choose it again: sparkd use"


class SwitchRequested(StopRequested):
    """Another plan is chosen, or this one's time is over: the next process launches that."""

    def __init__(self, switch: Switch) -> None:
        self.to = label(switch.chosen)
        super().__init__(f"leaving for {self.to}")
        self.drain_seconds = switch.drain_seconds


def begin_switch(config: Settings, host: Host, actions: Actions, events: Events) -> tuple[Switch | None, object]:
    """What a new process finds, one step further, and the stamp of the file that has it: a later choice differs."""
    seen, before = stamp_switch(host), membership.current_switch(config, host)
    if before is None:
        return None, seen
    after: Switch | None = before
    if before.expired(datetime.now(UTC)):
        after = step(before, Event.EXPIRED)
    after = step(after, Event.STARTED) if after is not None else None
    reason = NO_REASON
    if after is not None and after.stage is Stage.TRYING:
        try:
            membership.chosen_context(after.to, config, host)
        except AwaitedError:
            pass
        except ConfigError as error:
            reason, after = error.reason, step(after, Event.FAILED)
    if after == before:
        return before, seen
    with suppress(OSError):  # `raise_if_unwritten` reports it
        if not actions.exchange_state(FILE, before, after):
            return begin_switch(config, host, actions, events)  # somebody has chosen again meanwhile
        seen = _stamp_written(host, after)
    if before.stage in (Stage.DRAINING, Stage.TRYING) and (after is None or after.stage is Stage.IN_FORCE):
        _report_return(host, actions, events, before, reason)
    return after, seen


def _report_return(host: Host, actions: Actions, events: Events, before: Switch, reason: str) -> None:
    """For the journal, and as the last cause of the next report."""
    text = f"{describe_return(before)}: {reason}"
    events.error("switch.plan.returned", reason=text, hint=RETURNS_HINT)
    end = End(text, int(ExitCode.NOT_READY), RETURNS_HINT, "", utc_now(), Cause.SWITCH_FAILED)
    history = replace(launch_history.read_history(host.files), last_exit=end)
    with suppress(OSError):
        actions.write_state(launch_history.FILE.name, launch_history.FILE.encode(history), launch_history.FILE.mode)


def describe_return(switch: Switch) -> str:
    return f"back to {label(switch.before)}, {label(switch.to)} did not come up"


def stamp_switch(host: Host) -> object:
    """Changes with the file."""
    with suppress(OSError):
        return host.files.stat(FILE.path)
    return None


def _stamp_written(host: Host, written: Switch | None) -> object:
    """Unlike any stamp where somebody has chosen again since."""
    seen = stamp_switch(host)
    return seen if FILE.read(host.files) == written else Switch


def settle_switch(agent: Deps) -> None:
    """Log which plan was chosen in place of the configured one; remove a choice that is over."""
    switch = agent.state.switch = agent.context.switch
    if switch is not None:
        name = {"plan": agent.plan.digest[:12], "recipe": agent.plan.recipe}
        if switch.stage is Stage.TRYING:
            agent.events.warning("switch.plan.tried", **name, tries=switch.tries, back=label(switch.before))
            if switch.tries == 1:  # a person wants it now, whatever was before
                agent.record(lambda launches: launches.reset(agent.plan.counted_as))
        elif switch.chosen is not None:
            event = "rollback.plan.applied" if switch.chosen.proven else "switch.plan.applied"
            agent.events.warning(event, **name, hint=switch.chosen.hint)
        return
    if membership.current_switch(agent.context.configured, agent.host) is not None:
        return  # chosen after this process made its plan: for the next process
    faults = list[str]()
    found = FILE.read(agent.host.files, faults.append)
    if (found is not None or faults) and agent.exchange_state(FILE, found, None):
        log, hint = (agent.events.warning, "sparkd use --list") if faults else (agent.events.info, "")
        reason = faults[0] if faults else "the configuration has changed"
        log("rollback.plan.removed", reason=f"{reason}: {CONFIGURED} holds", hint=hint)


def watch_switch(agent: Deps) -> None:
    """In each wait of the main loop. Raises SwitchRequested; OutdatedPlanError for a node that is blocked;
    NotReadyError where a new plan is not launched for too long.
    """
    state = agent.state
    if (seen := stamp_switch(agent.host)) != state.switch_seen:
        found = FILE.read(agent.host.files, agent.report_unread)
        if found is not None and found.stage in (Stage.DRAINING, Stage.RETURNING):
            raise SwitchRequested(found)  # and again, where that could not be acted on
        if found is not None and state.switch is not None and found.chosen_at == state.switch.chosen_at:
            state.switch = found  # with more or less time
        elif agent.reporter.report.phase is Phase.BLOCKED:
            raise OutdatedPlanError("another plan was chosen", "sparkd restarts with it")
        state.switch_seen = seen
    if state.switch is not None and state.switch.expired(datetime.now(UTC)):
        before = state.switch
        if _advance(agent, Event.EXPIRED):
            raise SwitchRequested(state.switch or replace(before, stage=Stage.RETURNING))
    if is_tried(agent):
        _raise_if_stuck(agent)


def raise_if_unwritten(agent: Deps) -> None:
    """Before a launch, once the disk can be written to: a plan whose try was not written would run without one.

    Raises OutdatedPlanError.
    """
    if agent.state.switch is not None and agent.state.switch.stage in (Stage.DRAINING, Stage.RETURNING):
        raise OutdatedPlanError(f"{FILE.path} could not be written as this process began", "sparkd restarts with it")


def is_tried(agent: Deps) -> bool:
    return agent.state.switch is not None and agent.state.switch.stage is Stage.TRYING


def waiting_limit(switch: Switch | None) -> float:
    """Seconds until a process ends that has not found its place. The next one counts one more try."""
    return AWAITED_SECONDS if switch is not None and switch.stage is Stage.TRYING else math.inf


def _raise_if_stuck(agent: Deps) -> None:
    """Until the launch: each step from there on has a limit of its own."""
    report, now = agent.reporter.report, time.monotonic()
    if not PHASES[report.phase].ahead:
        return
    phases = (report.phase, *(one.living.phase for one in agent.monitor.statuses() if one.living))
    agent.state.stuck_since = (agent.state.stuck_since or now) if Phase.BLOCKED in phases else None
    if now - (agent.state.stuck_since or now) > BLOCKED_SECONDS:
        reason = f"blocked for {BLOCKED_SECONDS:.0f} s: {report.message}"
        raise NotReadyError(reason, "sparkd preflight --dry-run shows what blocks")
    if now - agent.state.began > AWAITED_SECONDS:
        reason = f"not launched within {AWAITED_SECONDS:.0f} s: {report.message}"
        raise NotReadyError(reason, "sparkd status shows what is awaited")


def put_in_force(agent: Deps) -> None:
    """The new plan serves, and its answers make sense."""
    if not _advance(agent, Event.WORKS):
        return
    agent.events.info("switch.plan.applied", plan=agent.plan.digest[:12], recipe=agent.plan.recipe, hint="")
    found = agent.state.switch.findings if agent.state.switch is not None else ()
    others = (one for one in agent.reporter.report.findings if one.id != "use")
    agent.reporter.update(findings=(*found, *others))


def end_try(agent: Deps, end: End) -> End:
    """Where this end is that of the try of a new plan: the end of the switch, which names the plan launched next."""
    if not is_tried(agent) or agent.state.switch is None:
        return end
    before = agent.state.switch
    if end.cause == Cause.PLAN_OUTDATED:
        _advance(agent, Event.LEFT)
        return end
    if end.code == ExitCode.PEER_LOST and end.cause != Cause.PEER_FAILED:
        return end  # a node or its power failed: the next start tries once more
    if not _advance(agent, Event.FAILED):
        return end
    reason, hint = f"{describe_return(before)}: {end.reason}", end.hint or RETURNS_HINT
    return replace(end, reason=reason, hint=hint, cause=Cause.SWITCH_FAILED)


def leave(agent: Deps, running: Running | None, request: StopRequested) -> None:
    """Before a requested stop: a try is not over by it, and requests that run get their time before a switch."""
    if not isinstance(request, SwitchRequested):
        if is_tried(agent):
            _advance(agent, Event.LEFT)
    elif running is not None and agent.reporter.report.phase in (Phase.SERVING, Phase.DEGRADED):
        agent.events.info("switch.drain.started", to=request.to, at_most_seconds=request.drain_seconds)
        agent.set_phase(Phase.STOPPING, f"draining for {request.to}", draining=True)
        with suppress(StopRequested, SparkdError, OSError):  # a stop, a lost node: no request is left to wait for
            _drain(agent, running, request)
        agent.reporter.update(draining=False, message=str(request))


def _drain(agent: Deps, running: Running, request: SwitchRequested) -> None:
    endpoint, deadline = agent.endpoint(running), time.monotonic() + request.drain_seconds
    quiet_until, ended = time.monotonic() + QUIET_SECONDS, running.rank.ended
    while (left := deadline - time.monotonic()) > 0:
        count = agent.loop.beside(_count_requests(endpoint), left, "a look at the requests")
        if ended.is_set():
            return
        if count != 0:
            quiet_until = time.monotonic() + QUIET_SECONDS
        elif time.monotonic() >= quiet_until:
            return
        runs = "requests run" if count is None else f"{count} request{'s' * (count != 1)} run{'s' * (count == 1)}"
        agent.reporter.update(message=f"draining for {request.to}: {runs}, {left:.0f} s left")
        agent.loop.wait_until(ended.is_set, LOOK_SECONDS)


async def _count_requests(endpoint: Endpoint) -> int | None:
    """None where the engine does not say."""
    try:
        counters = await endpoint.counters(COUNTERS_SECONDS)
    except HttpError:
        return None
    return None if counters is None else round(counters.running + counters.waiting)


def _advance(agent: Deps, event: Event) -> bool:
    """Whether the step was taken: not where somebody has chosen again meanwhile, or it can't be written."""
    ours, found = agent.state.switch, FILE.read(agent.host.files, agent.report_unread)
    if ours is None or found is None or found.chosen_at != ours.chosen_at:
        return False
    after = step(found, event)
    if not agent.exchange_state(FILE, found, after):
        return False
    agent.state.switch, agent.state.switch_seen = after, _stamp_written(agent.host, after)
    return True
