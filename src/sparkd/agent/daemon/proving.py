"""Proves that a loaded plan is good: it serves for `supervise.proven_seconds`."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from sparkd.agent.daemon.agreed import Agreed
from sparkd.agent.daemon.context import Context
from sparkd.agent.daemon.switching import Switching
from sparkd.base.host import caches, docker_image
from sparkd.base.lib.dockerd.reader import DockerError
from sparkd.base.lib.times import utc_now
from sparkd.base.state import known_good, launch_history

CACHES_SECONDS = 5.0
"""Limit for listing some ten folders, while nothing else watches the engine."""
AGAIN_SECONDS = 60.0
"""Pause before a plan is kept again whose facts or entry could not be read or written."""


class ProvingPeriod(Struct):
    """The time in service after which the plan is known good. Used by the main thread."""

    agent: Context
    agreed: Agreed
    switching: Switching
    clock: Callable[[], float] = time.monotonic
    proven: bool = False
    _keep_at: float | None = None
    """When the plan is to be kept: at the end of the period, and again after a failure, or while it has an end. None
    before it serves, and once it is kept."""
    _is_reset: bool = False
    """Whether the count of the plan's failures is 0 again on the disk."""
    _again_seconds: float = AGAIN_SECONDS
    """The pause before it is to be kept again, longer each time: a disk that hangs takes seconds of each look."""

    def begin(self, *, again: bool = False) -> None:
        """Begin the time in service. `again`: the engine served under an agent before, perhaps for long enough."""
        agent = self.agent
        with suppress(OSError):
            if again and agent.store.read(launch_history.read_history).open is None:
                self.proven = self._is_reset = True
                self._keep_at = self.clock() + AGAIN_SECONDS  # the agent before may not have kept it
                return
        self._keep_at = self.clock() + agent.settings.supervise.proven_seconds
        look = self._find_filled_caches
        filled_caches: tuple[str, ...] | None = agent.look(look, CACHES_SECONDS, "looking at the caches", None)
        agent.store.record(lambda launches: launches.record_serving(agent.boot_id, filled_caches))

    def tick(self) -> None:
        """Mark the plan as proven once its time is over, and put a switch in force that could not be before.

        To be called in each look at the engine.
        """
        agent = self.agent
        if self.switching.tried:  # that the plan works could not be written to a full disk
            self.switching.put_in_force()
        if self._keep_at is None or self.clock() < self._keep_at:
            return
        self._keep_at = None
        self.proven = True
        self._is_reset = self._is_reset or agent.store.record(lambda launches: launches.reset(agent.plan.backoff_key))
        switch = self.switching.switch
        # A plan that is chosen for a limited time is an experiment, as long as it has an end.
        is_limited = switch is not None and switch.to is not None and bool(switch.to.until)
        if is_limited or not self._keep_known_good() or not self._is_reset:
            self._keep_at = self.clock() + self._again_seconds
            self._again_seconds = min(3600.0, 2 * self._again_seconds)

    def _find_filled_caches(self) -> tuple[str, ...]:
        """Names of the compile caches with files in them. Raises OSError."""
        image, files = self.agent.reporter.report.engine.image, self.agent.host.files
        names = (cache.name for cache in self.agent.plan.caches)
        return tuple(name for name in names if files.names_if_any(caches.path(image, name)))

    def _keep_known_good(self) -> bool:
        """Write the plan's entry. Returns whether that is done with: not where a file can't be read or written."""
        agent, now, context = self.agent, utc_now(), self.agent.context
        facts = self.agreed.facts()
        if "boot" in facts.unseen:  # an entry that lacks facts would hide what changes
            return False
        known_entries = agent.store.try_read(known_good.read_known_good)
        if known_entries is None:
            return False
        digest = ""  # where docker does not answer, the digest of the last proof stays
        look = partial(docker_image.read_digest, agent.host, agent.reporter.report.engine.image, agent.plan.image)
        with suppress(OSError, DockerError):
            digest = agent.loop.beside(look, 5.0, "docker's digest of the image")
        proven_plan = known_good.Entry(
            since=now,
            until=now,
            plan_digest=agent.plan.digest,
            agreement_digest=self.agreed.agreement.digest,
            image_id=agent.reporter.report.engine.image,
            facts=facts,
            recipe=context.recipe.model_dump(mode="json", by_alias=True),
            engine=context.settings.engine.model_dump(mode="json"),
            image_digest=digest,
        )
        history = known_good.add_proven(known_entries, proven_plan)
        if history.known_good == known_entries:
            return True
        if not agent.store.write(known_good.FILE, history):
            return False
        agent.events.info("known_good.plan.saved", plan=proven_plan.plan_digest[:12], recipe=proven_plan.name)
        agent.run_aside("kept-images", partial(_keep_images, agent, known_entries, history.known_good))
        return True


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
