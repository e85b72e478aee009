"""A blocked node waits in its process: no restart, no repeated lines, hardly any CPU.

The launch is tried again from preflight on: soon after a blocking check judges otherwise or another node's plan
changes, and on a slow schedule, for causes that no check finds, such as an operator's hook.
"""

import os
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import TypeVar

from sparkd.agent.daemon.agreed import log_differences
from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.head_config import check_head
from sparkd.agent.daemon.startup import read_agreement
from sparkd.agent.preflight.gate import HANG_HINT, decision
from sparkd.agent.preflight.runner import IDS, blocking, build_checks, downgrade, examine
from sparkd.base.cluster.membership import check_inputs
from sparkd.base.host import docker
from sparkd.base.lib.errors import BlockedError, OutdatedPlanError, SparkdError
from sparkd.base.lib.main_loop import Outcome, never
from sparkd.base.status.model import Phase

T = TypeVar("T")

CONFIGURATION = "etc/sparkd"
FREE = ()
"""State in which no check blocks any more."""
HANGS = "a look at this node hangs"
_NUMBER = re.compile(r"[0-9]+")


def retry_while_blocked(agent: Agent, steps: Callable[[Agent], T]) -> T:
    """Try `steps` until nothing blocks them, and return their result.

    Raises OutdatedPlanError (exit 10) where the configuration changes meanwhile: the next process reads it.
    """
    pauses = chain(agent.pace.retry_seconds, repeat(agent.pace.retry_seconds[-1]))
    blocked = _BlockedReport(agent)
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
            has_changed = watch.has_changed()
            if watch.hangs:
                blocked.report(BlockedError(f"{HANGS}, and no try follows before its end; {reason}", HANG_HINT))
            _check_head(agent)
            blocked.raise_if_outdated()
        agent.phase.forget_failure()


def stamp_configuration(root: str | os.PathLike[str]) -> object:
    """A stamp that changes with every edit below /etc/sparkd. Folders that can't be listed are left out."""
    walked = os.walk(Path(root, CONFIGURATION))
    return _stamp(Path(folder, name) for folder, folders, names in walked for name in (*folders, *names))


def _stamp(paths: Iterable[Path]) -> object:
    stamps = {}
    for path in sorted(paths):
        with suppress(OSError):
            status = path.stat()
            stamps[path] = status.st_ino, status.st_size, status.st_mtime_ns
    return stamps


def _check_head(agent: Agent) -> None:
    """Raises OutdatedPlanError where the head has another configuration. A refused one is left to the next try."""
    try:
        check_head(agent)
    except OutdatedPlanError:
        raise
    except BlockedError:
        pass


def _peer_plans(agent: Agent) -> object:
    peers = agent.monitor.check()
    return [peer.living and (peer.living.plan_digest, peer.living.config_digest) for peer in peers]


class _BlockedReport:
    """Reports what blocks, and finds changes of the files from which this process has its plan."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._blocker: tuple[str, ...] = ()
        """The checks that block, or another reason."""
        self._since = ""
        self._files_stamp = self._stamp_named_files(None)

    def report(self, error: BlockedError) -> None:
        agent = self._agent
        agent.monitor.untrack_all()
        agent.loop.endings.forget()  # the end of a node that was tracked until now
        agent.log.bind(epoch="")
        last_report = agent.reporter.report
        # The other nodes compare their plans with that of a node that could launch it.
        agent.reporter.update(epoch="", plan_digest="" if error.checks else last_report.plan_digest)
        # The reasons of checks have sizes; their events are logged as the verdicts change.
        blocker = error.checks or (error.reason,)
        if last_report.phase is not Phase.BLOCKED or self._blocker != blocker:
            self._blocker, self._since = blocker, time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
            cause_fields = {"cause": error.cause.value, "action": error.action.value}
            agent.events.error("agent.run.blocked", **cause_fields, reason=error.reason, hint=error.hint)
            agent.phase.enter(Phase.BLOCKED, f"{error}; since {self._since}", action=error.action)
            log_differences(agent)
        agent.phase.enter(Phase.BLOCKED, f"{error}; since {self._since}", action=error.action)

    def raise_if_outdated(self) -> None:
        """Raises OutdatedPlanError where the configuration, or a file that it names, is another one now."""
        stamp = self._stamp_named_files(self._files_stamp)
        if self._files_stamp is None:  # the first look has hung
            self._files_stamp = stamp
        if stamp != self._files_stamp or self._stamp_configuration() != self._agent.configured_at:
            raise OutdatedPlanError("the configuration has changed", "sparkd restarts with it")

    def _stamp_configuration(self) -> object:
        agent = self._agent
        look = partial(stamp_configuration, agent.host.files.root)
        return agent.look(look, agent.pace.look_seconds, "looking at the configuration", agent.configured_at)

    def _stamp_named_files(self, previous: object) -> object:
        """The stamp of files that the configuration names, and a process reads once. `previous` where they hang."""
        agent, settings = self._agent, self._agent.context.configured
        paths = [*(secret.file for secret in agent.plan.secrets), settings.cluster.key_file, settings.engine.recipe]
        look = partial(_stamp, [Path(path) for path in paths if path.startswith("/")])
        return agent.look(look, agent.pace.look_seconds, "looking at the configuration's files", previous)


class _BlockerWatch:
    """Looks whether what blocks has changed: the verdicts of checks, or else the plans of all nodes."""

    def __init__(self, agent: Agent, checks: tuple[str, ...], plans: object) -> None:
        """`checks`: those that block. `plans`: those of the other nodes when the try began."""
        self.hangs = False
        self._agent = agent
        self._hung: Outcome[tuple[object, float]] | None = None
        """A look that has not ended."""
        self._checks = checks
        self._plans = plans
        self._cpu_seconds = 0.0
        agreement = agent.agreed.agreement
        self._previous_state = agreement if not checks and agreement.digest else self._look()

    def has_changed(self) -> bool:
        """Wait and look again. Returns whether the state has changed: false while a look hangs, true once that ends."""
        pace = self._agent.pace
        self._agent.loop.wait_until(never, max(pace.look_seconds, self._cpu_seconds / pace.look_share))
        was_hanging, state = self._hung is not None, self._look()
        if was_hanging or self.hangs:
            return not self.hangs
        # FREE counts as a change: what is repaired right after the verdict does not differ between two looks.
        return (
            state != self._previous_state
            or state == FREE
            or (not self._checks and _peer_plans(self._agent) != self._plans)
        )

    def _look(self) -> object:
        loop = self._agent.loop
        outcome = self._hung or loop.start(self._read)
        self.hangs = not loop.wait_until(outcome.done, 0 if self._hung else self._agent.pace.hang_seconds)
        self._hung = outcome if self.hangs else None
        if self.hangs:
            return HANGS
        try:
            state, self._cpu_seconds = outcome.result()
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
        agent = self._agent
        checks = [check for check in build_checks(check_inputs(agent.context)) if check.id in self._checks]
        findings = blocking(downgrade(examine(checks, agent.host), agent.settings.preflight.downgrade))
        hooks = tuple(name for name in self._checks if name not in IDS)
        decisions = ((decision(finding), _NUMBER.sub("", finding.verdict.reason)) for finding in findings)
        return (*decisions, *hooks)
