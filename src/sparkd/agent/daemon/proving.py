"""Proves that a loaded plan is good: its engine's answers make sense, and it serves for `supervise.proven_seconds`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import Struct

from sparkd.agent.daemon.agreed import Agreed
from sparkd.agent.daemon.context import Agent, Context
from sparkd.agent.daemon.switching import Switching
from sparkd.agent.engine.rank import Running
from sparkd.base.host import caches, docker_image
from sparkd.base.lib.dockerd.reader import DockerError
from sparkd.base.lib.errors import NotReadyError
from sparkd.base.state import known_good, launch_history
from sparkd.base.status.model import FindingReport, utc_now
from sparkd.base.vllm import smoke

SMOKE_ID = "smoke"
HINT = "see the weights and the image; a model that knows no texts needs model.random_weights: true in its recipe"
SMOKE_HINT = f"sudo sparkd smoke repeats it; {HINT}"


def try_out(agent: Agent, running: Running) -> None:
    """Put a plan that was just chosen in force once its answers make sense. Raises NotReadyError (exit 12) else."""
    if not agent.switching.tried:
        return
    agent.reporter.update(message="the new plan answers test prompts")
    faults = _keep_smoke_result(agent, agent.loop.beside(_run_smoke_test(agent, running), math.inf, "the smoke test"))
    if faults:
        raise NotReadyError(f"its smoke test failed: {'; '.join(faults)}", HINT)
    agent.switching.put_in_force()


def start_smoke_test(agent: Agent, running: Running) -> Callable[[], None]:
    """Start the smoke test beside the requests of clients, if `smoke.on_start` is set.

    The returned function reports the result once it is there. A fault ends no engine that serves: its clients may not
    notice it.
    """
    if not agent.settings.smoke.on_start:
        return lambda: None
    testing = agent.loop.start(_run_smoke_test(agent, running))
    reported = False

    def report() -> None:
        nonlocal reported
        if reported or not testing.done():
            return
        reported = True
        faults = _keep_smoke_result(agent, testing.result())
        if not faults:
            agent.events.info("engine.smoke.passed")
            return
        reason = "; ".join(faults)
        agent.events.warning("engine.smoke.failed", reason=reason, hint=SMOKE_HINT)
        finding = FindingReport(SMOKE_ID, "warn", f"answers that make no sense: {reason}", SMOKE_HINT)
        agent.reporter.replace_finding(SMOKE_ID, finding)

    return report


def _run_smoke_test(agent: Agent, running: Running) -> Coroutine[Any, Any, list[smoke.Round]]:
    recipe = agent.context.recipe
    smoke_plan = smoke.from_plan(agent.plan.argv, recipe.expect, random_weights=recipe.model.random_weights)
    return smoke.run(agent.endpoint(running), smoke_plan, agent.settings.readiness.completion_timeout_seconds)


def _keep_smoke_result(agent: Agent, rounds: Sequence[smoke.Round]) -> tuple[str, ...]:
    """Keep and report the result. Returns the faults."""
    faults = tuple(dict.fromkeys(fault for prompt in rounds for fault in prompt.faults))
    agent.launch_row.keep_smoke(faults)
    agent.reporter.update(smoke_passed=not faults)
    if skipped := [f"{prompt.name}: {prompt.skipped}" for prompt in rounds if prompt.skipped]:
        agent.events.info("engine.smoke.skipped", reason="; ".join(skipped))
    return faults


CACHES_SECONDS = 5.0
"""Limit for listing some ten folders, while nothing else watches the engine."""
DOCKER_SECONDS = 5.0
AGAIN_SECONDS = 60.0
"""Pause before facts that could not be read are read again."""


class ProvingPeriod(Struct):
    """The time in service after which the plan is known good. Used by the main thread."""

    agent: Context
    agreed: Agreed
    switching: Switching
    proven: bool = False
    _proven_at: float | None = None
    """Monotonic time at which the plan will be proven; None before it serves, and after."""

    def begin(self, *, again: bool = False) -> None:
        """Begin the time in service. `again`: the engine served under an agent before, perhaps for long enough."""
        agent = self.agent
        with suppress(OSError):
            if again and agent.store.read(launch_history.read_history).open is None:
                self.proven = True
                return
        self._proven_at = time.monotonic() + agent.settings.supervise.proven_seconds
        filled_caches: tuple[str, ...] | None = None
        with suppress(OSError):  # a disk that fails or hangs ends no engine that serves
            filled_caches = agent.loop.beside(self._find_filled_caches, CACHES_SECONDS, "looking at the caches")
        agent.store.record(lambda launches: launches.record_serving(agent.boot_id, filled_caches))

    def tick(self) -> None:
        """Mark the plan as proven once its time is over. To be called in each look at the engine."""
        agent = self.agent
        if self.switching.tried:  # that the plan works could not be written to a full disk
            self.switching.put_in_force()
        if self._proven_at is None or time.monotonic() < self._proven_at:
            return
        self._proven_at = None
        self.proven = True
        agent.store.record(lambda launches: launches.reset(agent.plan.backoff_key))
        switch = self.switching.switch
        # A plan that is chosen for a limited time is an experiment.
        if switch is None or switch.to is None or not switch.to.until:
            self._keep_known_good()

    def _find_filled_caches(self) -> tuple[str, ...]:
        """Names of the compile caches with files in them. Raises OSError."""
        image, files = self.agent.reporter.report.engine.image, self.agent.host.files
        names = (cache.name for cache in self.agent.plan.caches)
        return tuple(name for name in names if files.names_if_any(caches.path(image, name)))

    def _keep_known_good(self) -> None:
        agent, now, context = self.agent, utc_now(), self.agent.context
        facts = self.agreed.facts()
        if "boot" in facts.unseen:  # an entry that lacks facts would hide what changes
            self._proven_at = time.monotonic() + AGAIN_SECONDS
            return
        digest = ""  # where docker does not answer, the digest of the last proof stays
        look = partial(docker_image.read_digest, agent.host, agent.reporter.report.engine.image, agent.plan.image)
        with suppress(OSError, DockerError):
            digest = agent.loop.beside(look, DOCKER_SECONDS, "docker's digest of the image")
        proven_plan = known_good.Entry(
            since=now,
            until=now,
            plan=agent.plan.digest,
            agreement=self.agreed.agreement.digest,
            image_id=agent.reporter.report.engine.image,
            facts=facts,
            recipe=context.recipe.model_dump(mode="json", by_alias=True),
            engine=context.settings.engine.model_dump(mode="json"),
            image_digest=digest,
        )
        known_entries = agent.store.try_read(known_good.read_known_good)
        if known_entries is None:
            return
        history = known_good.add_proven(known_entries, proven_plan)
        if history.known_good != known_entries and agent.store.write(known_good.FILE, history):
            agent.events.info("known_good.plan.saved", plan=proven_plan.plan[:12], recipe=proven_plan.name)
            agent.run_aside("kept-images", partial(_keep_images, agent, known_entries, history.known_good))


def _keep_images(
    agent: Context, earlier_entries: Sequence[known_good.Entry], entries: Sequence[known_good.Entry]
) -> None:
    earlier_images, _ = known_good.images_to_keep(earlier_entries)
    try:
        for name, is_made in agent.actions.keep_images(*known_good.images_to_keep(entries), earlier_images):
            agent.events.info("known_good.image.kept" if is_made else "known_good.image.released", name=name)
    except DockerError as error:
        hint = "the next start that proves itself keeps what is missing; of a plan that is over: sudo docker rmi NAME"
        agent.events.warning("known_good.image.failed", reason=str(error), hint=hint)
