"""A blocked node waits in its process: no restart, no repeated lines, hardly any CPU.

What may not launch yet is tried again from preflight on: at once when a check that blocks judges otherwise or another
node's plan changes, and on a slow schedule for causes that have no check, such as an operator's hook.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import TypeVar

from sparkd.agent.deps import Deps
from sparkd.agent.shutdown import log_differences
from sparkd.agent.startup import FINGERPRINT_SECONDS, read_agreement
from sparkd.cluster.membership import check_inputs
from sparkd.host import docker
from sparkd.lib.errors import BlockedError, OutdatedPlanError, SparkdError
from sparkd.preflight.gate import LOOK_SECONDS, decision
from sparkd.preflight.registry import build_checks
from sparkd.preflight.runner import blocking, downgraded, examine
from sparkd.state.known_good import ROLLBACK_FILE
from sparkd.status.model import Phase

T = TypeVar("T")

RETRY_SECONDS = (5.0, 15.0, 60.0, 300.0)
"""Waits between two tries without a change. The last one repeats."""
LOOK_AGAIN_SECONDS = 5.0
"""Between two looks at what blocks: a repaired node is to serve within 15 s and the engine's own start."""
LOOK_SHARE = 0.01
"""Of one core, at most, for the looks."""
CONFIGURATION = "etc/sparkd"
FREE = ()
NUMBER = re.compile(r"[0-9]+")


def retry_while_blocked(agent: Deps, steps: Callable[[Deps], T]) -> T:
    """The result of `steps`, which are tried until nothing blocks them.

    Raises OutdatedPlanError (exit 10) where the configuration changes meanwhile: the next process reads it.
    """
    stamp = _stamp_configuration(agent.host.files.root)
    pauses = chain(RETRY_SECONDS, repeat(RETRY_SECONDS[-1]))
    while True:
        try:
            return steps(agent)
        except OutdatedPlanError:
            raise
        except BlockedError as error:
            _report(agent, error)
            _wait_for_change(agent, error, stamp, next(pauses))
        agent.state.failed_in = None


def _report(agent: Deps, error: BlockedError) -> None:
    agent.monitor.untrack_all()
    agent.reporter.update(epoch="")
    # The reasons of checks have sizes, and their events are logged as the verdicts change.
    blocker = error.checks or (error.reason,)
    if agent.state.blocker != blocker:
        agent.state.blocker, agent.state.blocked_since = blocker, time.strftime("%H:%M UTC", time.gmtime())
        agent.events.error("agent.run.blocked", reason=error.reason, hint=error.hint)
        if not agent.state.proven:
            log_differences(agent)
    agent.set_phase(Phase.BLOCKED, f"{error}; since {agent.state.blocked_since}")


def _wait_for_change(agent: Deps, error: BlockedError, stamp: object, seconds: float) -> None:
    """Wait until what blocks has changed, at most for `seconds`. Raises OutdatedPlanError."""
    deadline = time.monotonic() + seconds
    plans, seen, cost_seconds = _peer_plans(agent), None, 0.0
    while (left := deadline - time.monotonic()) > 0:
        began = time.monotonic()
        now = _look(agent, error.checks)
        cost_seconds = time.monotonic() - began
        if now == FREE or seen not in (None, now):
            return
        seen = now if seen is None else seen
        pause = min(left, max(LOOK_AGAIN_SECONDS, cost_seconds / LOOK_SHARE))
        looks_again_at = time.monotonic() + pause
        while (pause := looks_again_at - time.monotonic()) > 0:
            agent.loop.wait(pause)
            if not error.checks and _peer_plans(agent) != plans:
                return
        if _stamp_configuration(agent.host.files.root) != stamp:
            raise OutdatedPlanError("the configuration has changed", "sparkd restarts with it")


def _peer_plans(agent: Deps) -> tuple[object, ...]:
    return tuple(one.living and one.living.plan_digest for one in agent.monitor.check())


def _look(agent: Deps, checks: tuple[str, ...]) -> object:
    """What the verdict rests on, to be compared: decisions of the checks, or what this node would launch.

    FREE where no check blocks any more: what is repaired right after the verdict makes no difference between two looks.
    """
    if not checks and not docker.running(agent.host):
        return "docker is not running"  # a request would start it
    read = partial(_decisions, agent, checks) if checks else partial(read_agreement, agent)
    try:
        return agent.loop.run_until_stop(read, LOOK_SECONDS if checks else FINGERPRINT_SECONDS, "looking at this node")
    except (SparkdError, TimeoutError) as error:
        return str(error)


def _decisions(agent: Deps, checks: tuple[str, ...]) -> tuple[object, ...]:
    built = [one for one in build_checks(check_inputs(agent.context)) if one.id in checks]
    findings = blocking(downgraded(examine(built, agent.host), agent.settings.preflight.downgrade))
    return tuple((decision(one), NUMBER.sub("", one.verdict.reason)) for one in findings)


def _stamp_configuration(root: str | os.PathLike[str]) -> object:
    """Changes with every edit of what a plan is made of."""
    folder = Path(root) / CONFIGURATION
    found = {}
    for path in (*folder.rglob("*"), Path(root) / ROLLBACK_FILE.path.lstrip("/")):
        try:
            stat = path.stat()
        except OSError:
            continue
        found[path] = stat.st_ino, stat.st_size, stat.st_mtime_ns
    return found
