"""Whether a loaded plan is good: its engine answers with sense, and serves for `supervise.proven_seconds`."""

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
    """A plan that was just chosen is in force once its answers make sense. Raises NotReadyError (exit 12)."""
    if not agent.switching.tried:
        return
    agent.reporter.update(message="the new plan answers test prompts")
    faults = _keep(agent, agent.loop.beside(_smoke_test(agent, running), math.inf, "the smoke test"))
    if faults:
        raise NotReadyError(f"its smoke test failed: {'; '.join(faults)}", HINT)
    agent.switching.put_in_force()


def start_smoke_test(agent: Agent, running: Running) -> Callable[[], None]:
    """Start it beside the requests of clients, where `smoke.on_start` wants it. The returned function reports the
    result once it is there. An engine that serves is not ended for it: its clients may see nothing of the fault.
    """
    if not agent.settings.smoke.on_start:
        return lambda: None
    testing = agent.loop.start(_smoke_test(agent, running))
    reported = False

    def report() -> None:
        nonlocal reported
        if reported or not testing.done():
            return
        reported = True
        faults = _keep(agent, testing.result())
        if not faults:
            agent.events.info("engine.smoke.passed")
            return
        reason = "; ".join(faults)
        agent.events.warning("engine.smoke.failed", reason=reason, hint=SMOKE_HINT)
        finding = FindingReport(SMOKE_ID, "warn", f"answers that make no sense: {reason}", SMOKE_HINT)
        agent.reporter.replace_finding(SMOKE_ID, finding)

    return report


def _smoke_test(agent: Agent, running: Running) -> Coroutine[Any, Any, list[smoke.Round]]:
    recipe = agent.context.recipe
    wanted = smoke.from_plan(agent.plan.argv, recipe.expect, random_weights=recipe.model.random_weights)
    return smoke.run(agent.endpoint(running), wanted, agent.settings.readiness.completion_timeout_seconds)


def _keep(agent: Agent, rounds: Sequence[smoke.Round]) -> tuple[str, ...]:
    """Keep and report the result; return the faults."""
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
"""Pause until what could not be read is read again."""


class ProvingPeriod(Struct):
    """Used by the main thread."""

    agent: Context
    agreed: Agreed
    switching: Switching
    proven: bool = False
    _proven_at: float | None = None
    """When it is proven, monotonic, while it serves."""

    def begin(self, *, again: bool = False) -> None:
        """The engine serves from now on. `again`: under an agent before this one it did so already, perhaps for long
        enough.
        """
        agent = self.agent
        with suppress(OSError):
            if again and agent.store.read(launch_history.read_history).open is None:
                self.proven = True
                return
        self._proven_at = time.monotonic() + agent.settings.supervise.proven_seconds
        filled: tuple[str, ...] | None = None
        with suppress(OSError):  # a disk that fails or hangs ends no engine that serves
            filled = agent.loop.beside(self._filled_caches, CACHES_SECONDS, "looking at the caches")
        agent.store.record(lambda launches: launches.record_serving(agent.boot_id, filled))

    def tick(self) -> None:
        agent = self.agent
        if self.switching.tried:  # a full disk has kept that it works from being written
            self.switching.put_in_force()
        if self._proven_at is None or time.monotonic() < self._proven_at:
            return
        self._proven_at = None
        self.proven = True
        agent.store.record(lambda launches: launches.reset(agent.plan.counted_as))
        switch = self.switching.switch
        if switch is None or switch.to is None or not switch.to.until:  # what has an end is an experiment
            self._keep_known_good()

    def _filled_caches(self) -> tuple[str, ...]:
        """Names of the compile caches with files in them. Raises OSError."""
        image, files = self.agent.reporter.report.engine.image, self.agent.host.files
        names = (cache.name for cache in self.agent.plan.caches)
        return tuple(name for name in names if files.names_if_any(caches.path(image, name)))

    def _keep_known_good(self) -> None:
        agent, now, context = self.agent, utc_now(), self.agent.context
        facts = self.agreed.facts()
        if "boot" in facts.unseen:  # an entry with less than the one before it would hide what changes
            self._proven_at = time.monotonic() + AGAIN_SECONDS
            return
        digest = ""  # where docker does not answer, that of the proof before stays
        look = partial(docker_image.read_digest, agent.host, agent.reporter.report.engine.image, agent.plan.image)
        with suppress(OSError, DockerError):
            digest = agent.loop.beside(look, DOCKER_SECONDS, "docker's digest of the image")
        proven = known_good.Entry(
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
        before = agent.store.try_read(known_good.read_known_good)
        if before is None:
            return
        history = known_good.add_proven(before, proven)
        if history.known_good != before and agent.store.write(known_good.FILE, history):
            agent.events.info("known_good.plan.saved", plan=proven.plan[:12], recipe=proven.name)
            agent.run_aside("kept-images", partial(_keep_images, agent, before, history.known_good))


def _keep_images(agent: Context, before: Sequence[known_good.Entry], now: Sequence[known_good.Entry]) -> None:
    earlier, _ = known_good.images_to_keep(before)
    try:
        for name, made in agent.actions.keep_images(*known_good.images_to_keep(now), earlier):
            agent.events.info("known_good.image.kept" if made else "known_good.image.released", name=name)
    except DockerError as error:
        hint = "the next start that proves itself keeps what is missing; of a plan that is over: sudo docker rmi NAME"
        agent.events.warning("known_good.image.failed", reason=str(error), hint=hint)
