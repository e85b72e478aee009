"""The life of a node's agent, from preflight to its last report. One launch a life: systemd begins the next one.

    preflight -> cool -> await docker -> survey -> await peers -> launch -> make ready -> watch -> stop, or mourn

Each step either ends well, or raises what ended the life. Nothing here starts anything twice. A worker lives as its
head does, but that it accompanies the engine where the head makes ready and watches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkd.ending import mourn, stop
from sparkd.errors import ExitCode, LaunchError, SparkdError
from sparkd.pulse import StopRequested
from sparkd.rendezvous import await_peers, enter_epoch
from sparkd.service import accompany, make_ready, watch
from sparkd.steps import await_docker, cool, examine, launch, survey

if TYPE_CHECKING:
    from sparkd.agent import Agent
    from sparkd.launch.start import Running


def live(agent: Agent) -> ExitCode:
    """Bring this node's rank into service and watch it. Ends with the code that says why it ended."""
    running: Running | None = None
    try:
        docker_was_up = examine(agent)
        cooled = cool(agent)
        await_docker(agent)
        survey(agent)
        waited = await_peers(agent)
        if cooled or waited or not docker_was_up:
            # Minutes have passed, or containers can be seen that nobody could ask about before.
            survey(agent)
            examine(agent)
        enter_epoch(agent)
        running = launch(agent)
        if not agent.context.is_head:
            accompany(agent, running)
        make_ready(agent, running)
        watch(agent, running)
    except StopRequested:
        stop(agent, running)
        return ExitCode.GOOD
    except SparkdError as error:
        return mourn(agent, running, error)
    except OSError as error:
        # The machine itself fails (disk, docker's socket): no bug, and the rank must not be left behind.
        return mourn(agent, running, LaunchError(f"{type(error).__name__}: {error}", "look at: dmesg, df -h"))
