"""A blocked node waits in its process: no restart, no repeated lines, hardly any CPU.

What may not launch yet is tried again from preflight on: soon after a check that blocks judges otherwise or another
node's plan changes, and on a slow schedule for causes that have no check, such as an operator's hook.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import TypeVar

from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.head_config import check_head
from sparkd.agent.daemon.shutdown import log_differences
from sparkd.agent.daemon.startup import read_agreement
from sparkd.agent.preflight.gate import LOOK_SECONDS as HANG_SECONDS
from sparkd.agent.preflight.gate import decision
from sparkd.agent.preflight.runner import IDS, blocking, build_checks, downgraded, examine
from sparkd.base.cluster.membership import check_inputs
from sparkd.base.host import docker
from sparkd.base.lib.errors import BlockedError, OutdatedPlanError, SparkdError
from sparkd.base.lib.main_loop import Outcome, never
from sparkd.base.status.model import Phase

T = TypeVar("T")

RETRY_SECONDS = (5.0, 15.0, 60.0, 300.0)
"""Waits between two tries without a change. The last one repeats."""
LOOK_SECONDS = 5.0
"""Between two looks at what blocks, and so between two tries: a repaired node is to serve within 15 s and the engine's
own start.
"""
LOOK_SHARE = 0.01
"""Of one core, at most, for the looks."""
CONFIGURATION = "etc/sparkd"
FREE = ()
"""Seen where no check blocks any more."""
HANGS = "a look at this node hangs"
_NUMBER = re.compile(r"[0-9]+")


def retry_while_blocked(agent: Agent, steps: Callable[[Agent], T]) -> T:
    """The result of `steps`, which are tried until nothing blocks them.

    Raises OutdatedPlanError (exit 10) where the configuration changes meanwhile: the next process reads it.
    """
    pauses = chain(RETRY_SECONDS, repeat(RETRY_SECONDS[-1]))
    blocked = _Blocked(agent)
    while True:
        plans = _peer_plans(agent)
        try:
            return steps(agent)
        except OutdatedPlanError:
            raise
        except BlockedError as error:
            blocked.report(error)
            wait = _Wait(agent, error.checks, plans)
        deadline, changed = time.monotonic() + next(pauses), False
        while not changed and (time.monotonic() < deadline or wait.hangs):
            changed = wait.has_changed()
            _follow(agent)
            blocked.raise_if_outdated()
        agent.phase.forget_failure()


def stamp_configuration(root: str | os.PathLike[str]) -> object:
    """Changes with every edit below /etc/sparkd."""
    return _stamp(Path(root, CONFIGURATION).rglob("*"))


def _stamp(paths: Iterable[Path]) -> object:
    found = {}
    for path in sorted(paths):
        with suppress(OSError):
            stat = path.stat()
            found[path] = stat.st_ino, stat.st_size, stat.st_mtime_ns
    return found


def _follow(agent: Agent) -> None:
    """Raises OutdatedPlanError where the head has another configuration. One that is refused is for the next try."""
    try:
        check_head(agent)
    except OutdatedPlanError:
        raise
    except BlockedError:
        pass


def _peer_plans(agent: Agent) -> object:
    peers = agent.monitor.check()
    return [one.living and (one.living.plan_digest, one.living.config_digest) for one in peers]


class _Blocked:
    """What is blocked, as logged, and by which files this process has its plan."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._blocker: tuple[str, ...] = ()
        """The checks that block, or another reason."""
        self._since = ""
        self._named = self._stamp_named_files(None)

    def report(self, error: BlockedError) -> None:
        agent = self._agent
        agent.monitor.untrack_all()
        agent.loop.forget()  # the end of a node that was tracked until now
        agent.log.bind(epoch="")
        before = agent.reporter.report
        # The other nodes compare their plans with that of a node that could launch it.
        agent.reporter.update(epoch="", plan_digest="" if error.checks else before.plan_digest)
        # The reasons of checks have sizes; their events are logged as the verdicts change.
        blocker = error.checks or (error.reason,)
        if before.phase is not Phase.BLOCKED or self._blocker != blocker:
            self._blocker, self._since = blocker, time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
            named = {"cause": error.cause.value, "action": error.action.value}
            agent.events.error("agent.run.blocked", **named, reason=error.reason, hint=error.hint)
            agent.phase.enter(Phase.BLOCKED, f"{error}; since {self._since}", action=error.action)
            log_differences(agent)
        agent.phase.enter(Phase.BLOCKED, f"{error}; since {self._since}", action=error.action)

    def raise_if_outdated(self) -> None:
        """Raises OutdatedPlanError where the configuration, or a file that it names, is another one now."""
        named = self._stamp_named_files(self._named)
        if named != self._named or self._stamp_configuration() != self._agent.configured_at:
            raise OutdatedPlanError("the configuration has changed", "sparkd restarts with it")

    def _stamp_configuration(self) -> object:
        look = partial(stamp_configuration, self._agent.host.files.root)
        return self._look(look, self._agent.configured_at, "looking at the configuration")

    def _stamp_named_files(self, before: object) -> object:
        """Files that the configuration names: a process reads them once."""
        agent, settings = self._agent, self._agent.context.configured
        paths = [*(one.file for one in agent.plan.secrets), settings.cluster.key_file, settings.engine.recipe]
        look = partial(_stamp, [Path(one) for one in paths if one.startswith("/")])
        return self._look(look, before, "looking at the configuration's files")

    def _look(self, look: Callable[[], object], before: object, what: str) -> object:
        """`before` where the files hang."""
        try:
            return self._agent.loop.beside(look, LOOK_SECONDS, what)
        except (TimeoutError, BlockingIOError):
            return before


class _Wait:
    """Looks at what blocks: the checks, or else the plans of this node and of the others."""

    def __init__(self, agent: Agent, checks: tuple[str, ...], plans: object) -> None:
        """`plans`: of the others, as the try began."""
        self.hangs = False
        self._agent = agent
        self._hung: Outcome[tuple[object, float]] | None = None
        """A look that has not come back."""
        self._checks = checks
        self._plans = plans
        self._cpu_seconds = 0.0
        agreement = agent.agreed.agreement
        self._seen = agreement if not checks and agreement.digest else self._look()

    def has_changed(self) -> bool:
        """Wait, and look again. False while a look hangs."""
        self._agent.loop.wait_until(never, max(LOOK_SECONDS, self._cpu_seconds / LOOK_SHARE))
        seen = self._look()
        if self.hangs:
            return False
        # What is repaired right after the verdict makes no difference between two looks.
        return seen != self._seen or seen == FREE or (not self._checks and _peer_plans(self._agent) != self._plans)

    def _look(self) -> object:
        loop = self._agent.loop
        look = self._hung or loop.start(self._read)
        self.hangs = not loop.wait_until(look.done, 0 if self._hung else HANG_SECONDS)
        self._hung = look if self.hangs else None
        if self.hangs:
            return HANGS
        try:
            seen, self._cpu_seconds = look.result()
        except BlockingIOError as error:  # no thread for it
            return str(error)
        return seen

    def _read(self) -> tuple[object, float]:
        """What is there now, to be compared, and the CPU time that it took."""
        agent, began = self._agent, time.thread_time()
        seen: object
        try:
            if self._checks:
                seen = self._decisions()
            else:  # a request would start a docker that does not run
                seen = read_agreement(agent) if docker.running(agent.host) else "docker is not running"
        except (SparkdError, OSError) as error:
            seen = str(error)
        return seen, time.thread_time() - began

    def _decisions(self) -> tuple[object, ...]:
        agent = self._agent
        built = [one for one in build_checks(check_inputs(agent.context)) if one.id in self._checks]
        findings = blocking(downgraded(examine(built, agent.host), agent.settings.preflight.downgrade))
        hooks = tuple(one for one in self._checks if one not in IDS)
        return (*((decision(one), _NUMBER.sub("", one.verdict.reason)) for one in findings), *hooks)
