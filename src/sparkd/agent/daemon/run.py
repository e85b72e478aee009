"""The run of an agent, from preflight to its last report. One launch a process: systemd starts the next one.

    preflight -> backoff -> await docker -> fingerprint -> image -> wait for peers -> launch -> ready -> serve -> end

Each step succeeds, or raises the error that ends the run. So does each wait: `endings` lists what may end it. Only
a launch that is blocked waits, and is tried again. A worker runs the same steps, but follows the head's phase instead
of probing the endpoint.
"""

from functools import partial
from typing import NoReturn

from sparkd.agent.daemon.blocked import retry_while_blocked
from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.ended_engine import conclude_if_ended
from sparkd.agent.daemon.head_config import share_config
from sparkd.agent.daemon.image_check import check_image
from sparkd.agent.daemon.kept_rank import keep_rank
from sparkd.agent.daemon.loading import make_ready
from sparkd.agent.daemon.peer_wait import join_epoch, wait_for_peers
from sparkd.agent.daemon.reloading import ReloadRequested, raise_if_requested, reload
from sparkd.agent.daemon.serving import follow_head, serve
from sparkd.agent.daemon.shutdown import shutdown_on_error, shutdown_on_request
from sparkd.agent.daemon.smoke_test import try_out
from sparkd.agent.daemon.startup import await_docker, fingerprint, launch, require_count, watch
from sparkd.agent.engine.rank import Running
from sparkd.base.lib.endings import Ending, Stage, StopRequested
from sparkd.base.lib.errors import Cause, ExitCode, LaunchError, SparkdError


def run(agent: Agent) -> ExitCode:
    """Bring this node's rank into service and monitor it. Returns the exit code."""
    try:
        with conclude_if_ended(agent):
            try:
                launch_and_serve(agent)
            except ReloadRequested:
                reload(agent)
    except StopRequested as request:
        shutdown_on_request(agent, agent.rank.running, request)
        return ExitCode.GOOD
    except SparkdError as error:
        return shutdown_on_error(agent, agent.rank.running, error)
    except OSError as error:
        # The machine fails (disk, docker's socket). That is no bug, and the rank must not be left running.
        hint = "look at: sudo dmesg; df -h"
        failure = LaunchError(f"{type(error).__name__}: {error}", hint, cause=Cause.SYSTEM_ERROR)
        return shutdown_on_error(agent, agent.rank.running, failure)


def endings(agent: Agent) -> tuple[Ending, ...]:
    """What may end a wait, in the order that decides between two that are seen at once.

    A request to stop, and the error of a task, come before all of these: `lib.endings.Endings` has them.
    """
    return (
        # The driver may take seconds to end a killed rank: another node's end in that time would seem to be the cause.
        Ending(agent.rank.raise_if_killed, until=Stage.CLOSING),
        Ending(agent.switching.watch),
        Ending(partial(_check_peers, agent), until=Stage.CLOSING),
        Ending(agent.rank.raise_if_ended),
        Ending(agent.rank.raise_if_halted),
        Ending(partial(raise_if_requested, agent)),
    )


def _check_peers(agent: Agent) -> None:
    agent.phase.sample_memory()
    agent.monitor.check()


def launch_and_serve(agent: Agent) -> NoReturn:
    """Start the rank and serve, until one of `endings` raises, or a step fails."""
    running = agent.rank.running or retry_while_blocked(agent, start)
    if not agent.context.is_head:
        follow_head(agent, running)  # to its end
    if not running.taken_over:
        make_ready(agent, running)
        try_out(agent, running)
        keep_rank(agent, running)
    serve(agent, running)


def start(agent: Agent) -> Running:
    """The steps up to a running rank. What a blocked try has read is read again."""
    agent.agreed.forget()
    share_config(agent)
    docker_was_up = agent.admission.check()
    backed_off = agent.backoff.wait()
    await_docker(agent)
    fingerprint(agent)
    if check_image(agent):
        agent.admission.check()
    require_count(agent)
    waited = wait_for_peers(agent)
    if backed_off or waited or not docker_was_up:
        # Minutes have passed, or docker came up only now: check again.
        await_docker(agent)
        fingerprint(agent)
        agent.admission.check()
        require_count(agent)
    join_epoch(agent)
    running = launch(agent)
    watch(agent, running)
    return running
