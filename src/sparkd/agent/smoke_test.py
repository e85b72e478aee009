"""Whether a loaded engine answers with sense: a plan that is tried is given up for it, any other is reported."""

from __future__ import annotations

import math
from collections.abc import Callable

from sparkd.agent import switching
from sparkd.agent.deps import Deps
from sparkd.agent.history import keep_smoke
from sparkd.engine.rank import Running
from sparkd.lib.errors import NotReadyError
from sparkd.measure import smoke
from sparkd.status.model import FindingReport

ID = "smoke"
HINT = "sudo sparkd smoke repeats it; see the weights and the image"


def try_out(agent: Deps, running: Running) -> None:
    """A plan that was just chosen is in force once its answers make sense. Raises NotReadyError (exit 12)."""
    if not switching.is_tried(agent):
        return
    agent.reporter.update(message="the new plan answers test prompts")
    test = smoke.run(agent.endpoint(running), _request_seconds(agent))
    faults = agent.loop.beside(test, math.inf, "the smoke test")
    keep_smoke(agent, faults)
    agent.reporter.update(smoke_passed=not faults)
    if faults:
        raise NotReadyError(f"its smoke test failed: {'; '.join(faults)}", "see the weights and the image")
    switching.put_in_force(agent)


def start_smoke_test(agent: Deps, running: Running) -> Callable[[], None]:
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
        keep_smoke(agent, faults)
        agent.reporter.update(smoke_passed=not faults)
        if not faults:
            agent.events.info("engine.smoke.passed")
            return
        reason = "; ".join(faults)
        agent.events.warning("engine.smoke.failed", reason=reason, hint=HINT)
        found = FindingReport(ID, "warn", f"answers that make no sense: {reason}", HINT)
        agent.reporter.update(findings=(*agent.reporter.report.findings, found))

    return report


def _request_seconds(agent: Deps) -> float:
    return agent.settings.readiness.completion_timeout_seconds
