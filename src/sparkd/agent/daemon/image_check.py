"""Checks the image before a start, where that was not done yet: the recipe's assertions, and the flags of its vLLM."""

import time
from functools import partial
from typing import NamedTuple

from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.startup import container_labels
from sparkd.agent.preflight.checks.docker import EngineImage
from sparkd.agent.preflight.checks.plan_lint import is_doubtful
from sparkd.base.host import docker, docker_image
from sparkd.base.lib.dockerd.reader import TIMEOUT_SECONDS, DockerError
from sparkd.base.lib.errors import BlockedError, LaunchError
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import utc_now
from sparkd.base.plan.image_asserts import ASSERT_FAILED, find_fault, find_unbuilt, render_asserts
from sparkd.base.state import vllm_tables
from sparkd.base.state.launch_history import FAULT_LIMIT, AssertResult
from sparkd.base.vllm.own_table import KILL_SECONDS, QUERY_SECONDS, parse_answer, render_query

IMAGE_HINT = "look at: systemctl status docker; free -g"


def check_image(agent: Agent) -> bool:
    """Check the image, and keep the results.

    Returns whether there is a new result, which preflight has not judged. Requires a running docker.
    Raises BlockedError (exit 10) where the image can't be checked.
    """
    program, began, questions = render_asserts(agent.plan.asserts), time.monotonic(), None
    try:
        questions = _find_open_questions(agent, program)
        if questions is None:
            return False
        outcome = _run_programs(agent, questions)
    except (DockerError, LaunchError, OSError) as error:
        if questions.asserts if questions else program:
            raise _make_blocked_error(agent, "can't be checked", str(error), IMAGE_HINT) from None
        if questions is None:  # the launch itself reports what is wrong with docker
            return False
        hint = "nothing is to be done: the next start queries it again"
        agent.events.info("engine.vllm.queried", image=agent.plan.image, flags=0, reason=str(error), hint=hint)
        return True  # a start needs no answer; preflight removes a container that the query has left
    # Behind assertions that fail no query runs, and by itself it succeeds unless its container is killed.
    has_table = bool(questions.query) and outcome[0] == 0 and _record_table(agent, questions, outcome[1])
    return (bool(questions.asserts) and _record_asserts(agent, questions, outcome, began)) or has_table


class OpenQuestions(NamedTuple):
    """What is not known yet of an image. At least one is open."""

    image_id: str
    asserts: str
    """The program of the recipe's assertions; empty where there is a result, or none is needed."""
    query: str
    """The program that prints the flags of its vLLM; empty where they are known, or none is doubtful."""


def _find_open_questions(agent: Agent, program: str) -> OpenQuestions | None:
    """None where nothing is open, the check is skipped, or the image is not there."""
    # The tables of flags are files of the package: they are read beside the loop, since a disk may hang.
    is_doubtful_plan = agent.loop.beside(partial(is_doubtful, agent.plan), 10.0, "reading vLLM's flags")
    if not (program or is_doubtful_plan) or EngineImage.id in agent.settings.preflight.skip:
        return None
    read = partial(docker_image.read_image, ref=agent.plan.image_to_run)
    image = agent.loop.beside(partial(docker.query, agent.host, read), 2 * TIMEOUT_SECONDS, "docker")
    if image is None:
        return None
    asserts = program if program and agent.store.read_launches().assert_result(image.id, program) is None else ""
    is_open = asserts or is_doubtful_plan  # with the assertions of a new image its flags are read, too
    query = render_query() if is_open and not agent.store.read(vllm_tables.read_tables).is_queried(image.id) else ""
    return OpenQuestions(image.id, asserts, query) if asserts or query else None


def _run_programs(agent: Agent, questions: OpenQuestions) -> tuple[int, str]:
    agent.phase.enter(agent.reporter.report.phase, f"checking the image {agent.plan.image}")
    labels = container_labels(agent.plan, agent.owner.invocation)
    seconds = QUERY_SECONDS + KILL_SECONDS if questions.query else 0
    programs = "\n".join(filter(None, (questions.asserts, questions.query)))
    return agent.actions.check_asserts(agent.plan, questions.image_id, programs, labels, seconds)


def _record_asserts(agent: Agent, questions: OpenQuestions, outcome: tuple[int, str], began: float) -> bool:
    """Keep the result. Returns whether it is kept, so that preflight judges by it.

    Raises BlockedError where the program could not run, or a fault can't be kept.
    """
    code, log = outcome
    fault = sanitize(agent.redact(find_fault(log)), FAULT_LIMIT) if code else ""
    if code not in (0, ASSERT_FAILED):
        raise _make_blocked_error(agent, "can't be checked", f"exit code {code}: {fault}", IMAGE_HINT)
    result = AssertResult(fault, round(time.monotonic() - began, 2), utc_now(), find_unbuilt(log))
    agent.events.info("engine.image.checked", image=agent.plan.image, fault=fault, seconds=result.seconds)
    image_id, program = questions.image_id, questions.asserts
    is_written = agent.store.record(lambda launches: launches.record_asserts(image_id, program, result))
    if fault and not is_written:
        raise _make_blocked_error(agent, "does not hold", fault, agent.plan.image_build)
    return is_written


def _record_table(agent: Agent, questions: OpenQuestions, log: str) -> bool:
    """Keep the table of flags of the image's own vLLM. Returns whether there is one, by which preflight judges now."""
    table = parse_answer(log, agent.plan.image)
    hint_field = (
        {} if table.flags else {"hint": "nothing is to be done: flags are judged by the table that comes with sparkd"}
    )
    fields = {"version": table.version, "flags": len(table.flags), **hint_field}
    agent.events.info("engine.vllm.queried", image=agent.plan.image, **fields)
    tables = agent.store.read(vllm_tables.read_tables)
    return agent.store.write(vllm_tables.FILE, tables.record(questions.image_id, table)) and bool(table.flags)


def _make_blocked_error(agent: Agent, what: str, reason: str, hint: str) -> BlockedError:
    return BlockedError(f"what the recipe asserts of {agent.plan.image} {what}: {reason}", hint)
