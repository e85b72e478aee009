"""The smoke test at a start: whether a loaded engine's answers make sense."""

import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from sparkd.agent.daemon.context import Agent
from sparkd.agent.engine.rank import Running
from sparkd.base.lib.errors import NotReadyError
from sparkd.base.status.model import FindingReport
from sparkd.base.vllm import smoke
from sparkd.base.vllm.capabilities import Capabilities

SMOKE_ID = "smoke"
HINT = "see the weights and the image; a model that knows no texts needs model.random_weights: true in its recipe"
UNTESTED = "what was chosen is in force untested, as its smoke test was skipped (said until the next start)"
SMOKE_HINT = f"sudo sparkd smoke repeats it; {HINT}"


def try_out(agent: Agent, running: Running) -> None:
    """Put a plan that was just chosen in force once its answers make sense. Raises NotReadyError (exit 12) else.

    One that clients kept too busy for a test, or that makes no text, is in force as well, with a finding that says so.
    """
    if not agent.switching.tried:
        return
    agent.reporter.update(message="the new plan answers test prompts")
    agent.reporter.publish()  # the report's pace may keep it back, and nothing else changes in the trial
    faults = _keep_smoke_result(agent, agent.loop.beside(_run_smoke_test(agent, running), math.inf, "the smoke test"))
    if faults:
        raise NotReadyError(f"its smoke test failed: {'; '.join(faults)}", HINT)
    if faults is None:
        agent.reporter.replace_finding(SMOKE_ID, FindingReport(SMOKE_ID, "warn", UNTESTED, "sudo sparkd smoke"))
    agent.switching.put_in_force()


def start_smoke_test(agent: Agent, running: Running) -> Callable[[], None]:
    """Start the smoke test of a launch beside the requests of clients, if `smoke.on_start` is set.

    The returned function reports the result once it is there. A fault ends no engine: clients may not notice it.
    """
    if running.taken_over or not agent.settings.smoke.on_start:
        return lambda: None
    testing = agent.loop.start(_run_smoke_test(agent, running))
    reported = False

    def report() -> None:
        nonlocal reported
        if reported or not testing.done():
            return
        reported = True
        faults = _keep_smoke_result(agent, testing.result())
        if faults is None:
            return
        if not faults:
            agent.events.info("engine.smoke.passed")
            agent.reporter.replace_finding(SMOKE_ID, None)
            return
        reason = "; ".join(faults)
        agent.events.warning("engine.smoke.failed", reason=reason, hint=SMOKE_HINT)
        finding = FindingReport(SMOKE_ID, "warn", f"answers that make no sense: {reason}", SMOKE_HINT)
        agent.reporter.replace_finding(SMOKE_ID, finding)

    return report


def _run_smoke_test(agent: Agent, running: Running) -> Coroutine[Any, Any, list[smoke.Round]]:
    recipe = agent.context.recipe
    random_weights, seconds = recipe.model.random_weights, agent.settings.readiness.completion_timeout_seconds
    capabilities = Capabilities.from_argv(agent.plan.argv, recipe.expect, random_weights=random_weights)
    return smoke.run_short(agent.endpoint(running), capabilities, seconds, step_seconds=agent.pace.step_seconds)


def _keep_smoke_result(agent: Agent, rounds: Sequence[smoke.Round]) -> tuple[str, ...] | None:
    """Keep and report the result. Returns the faults; None without one, as where clients keep the engine busy."""
    faults = tuple(dict.fromkeys(fault for round_ in rounds for fault in round_.faults))
    is_busy = rounds[-1].late and not faults
    if skipped := [f"{round_.name}: {round_.skipped}" for round_ in rounds if round_.skipped]:
        hint = "once it is quieter: sudo sparkd smoke" if is_busy else "nothing is to be done"
        agent.events.info("engine.smoke.skipped", reason="; ".join(skipped), hint=hint)
    if is_busy or len(skipped) == len(rounds):
        return None
    agent.launch_row.keep_smoke(faults)
    agent.reporter.update(smoke_passed=not faults)
    return faults
