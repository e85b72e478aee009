"""Checks the image before a start, where that was not done yet: the recipe's assertions, and the flags of its vLLM."""

import time
from functools import partial

from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.startup import container_labels
from sparkd.agent.preflight.checks.docker import EngineImage
from sparkd.agent.preflight.checks.plan_lint import is_doubtful
from sparkd.base.host import docker, docker_image
from sparkd.base.lib.dockerd.reader import TIMEOUT_SECONDS, DockerError
from sparkd.base.lib.errors import BlockedError, LaunchError
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import utc_now
from sparkd.base.plan.script import ASSERT_FAILED, find_fault, find_unbuilt, render_asserts
from sparkd.base.state import vllm_tables
from sparkd.base.state.launch_history import FAULT_LIMIT, AssertResult
from sparkd.base.vllm.own_table import KILL_SECONDS, QUERY_SECONDS, parse_answer, render_query

IMAGE_HINT = "look at: systemctl status docker; free -g"


def check_image(agent: Agent) -> bool:
    """Check the image, and keep the results.

    Returns whether there is a new result, which preflight has not judged. Requires a running docker.
    Raises BlockedError (exit 10) where the image can't be checked.
    """
    program, began = render_asserts(agent.plan.asserts), time.monotonic()
    try:
        questions = _find_open_questions(agent, program)
        if questions is None:
            return False
        image_id, is_checked, is_queried = questions
        code, log = _run_programs(agent, image_id, program, "" if is_queried else render_query())
    except (DockerError, LaunchError, TimeoutError, BlockingIOError, OSError) as error:
        if not program:  # the launch itself reports what is wrong with docker
            return False
        raise _make_blocked_error(agent, "can't be checked", str(error), IMAGE_HINT) from None
    is_new = not is_queried and (is_checked or code == 0) and _record_table(agent, image_id, log)
    return is_new if is_checked else _record_asserts(agent, image_id, program, (code, log), began) or is_new


def _find_open_questions(agent: Agent, program: str) -> tuple[str, bool, bool] | None:
    """The image's id, whether it was checked, and whether its vLLM was queried; None where nothing is open."""
    # The tables of flags are files of the package: they are read beside the loop, since a disk may hang.
    is_doubtful_plan = agent.loop.beside(partial(is_doubtful, agent.plan), 10.0, "reading vLLM's flags")
    if not (program or is_doubtful_plan) or EngineImage.id in agent.settings.preflight.skip:
        return None
    read = partial(docker_image.read_image, ref=agent.plan.image_to_run)
    image = agent.loop.beside(partial(docker.query, agent.host, read), 2 * TIMEOUT_SECONDS, "docker")
    if image is None:
        return None
    is_checked = not program or agent.store.read_launches().assert_result(image.id, program) is not None
    is_queried = (is_checked and not is_doubtful_plan) or agent.store.read(vllm_tables.read_tables).is_queried(image.id)
    return None if is_checked and is_queried else (image.id, is_checked, is_queried)


def _run_programs(agent: Agent, image_id: str, program: str, query: str) -> tuple[int, str]:
    agent.phase.enter(agent.reporter.report.phase, f"checking what the recipe asserts of {agent.plan.image}")
    labels = container_labels(agent.plan, agent.incarnation)
    seconds = QUERY_SECONDS + KILL_SECONDS if query else 0
    return agent.actions.check_asserts(agent.plan, image_id, "\n".join(filter(None, (program, query))), labels, seconds)


def _record_asserts(agent: Agent, image_id: str, program: str, outcome: tuple[int, str], began: float) -> bool:
    code, log = outcome
    fault = sanitize(agent.redact(find_fault(log)), FAULT_LIMIT) if code else ""
    if code not in (0, ASSERT_FAILED):
        raise _make_blocked_error(agent, "can't be checked", f"exit code {code}: {fault}", IMAGE_HINT)
    result = AssertResult(fault, round(time.monotonic() - began, 2), utc_now(), find_unbuilt(log))
    agent.events.info("engine.image.checked", image=agent.plan.image, fault=fault, seconds=result.seconds)
    is_written = agent.store.record(lambda launches: launches.record_asserts(image_id, program, result))
    if fault and not is_written:
        raise _make_blocked_error(agent, "does not hold", fault, agent.plan.image_build)
    return is_written


def _record_table(agent: Agent, image_id: str, log: str) -> bool:
    """Keep the table of flags of the image's own vLLM. Returns whether there is one, by which preflight judges now."""
    table = parse_answer(log, agent.plan.image)
    hint_field = (
        {} if table.flags else {"hint": "nothing is to be done: flags are judged by the table that comes with sparkd"}
    )
    fields = {"version": table.version, "flags": len(table.flags), **hint_field}
    agent.events.info("engine.vllm.queried", image=agent.plan.image, **fields)
    tables = agent.store.read(vllm_tables.read_tables)
    return agent.store.write(vllm_tables.FILE, tables.record(image_id, table)) and bool(table.flags)


def _make_blocked_error(agent: Agent, what: str, reason: str, hint: str) -> BlockedError:
    return BlockedError(f"what the recipe asserts of {agent.plan.image} {what}: {reason}", hint)
