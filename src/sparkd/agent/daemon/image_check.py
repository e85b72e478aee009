"""Runs what the recipe asserts of its image, once for each image. Preflight judges the result: check `image`."""

from __future__ import annotations

import time

from sparkd.agent.daemon.context import Agent
from sparkd.agent.engine.rank import container_labels
from sparkd.agent.preflight.checks.docker import EngineImage
from sparkd.base.host import docker, docker_image
from sparkd.base.lib.dockerd.reader import TIMEOUT_SECONDS, DockerError
from sparkd.base.lib.errors import BlockedError, LaunchError
from sparkd.base.lib.text import sanitize
from sparkd.base.plan.script import ASSERT_FAILED, find_fault, render_asserts
from sparkd.base.state.launch_history import FAULT_LIMIT, AssertResult
from sparkd.base.status.model import utc_now

HINT = "look at: systemctl status docker, free -g"


def check_image(agent: Agent) -> bool:
    """Whether there is a new result, which preflight has not judged. Requires a running docker.

    Raises BlockedError (exit 10) where the image can't be checked.
    """
    program = render_asserts(agent.plan.asserts)
    if not program or EngineImage.id in agent.settings.preflight.skip:
        return False
    began = time.monotonic()
    try:
        image = agent.loop.beside(lambda: _read_image(agent), 2 * TIMEOUT_SECONDS, "docker")
        if image is None or agent.store.read_launches().assert_result(image.id, program) is not None:
            return False
        agent.phase.enter(agent.reporter.report.phase, f"checking what the recipe asserts of {agent.plan.image}")
        labels = container_labels(agent.plan, agent.incarnation)
        code, log = agent.actions.check_asserts(agent.plan, image.id, program, labels)
    except (DockerError, LaunchError, TimeoutError, BlockingIOError) as error:
        raise _blocked(agent, "can't be checked", str(error), HINT) from None
    found = sanitize(agent.redact(find_fault(log)), FAULT_LIMIT) if code else ""
    if code not in (0, ASSERT_FAILED):
        raise _blocked(agent, "can't be checked", f"exit code {code}: {found}", HINT)
    result = AssertResult(found, round(time.monotonic() - began, 2), utc_now())
    agent.events.info("engine.image.checked", image=agent.plan.image, fault=found, seconds=result.seconds)
    written = agent.store.record(lambda launches: launches.record_asserts(image.id, program, result))
    if found and not written:
        raise _blocked(agent, "does not hold", found, agent.plan.image_build)
    return written


def _read_image(agent: Agent) -> docker_image.Image | None:
    return docker.query(agent.host, lambda reader: docker_image.read_image(reader, agent.plan.image_to_run))


def _blocked(agent: Agent, what: str, reason: str, hint: str) -> BlockedError:
    return BlockedError(f"what the recipe asserts of {agent.plan.image} {what}: {reason}", hint)
