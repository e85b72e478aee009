"""The agent's part in the history: one row for its launch, and a warning where that loads slower than those before.

A disk that is full, slow or broken costs an event and the row. A row is written whole, in threads that nothing waits
for but at the end of a run. A launch whose end was not written is closed by the next process.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from sparkd.agent.deps import Deps
from sparkd.engine.rank import Running
from sparkd.lib.errors import Cause
from sparkd.lib.text import sanitize
from sparkd.state.history import ENDS, LAUNCHES, Launch, Row, Smoke, describe_slower_load
from sparkd.state.launch_history import KILLED, End
from sparkd.status.figures import ActivityReport
from sparkd.status.model import FindingReport, utc_now

WAIT_SECONDS = 0.5
ID, HINT = "history", "sparkd history"


def recall(agent: Deps, last: End | None) -> None:
    """Read what this process is compared with. `last`: the end of the process before, which may have left a launch."""
    killed = End(KILLED, at=utc_now(), cause=Cause.AGENT_KILLED)
    end = killed if last is None or last.code is None else last
    work = partial(agent.actions.read_past, end, agent.plan.recipe, agent.context.rank)
    try:
        agent.state.past, replaced = agent.loop.beside(work, WAIT_SECONDS, "reading the history", shielded=True)
    except OSError as error:
        agent.events.warning("history.read.failed", reason=str(error), hint=HINT)
    else:
        _report_replaced(agent, replaced)
        totals = agent.state.past.totals
        ends = {name.removeprefix(ENDS): count for name, count in totals.items() if name.startswith(ENDS)}
        agent.reporter.update(launches=totals.get(LAUNCHES, 0), ends=ends)


def begin_launch(agent: Deps) -> None:
    agent.state.launch = Launch(
        id=agent.rank_id,
        at=utc_now(),
        rank=agent.context.rank,
        plan=agent.state.agreement.digest,
        recipe=agent.plan.recipe,
        facts=agent.start_facts(),
    )
    agent.run_aside("history", partial(_keep_launch, agent))


def note_ready(agent: Deps, running: Running) -> None:
    """The load is over."""
    if (launch := agent.state.launch) is None:
        return
    agent.state.served_since = time.monotonic()
    agent.state.launch = launch = replace(_with_load(agent, running, launch), load_seconds=round(running.seconds, 1))
    agent.run_aside("history", partial(_keep_launch, agent))
    if reason := describe_slower_load((*agent.state.past.launches, launch)):
        agent.events.warning("history.load.slower", reason=reason, hint=HINT)
        found = FindingReport(ID, "warn", reason, HINT)
        agent.reporter.update(findings=(*agent.reporter.report.findings, found))


def note_activity(agent: Deps, seen: ActivityReport | None) -> None:
    """In memory: it is written with the end."""
    launch = agent.state.launch
    if launch is None or seen is None or not seen.running or not seen.output_tokens_per_second:
        return
    rate = seen.output_tokens_per_second
    agent.state.launch = replace(
        launch,
        first_tokens_per_second=launch.first_tokens_per_second or rate,
        last_tokens_per_second=rate,
        draft_acceptance=launch.draft_acceptance if seen.draft_acceptance is None else seen.draft_acceptance,
    )


def keep_smoke(agent: Deps, faults: Sequence[str]) -> None:
    texts = tuple(sanitize(agent.redact(one)) for one in faults)
    row = Smoke(uuid.uuid4().hex, utc_now(), agent.rank_id, agent.plan.recipe, len(texts), texts)
    agent.run_aside("history", partial(_keep, agent, lambda: row))


def end_launch(agent: Deps, running: Running | None, end: End) -> None:
    """Waits at most WAIT_SECONDS."""
    if (launch := agent.state.launch) is None:
        return
    if running is not None and launch.load_seconds is None:
        launch = _with_load(agent, running, launch)
    since = agent.state.served_since
    served_seconds = None if since is None else round(time.monotonic() - since, 1)
    agent.state.launch = replace(launch, served_seconds=served_seconds, end=end)
    try:
        agent.loop.beside(partial(_keep_launch, agent), WAIT_SECONDS, "writing the history", shielded=True)
    except OSError as error:
        _report(agent, error)


def _with_load(agent: Deps, running: Running, launch: Launch) -> Launch:
    progress, phases = running.log.progress, Counter[str]()
    for step, seconds in (*progress.took, (progress.step, time.monotonic() - progress.step_since)):
        phases[step] += round(seconds, 1)  # type: ignore[assignment]  # typeshed counts in whole numbers
    image, tokens = agent.reporter.report.engine.image, progress.kv_cache_tokens
    return replace(launch, image=image, phases=dict(phases), kv_cache_tokens=tokens)


def _keep_launch(agent: Deps) -> None:
    def newest() -> Row:
        assert agent.state.launch is not None
        return agent.state.launch

    _keep(agent, newest)


def _keep(agent: Deps, choose: Callable[[], Row]) -> None:
    """In a thread. One writes at a time, what is newest then: their order does not matter."""
    try:
        with agent.state.writing:
            _report_replaced(agent, agent.actions.keep_row(choose()))
    except OSError as error:
        _report(agent, error)


def _report(agent: Deps, error: OSError) -> None:
    """Once a process."""
    if ID not in agent.state.unwritten:
        agent.state.unwritten.add(ID)
        agent.events.warning("history.write.failed", reason=str(error), hint=HINT)


def _report_replaced(agent: Deps, replaced: bool) -> None:
    if replaced:
        agent.events.warning("history.file.replaced", reason="it was broken, and is history.db.broken now", hint="")
