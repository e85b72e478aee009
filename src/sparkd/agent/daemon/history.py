"""The agent's part in the history: one row for its launch, and a warning where that loads slower than earlier ones.

A disk that is full, slow or broken costs the row, and an event. Each row is written whole, in a thread; only the end of
a run waits for it. A launch whose end was not written is closed by the next process.
"""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.agent.daemon.agreed import Agreed
from sparkd.agent.daemon.context import Agent, Context
from sparkd.agent.engine.rank import Running
from sparkd.agent.status.page_history import Disk
from sparkd.base.host.files import Files
from sparkd.base.host.journal import Line, read_warnings
from sparkd.base.lib.errors import Cause
from sparkd.base.lib.main_loop import Outcome
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import seconds_since, utc_now
from sparkd.base.state.decline import describe_slower_load
from sparkd.base.state.facts import Facts
from sparkd.base.state.history import ENDS, LAUNCHES, Launch, Past, Row, Smoke, last_load
from sparkd.base.state.launch_history import KILLED, End
from sparkd.base.status.figures import ActivityReport
from sparkd.base.status.model import FindingReport
from sparkd.base.status.publisher import REDACT_LIKELY

COLD_START_SECONDS = "cold_start_seconds"
"""Key of a recipe's `expect`: seconds from the start to the first completion, measured by the recipe's source."""
MOST_LOAD_SECONDS = 1 << 20
"""Twelve days: a longer time in a recipe is no estimate."""
WAIT_SECONDS = 0.5
"""Limit for reading the history, and for writing the end."""
MOST_LAUNCHES, MOST_WARNINGS = 20, 8
"""Most launches and most warnings that the page shows."""
ID, HINT = "history", "sudo sparkd history"


class LaunchRow(Struct):
    """The row of this process's one launch. Used by the main thread."""

    agent: Context
    agreed: Agreed
    clock: Callable[[], float] = time.monotonic
    past: Past = Past()
    """The history when this process began."""
    _launch: Launch | None = None
    _served_since: float | None = None
    _unwritten: dict[str, Row] = field(default_factory=dict)
    """The newest version of each row, by id."""
    _writing: bool = False
    _failed: bool = False
    """A failed write was reported."""

    def recall(self, last: End | None) -> None:
        """Read the earlier launches. `last`: the end of the process before, which may have left its launch open.

        That gets the recorded end, or without a recorded code, the end of one that was killed.
        """
        if last is None or last.code is None:
            # The reason that is recorded may be how the machine ended.
            last = End(last.reason if last is not None else KILLED, at=utc_now(), cause=Cause.AGENT_KILLED)
        self._read_past(last)

    def resume(self, rank_id: str) -> None:
        """Continue the launch that the agent before this one has begun."""
        self._read_past(None)
        open_launches = [launch for launch in self.past.launches if launch.id == rank_id and launch.end is None]
        if open_launches:
            self._launch = open_launches[-1]
            age_seconds = seconds_since(self._launch.at, datetime.now(UTC)) or 0.0
            self._served_since = self.clock() - max(0.0, age_seconds - (self._launch.load_seconds or 0.0))

    def _read_past(self, end: End | None) -> None:
        agent = self.agent
        work = partial(agent.actions.close_and_read_past, end, agent.plan.recipe, agent.context.rank)
        try:
            self.past, replaced = agent.loop.beside(work, WAIT_SECONDS, "reading the history", shielded=True)
        except OSError as error:
            agent.events.warning("history.read.failed", reason=str(error), hint=HINT)
            return
        self._report_replaced(replaced)
        totals = self.past.totals
        ends = {name.removeprefix(ENDS): count for name, count in totals.items() if name.startswith(ENDS)}
        agent.reporter.update(launches=totals.get(LAUNCHES, 0), ends=ends)

    def begin(self) -> None:
        agent = self.agent
        self._launch = Launch(
            id=agent.rank_id,
            at=utc_now(),
            rank=agent.context.rank,
            plan=self.agreed.agreement.digest,
            recipe=agent.plan.recipe,
            facts=self.agreed.facts(),
        )
        self._keep_row(self._launch)

    def note_ready(self, running: Running) -> None:
        """Note the end of the load, and warn where it was slower than earlier ones."""
        if self._launch is None:
            return
        agent, self._served_since = self.agent, self.clock()
        self._launch = replace(
            self._with_load(self._launch, running), load_seconds=round(running.loaded_seconds or running.seconds, 1)
        )
        self._keep_row(self._launch)
        if reason := describe_slower_load((*self.past.launches, self._launch)):
            agent.events.warning("history.load.slower", reason=reason, hint=HINT)
            agent.reporter.replace_finding(ID, FindingReport(ID, "warn", reason, HINT))

    def note_activity(self, activity: ActivityReport | None) -> None:
        """Keep the rates in memory: they are written with the end."""
        launch = self._launch
        if launch is None or activity is None or not activity.running or not activity.output_tokens_per_second:
            return
        rate = activity.output_tokens_per_second
        self._launch = replace(
            launch,
            first_tokens_per_second=launch.first_tokens_per_second or rate,
            last_tokens_per_second=rate,
            draft_acceptance=launch.draft_acceptance
            if activity.draft_acceptance is None
            else activity.draft_acceptance,
        )

    def keep_smoke(self, faults: Sequence[str]) -> None:
        agent = self.agent
        texts = tuple(sanitize(agent.redact(fault)) for fault in faults)
        self._keep_row(Smoke(uuid.uuid4().hex, utc_now(), agent.rank_id, agent.plan.recipe, len(texts), texts))

    def end(self, running: Running | None, end: End) -> None:
        """Write the launch's end. Waits at most WAIT_SECONDS."""
        if (launch := self._launch) is None:
            return
        if running is not None and launch.load_seconds is None:
            launch = self._with_load(launch, running)
        served_since = self._served_since
        served_seconds = None if served_since is None else round(self.clock() - served_since, 1)
        self._launch = replace(launch, served_seconds=served_seconds, end=end)
        self._keep_row(self._launch)
        if not self.agent.loop.wait_until(lambda: not self._writing, WAIT_SECONDS, shielded=True):
            self._report_failure(f"it was not written within {WAIT_SECONDS:g} s")

    def _with_load(self, launch: Launch, running: Running) -> Launch:
        progress, phases = running.log.progress, Counter[str]()
        for step, seconds in (*progress.step_seconds, (progress.step, time.monotonic() - progress.step_since)):
            phases[step] += round(seconds, 1)  # type: ignore[assignment]  # typeshed counts in whole numbers
        image, tokens = self.agent.reporter.report.engine.image, progress.kv_cache_tokens
        return replace(launch, image=image, phases=dict(phases), kv_cache_tokens=tokens)

    def _keep_row(self, row: Row) -> None:
        """Have a row written in a thread, one at a time. Of a row that waits only the newest version is written."""
        self._unwritten[row.id] = row
        self._write_next()

    def _write_next(self) -> None:
        if self._unwritten and not self._writing:
            self._writing = True
            row = self._unwritten.pop(next(iter(self._unwritten)))
            self.agent.loop.start(partial(self.agent.actions.write_history_row, row), "history", self._note_written)

    def _note_written(self, outcome: Outcome[bool]) -> None:
        self._writing = False
        try:
            self._report_replaced(outcome.result())
        except OSError as error:
            self._report_failure(str(error))
        finally:
            self._write_next()

    def _report_failure(self, reason: str) -> None:
        """Log that a row could not be written, once a process."""
        if not self._failed:
            self._failed = True
            self.agent.events.warning("history.write.failed", reason=reason, hint=HINT)

    def _report_replaced(self, replaced: bool) -> None:
        if replaced:
            reason = "it was broken, and is history.db.broken now"
            self.agent.events.warning("history.file.replaced", reason=reason, hint="")


def read_disk(files: Files) -> Disk:
    """What the page shows from the disk, without what can't be read. May take long."""
    from sparkd.agent.actions import history

    rows, warnings = tuple[Row, ...](), tuple[Line, ...]()
    with suppress(OSError):
        # A launch's facts are a hundred times as large as the rest.
        empty_facts = {"facts": Facts({}, {}, {}), "phases": {}}
        rows = tuple(
            replace(row, **empty_facts) if isinstance(row, Launch) else row
            for row in history.read(files, MOST_LAUNCHES)
        )
    with suppress(OSError):
        warnings = read_warnings(files, MOST_WARNINGS)
    return Disk(rows, tuple(replace(line, text=REDACT_LIKELY(line.text)) for line in warnings))


def expected_load(agent: Agent) -> tuple[float | None, str]:
    """Expected seconds until the first completion (None where unknown), and the source of that figure."""
    digest = agent.agreed.agreement.digest
    if (last_seconds := last_load(agent.launch_row.past.launches, lambda launch: launch.plan == digest)) is not None:
        return round(last_seconds), "last load"
    recipe_seconds = agent.context.recipe.expect.get(COLD_START_SECONDS)
    if isinstance(recipe_seconds, int | float) and 0 < recipe_seconds <= MOST_LOAD_SECONDS:
        return recipe_seconds, "recipe"
    return None, ""
