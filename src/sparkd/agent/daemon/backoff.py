"""The wait before a plan that failed lately is launched again, and the end of its launches after too many failures."""

import time

from msgspec import Struct

from sparkd.agent.daemon.context import Context
from sparkd.agent.daemon.head_config import check_head
from sparkd.base.lib.errors import NeedsPersonError
from sparkd.base.lib.main_loop import never
from sparkd.base.state.launch_history import BACKOFF_SECONDS, LaunchHistory
from sparkd.base.status.model import Phase

_NO_REMEDY = ("sparkd starts", "nothing is to be done", "its log", "sudo sparkd logs")
"""Beginnings of hints that suit a first failure, but do not help a person after five."""


class Backoff(Struct):
    """The wait after failures of the plan. Used by the main thread."""

    agent: Context
    _waited: bool = False
    """This process has waited it out."""

    def wait(self) -> bool:
        """Wait before the next launch of a plan that failed lately. Returns whether it waited.

        Raises NeedsPersonError (exit 17) after too many failures in a row, BlockedError where their count can't be
        read, and what `check_head` raises.
        """
        agent, plan = self.agent, self.agent.plan.backoff_key
        launches = agent.store.require_launches()
        wait_seconds = launches.wait_seconds(plan)
        if wait_seconds is None:
            agent.store.record(lambda now: now.reset(plan))
            raise self._make_refusal(launches)
        if self._waited:
            return False
        if wait_seconds:
            agent.phase.enter(Phase.COOLING, f"{wait_seconds} s before the next launch of a plan that failed")
            deadline = time.monotonic() + wait_seconds
            while (left_seconds := deadline - time.monotonic()) > 0:
                agent.reporter.update(message=f"{left_seconds:.0f} s before the next launch of a plan that failed")
                agent.loop.wait_until(never, min(1.0, left_seconds))
                check_head(agent)
        self._waited = True
        return wait_seconds > 0

    def _make_refusal(self, launches: LaunchHistory) -> NeedsPersonError:
        plan, proven_seconds = self.agent.plan.backoff_key, self.agent.settings.supervise.proven_seconds
        span = f"{proven_seconds / 60:.0f} minutes" if proven_seconds >= 120 else f"{proven_seconds} s"
        reason = f"{len(BACKOFF_SECONDS)} launches of this plan in a row ended within {span} of service"
        if last_reason := launches.last_failure(plan):
            reason += f"; the last: {last_reason}"
        end = launches.last.get(plan)
        remedy = end.hint if end is not None and not end.hint.startswith(_NO_REMEDY) else ""
        remedy = remedy or "fix the cause (sudo sparkd logs --since 1d --level warning)"
        return NeedsPersonError(reason, f"{remedy}, then: sudo systemctl start sparkd-{self.agent.context.role}")
