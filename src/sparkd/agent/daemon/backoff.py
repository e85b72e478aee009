"""The wait before the next launch of a plan that failed lately."""

from __future__ import annotations

import time

from sparkd.agent.daemon.context import Context
from sparkd.agent.daemon.head_config import check_head
from sparkd.agent.engine.memory_guard.guard import HINT as MEMORY_HINT
from sparkd.base.lib.errors import ExitCode, NeedsPersonError
from sparkd.base.lib.main_loop import never
from sparkd.base.state.launch_history import BACKOFF_SECONDS
from sparkd.base.status.model import Phase


class Backoff:
    """For the main thread."""

    def __init__(self, agent: Context) -> None:
        self._agent = agent
        self._waited = False
        """This process has waited it out."""

    def wait(self) -> bool:
        """Before the next launch of a plan that failed lately. Returns whether it waited.

        Raises NeedsPersonError (exit 17) after too many failures in a row; BlockedError where their count can't be
        read; as `check_head`.
        """
        agent = self._agent
        launches = agent.store.require_launches()
        seconds = launches.wait_seconds(agent.plan.counted_as)
        last = launches.last_failure(agent.plan.counted_as)
        if seconds is None:
            failed, proven = len(BACKOFF_SECONDS), agent.settings.supervise.proven_seconds
            span = f"{proven / 60:.0f} minutes" if proven >= 120 else f"{proven} s"
            end = launches.last.get(agent.plan.counted_as)
            remedy = MEMORY_HINT if end is not None and end.code == ExitCode.MEMORY_GUARD else "fix the cause"
            agent.store.record(lambda now: now.reset(agent.plan.counted_as))
            raise NeedsPersonError(
                f"{failed} launches of this plan in a row ended within {span} of service"
                + (f"; the last: {last}" if last else ""),
                f"{remedy}, then: systemctl start sparkd-{agent.context.role}",
            )
        if self._waited:
            return False
        if seconds:
            agent.phase.enter(Phase.COOLING, f"{seconds} s before the next launch of a plan that failed")
            deadline = time.monotonic() + seconds
            while (left := deadline - time.monotonic()) > 0:
                agent.reporter.update(message=f"{left:.0f} s before the next launch of a plan that failed")
                agent.loop.wait_until(never, min(1.0, left))
                check_head(agent)
        self._waited = True
        return seconds > 0
