"""A blocked node waits in its process: no restart, no repeated lines, hardly any CPU.

The launch is tried again from preflight on: soon after a blocking check judges otherwise or another node's plan
changes, and on a slow schedule, for causes that no check finds, such as an operator's hook.
"""

import re
import time
from collections.abc import Callable
from itertools import chain, repeat
from typing import TypeVar

from msgspec import Struct

from sparkd.agent.daemon.agreed import log_differences
from sparkd.agent.daemon.configuration_stamp import ConfigurationWatch
from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.head_config import check_head
from sparkd.agent.daemon.startup import read_agreement
from sparkd.agent.preflight.gate import HANG_HINT, decision
from sparkd.agent.preflight.runner import IDS, blocking, build_checks, by_policy, examine
from sparkd.base.cluster.membership import check_inputs
from sparkd.base.host import docker
from sparkd.base.lib.errors import BlockedError, OutdatedPlanError, SparkdError
from sparkd.base.lib.main_loop import Outcome, never
from sparkd.base.status.model import Phase

T = TypeVar("T")

LOOK_HANGS = "a look at this node hangs, and no try follows before its end"
_NUMBER = re.compile(r"[0-9]+")
"""A part of a verdict's reason that changes while the verdict does not, such as the available memory."""


def retry_while_blocked(agent: Agent, steps: Callable[[Agent], T]) -> T:
    """Try `steps` until nothing blocks them, and return their result.

    Raises OutdatedPlanError (exit 10) where the configuration changes meanwhile: the next process reads it.
    """
    pauses = chain(agent.pace.retry_seconds, repeat(agent.pace.retry_seconds[-1]))
    blocked, configuration = _BlockedReport(agent), ConfigurationWatch(agent)
    while True:
        peer_plans = _peer_plans(agent)
        try:
            return steps(agent)
        except OutdatedPlanError:
            raise
        except BlockedError as error:
            blocked.report(error)
            watch, reason = _BlockerWatch(agent, error.checks, peer_plans), error.reason
        deadline, has_changed = time.monotonic() + next(pauses), False
        while not has_changed and (time.monotonic() < deadline or watch.hangs):
            has_changed = watch.wait_and_look()
            if watch.hangs:
                blocked.report(BlockedError(f"{LOOK_HANGS}; {reason}", HANG_HINT))
            _check_head(agent)
            configuration.raise_if_outdated()
        agent.phase.forget_failure()


def _check_head(agent: Agent) -> None:
    """Raises OutdatedPlanError where the head has another configuration. A refused one is left to the next try."""
    try:
        check_head(agent)
    except BlockedError as error:
        if isinstance(error, OutdatedPlanError):
            raise


def _peer_plans(agent: Agent) -> object:
    """What the other nodes report of their plans, only to be compared."""
    peers = agent.monitor.check()
    return [peer.living and (peer.living.plan_digest, peer.living.config_digest) for peer in peers]


class _BlockedReport(Struct):
    """Reports what blocks: as an event once, and in the report's message with the time since when."""

    agent: Agent
    _blocker: tuple[str, ...] = ()
    """The checks that block, or another reason."""
    _since: str = ""

    def report(self, error: BlockedError) -> None:
        """Report what blocks now. The other nodes' ends count no more, until the next try tracks them again."""
        agent = self.agent
        agent.monitor.untrack_all()
        agent.loop.endings.forget()  # the end of a node that was tracked until now
        agent.log.bind(epoch="")
        last_report = agent.reporter.report
        # The other nodes compare their plans with that of a node that could launch it.
        agent.reporter.update(epoch="", plan_digest="" if error.checks else last_report.plan_digest)
        # The reasons of checks have sizes; their events are logged as the verdicts change.
        blocker = error.checks or (error.reason,)
        is_new = last_report.phase is not Phase.BLOCKED or self._blocker != blocker
        if is_new:
            self._blocker, self._since = blocker, time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
            cause_fields = {"cause": error.cause.value, "action": error.action.value}
            agent.events.error("agent.run.blocked", **cause_fields, reason=error.reason, hint=error.hint)
        agent.phase.enter(Phase.BLOCKED, f"{error}; since {self._since}", action=error.action, hint=error.hint)
        if is_new:
            log_differences(agent)


class _BlockerWatch:
    """Watches what blocks for a change: the verdicts of checks, or else this node's agreement and the others' plans."""

    def __init__(self, agent: Agent, checks: tuple[str, ...], plans: object) -> None:
        """Look for the first time. `checks`: those that block; `plans`: the other nodes' when the try began."""
        self._agent = agent
        self._pending: Outcome[tuple[object, float]] | None = None
        """A look that hangs."""
        self._checks = checks
        self._plans = plans
        self._cpu_seconds = 0.0
        agreement = agent.agreed.agreement
        # What the blocked try itself has read is the first state, if it came so far.
        self._first_state = agreement if not checks and agreement.digest else self._look()

    @property
    def hangs(self) -> bool:
        """Whether the last look has not ended. No other one is begun before it does."""
        return self._pending is not None

    def wait_and_look(self) -> bool:
        """Wait, and look again. Returns whether the state has changed.

        A look that hangs is no change. Its end is one: what it hung on works again.
        """
        pace, did_hang = self._agent.pace, self.hangs
        self._agent.loop.wait_until(never, max(pace.look_seconds, self._cpu_seconds / pace.look_share))
        state = self._look()
        if did_hang or self.hangs:
            return not self.hangs
        # What is repaired right after the verdict does not differ between two looks: no blocker left is a change too.
        has_changed = state != self._first_state or state == ()
        return has_changed or (not self._checks and _peer_plans(self._agent) != self._plans)

    def _look(self) -> object:
        """The state; None, which is never compared, while the look hangs."""
        loop, earlier = self._agent.loop, self._pending
        look = earlier or loop.start(self._read)
        self._pending = look
        if not loop.wait_until(look.done, 0 if earlier else self._agent.pace.hang_seconds):
            return None
        self._pending = None
        try:
            state, self._cpu_seconds = look.result()
        except BlockingIOError as error:  # no thread for it
            return str(error)
        return state

    def _read(self) -> tuple[object, float]:
        """The current state, which is only compared, and the CPU time that reading it took."""
        agent, began = self._agent, time.thread_time()
        state: object
        try:
            if self._checks:
                state = self._judge_blockers()
            else:  # a request would start a docker that does not run
                state = read_agreement(agent) if docker.running(agent.host) else "docker is not running"
        except (SparkdError, OSError) as error:
            state = str(error)
        return state, time.thread_time() - began

    def _judge_blockers(self) -> tuple[object, ...]:
        """What still blocks: the checks' decisions and reasons, and the hooks, which are not run here."""
        agent = self._agent
        all_checks = build_checks(check_inputs(agent.context), tried=frozenset(agent.admission.tried))
        checks = [check for check in all_checks if check.id in self._checks]
        findings = blocking(by_policy(examine(checks, agent.host), agent.settings.preflight))
        hooks = tuple(name for name in self._checks if name not in IDS)
        decisions = ((decision(finding), _NUMBER.sub("", finding.verdict.reason)) for finding in findings)
        return (*decisions, *hooks)
