"""Preflight as a step of a start: check, fix what may be fixed, check again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from sparkd.agent.daemon import hooks
from sparkd.agent.daemon.context import Context
from sparkd.agent.preflight.check import Finding
from sparkd.agent.preflight.gate import THREADS_HINT, Gate, GateIO
from sparkd.agent.preflight.hooks import list_hooks
from sparkd.agent.preflight.registry import build_checks
from sparkd.base.cluster.membership import check_inputs
from sparkd.base.host import docker
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.main_loop import never
from sparkd.base.status.model import FindingReport, Phase

LOOK_SECONDS = 10.0
"""At dockerd's process and the list of hooks: milliseconds, on a disk that does not hang."""

T = TypeVar("T")


class Admission:
    """For the main thread."""

    def __init__(self, agent: Context) -> None:
        self._agent = agent
        self._reported: dict[str, object] = {}
        """Verdicts and applied fixes, as last logged."""
        self._given_up: set[str] = set()
        """What preflight has awaited without effect, and goes without."""

    def check(self) -> bool:
        """Returns whether docker was running. Raises BlockedError (10) or NeedsPersonError (17)."""
        agent = self._agent
        docker_was_up = self._look(partial(docker.running, agent.host), "looking at dockerd")
        if agent.reporter.report.phase is not Phase.BLOCKED:  # which stays until nothing blocks: a try is no news
            agent.phase.enter(Phase.PREFLIGHT)
        io = GateIO(agent.actions.apply, self._run_hooks, self._wait, agent.loop, agent.events, self._show)
        Gate(
            partial(build_checks, check_inputs(agent.context)),
            agent.host,
            agent.settings.preflight,
            io,
            reported=self._reported,
            given_up=self._given_up,
        ).admit()
        return docker_was_up

    def _look(self, look: Callable[[], T], what: str) -> T:
        try:
            return self._agent.loop.beside(look, LOOK_SECONDS, what)
        except BlockingIOError as error:
            raise BlockedError(f"{what}: {error}", THREADS_HINT) from None
        except TimeoutError as error:
            raise BlockedError(str(error), "look at dmesg") from None

    def _run_hooks(self) -> tuple[Finding, ...]:
        agent, context = self._agent, self._agent.context
        found = self._look(partial(list_hooks, agent.host.files), "looking at the hooks")
        return hooks.run_hooks(found, agent.loop.wait, hooks.hook_environment(context.role, context.rank))

    def _wait(self, seconds: float, message: str) -> None:
        self._agent.reporter.update(message=message)
        self._agent.loop.wait_until(never, seconds)

    def _show(self, findings: tuple[Finding, ...]) -> None:
        switch = self._agent.context.switch
        chosen = switch.findings if switch is not None else ()
        reports = (FindingReport(f.id, f.verdict.level.value, f.verdict.reason, f.verdict.hint) for f in findings)
        self._agent.reporter.update(findings=(*chosen, *reports))
