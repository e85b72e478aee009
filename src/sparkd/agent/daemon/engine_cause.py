"""Judges why an engine ended, by its log and by what has happened on the machine, and looks for the latter."""

import time
from contextlib import closing, suppress
from typing import NamedTuple

from sparkd.agent.engine.load_progress import LoadProgress
from sparkd.agent.engine.log_patterns import GONE
from sparkd.base.host import Host, docker, kernel, meminfo
from sparkd.base.host.oom_kills import find_oom_kills, names_container
from sparkd.base.lib.dockerd.reader import DockerError
from sparkd.base.lib.errors import Cause
from sparkd.base.lib.times import format_clock

EXIT_CODE_SECONDS = 0.5
"""Limit for docker to know the exit code. It knows a container's end some 20 ms after the kernel does (seen)."""
UNKNOWN_CODE = "unknown (docker does not report it)"
KILLED_CODE, TERMINATED_CODE = "137", "143"
"""Exit codes: 128 and SIGKILL, SIGTERM."""
OOM_SECONDS = 120.0
"""Longest time from the kernel's kill of a process to the rank's end: seconds, once the machine has memory again."""
KERNEL_OOM = "the kernel has killed for want of memory since its start: journalctl -k -g oom-kill"
DOCKER_ENDED = "dockerd was stopped or restarted, and ended its containers; live-restore in daemon.json would keep them"


class MachineFacts(NamedTuple):
    """What has happened since a rank's start."""

    docker_ended: bool = False
    """Dockerd has ended, and its containers with it."""
    oom_killed: bool = False
    """The kernel has killed processes for want of memory since just before the rank's start."""
    oom_victim: str = ""
    """Which process of the rank the kernel has killed for want of memory lately; empty where its log names none."""


def find_cause(
    progress: LoadProgress, code: str, machine: MachineFacts, now: float, *, ready: bool
) -> tuple[Cause, str]:
    """The cause, and a text, empty where nothing is known: what was done to the rank counts before its log. Pure.

    `code`: the exit code; empty where the rank did not end. `now`: monotonic. `ready`: clients were served.
    """
    cause, proven = progress.root_cause(now), progress.proven_cause(now)
    if machine.docker_ended:
        return Cause.DOCKER_RESTARTED, DOCKER_ENDED
    quotation = f" ({proven})" if proven else ""
    if machine.oom_victim:
        return Cause.KERNEL_OOM, machine.oom_victim + quotation
    if progress.stopped_by_signal(now) or code == TERMINATED_CODE:
        return Cause.ENGINE_STOPPED, "somebody else than sparkd stopped it, as by docker stop"
    is_killed = _is_killed(progress, code, proven, now, ready=ready)
    if cause and not is_killed and (proven or not progress.serving):
        return Cause.ENGINE_ERROR, cause
    if machine.oom_killed:
        return Cause.KERNEL_OOM, KERNEL_OOM + quotation
    if is_killed:
        manner = "killed" if proven == GONE else "killed by signal 9"
        return Cause.KILLED_FROM_OUTSIDE, f"{manner} from outside, not by sparkd{quotation}"
    return Cause.ENGINE_ENDED, cause


def _is_killed(progress: LoadProgress, code: str, proven_cause: str, now: float, *, ready: bool) -> bool:
    """Whether it was killed: the log shows it, or exit code 137 does, unless a proven cause explains that code.

    In service none does, since a client can forge the log. A warning of NCCL's, a mere symptom, is no cause.
    """
    is_explained = proven_cause and not (ready or progress.serving)
    return (code == KILLED_CODE and not is_explained) or progress.killed(now)


def has_docker_ended(host: Host, dockerd_pid: str) -> bool:
    """Whether dockerd has ended since the rank's start. For a thread: a look at its process may hang.

    `dockerd_pid`: as the rank's record has it; empty where dockerd's end does not end the rank.
    """
    return bool(dockerd_pid) and (not docker.running(host) or docker.daemon_replaced(host, dockerd_pid))


def find_oom_kill(host: Host, container_id: str, count_before: int | None) -> tuple[bool, str]:
    """Whether the kernel has killed for want of memory since the start, and whom of the rank. For a thread.

    `count_before`: the kernel's count of kills at the start; None where it was unreadable.
    """
    count = meminfo.read_oom_kill_count(host.files)
    has_grown = count is not None and count_before is not None and count > count_before
    # The kernel's log has a clock of its own, which nothing sets right.
    now = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    try:
        kills = [kill for kill in find_oom_kills(kernel.read_log(host.files)) if now - kill.seconds < OOM_SECONDS]
    except OSError:
        return has_grown, ""
    victims = [kill for kill in kills if names_container(kill.group, container_id)]
    if victims:
        killed_at = format_clock(time.time() - (now - victims[-1].seconds))
        return True, f"the kernel killed for want of memory at {killed_at}: {victims[-1].text}"
    # The log may lack one of many; an old kill, or of another container or user at its own limit, ended no rank now.
    return has_grown and not all(kill.limit for kill in kills), ""


def read_exit_code(host: Host, container_id: str) -> str:
    """The container's exit code. It proves little: vLLM exits with 0 after most failures. For a thread."""
    deadline = time.monotonic() + EXIT_CODE_SECONDS
    with suppress(OSError, DockerError), closing(host.docker_reader()) as reader:
        while docker.running(host) and time.monotonic() < deadline:
            if (code := docker.exit_code(reader, container_id)) is not None:
                return str(code)
            time.sleep(0.02)
    return UNKNOWN_CODE
