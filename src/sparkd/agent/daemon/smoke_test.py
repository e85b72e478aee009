"""Whether a loaded engine answers with sense: a plan that is tried is given up for it, any other is reported."""

from __future__ import annotations

import math
from collections.abc import Callable

from sparkd.agent.daemon.context import Agent
from sparkd.agent.engine.rank import Running
from sparkd.base.lib.errors import NotReadyError
from sparkd.base.status.model import FindingReport
from sparkd.base.vllm import smoke

ID = "smoke"
HINT = "sudo sparkd smoke repeats it; see the weights and the image"


def try_out(agent: Agent, running: Running) -> None:
    """A plan that was just chosen is in force once its answers make sense. Raises NotReadyError (exit 12)."""
    if not agent.switching.tried:
        return
    agent.reporter.update(message="the new plan answers test prompts")
    test = smoke.run(agent.endpoint(running), _request_seconds(agent))
    faults = agent.loop.beside(test, math.inf, "the smoke test")
    agent.launch_row.keep_smoke(faults)
    agent.reporter.update(smoke_passed=not faults)
    if faults:
        raise NotReadyError(f"its smoke test failed: {'; '.join(faults)}", "see the weights and the image")
    agent.switching.put_in_force()


def start_smoke_test(agent: Agent, running: Running) -> Callable[[], None]:
    """Where `smoke.on_start` wants it, beside the requests of clients. What is returned reports the result once it is
    there. An engine that serves is not ended for it: its clients may see nothing of the fault.
    """
    if not agent.settings.smoke.on_start:
        return lambda: None
    testing = agent.loop.start(smoke.run(agent.endpoint(running), _request_seconds(agent)))
    reported = False

    def report() -> None:
        nonlocal reported
        if reported or not testing.done():
            return
        reported = True
        faults = testing.result()
        agent.launch_row.keep_smoke(faults)
        agent.reporter.update(smoke_passed=not faults)
        if not faults:
            agent.events.info("engine.smoke.passed")
            return
        reason = "; ".join(faults)
        agent.events.warning("engine.smoke.failed", reason=reason, hint=HINT)
        found = FindingReport(ID, "warn", f"answers that make no sense: {reason}", HINT)
        agent.reporter.update(findings=(*agent.reporter.report.findings, found))

    return report


def _request_seconds(agent: Agent) -> float:
    return agent.settings.readiness.completion_timeout_seconds
