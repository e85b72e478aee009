"""Drills (`sparkd drill`): a fault caused on purpose on this node, and the time until the node serves again."""

import signal
import time
from collections.abc import Callable

from msgspec import Struct

from sparkd.agent.actions.processes import signal_process
from sparkd.base.host import Host
from sparkd.base.host.processes import read_process
from sparkd.base.lib.errors import BlockedError, NotReadyError
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import format_duration
from sparkd.base.status.model import IN_SERVICE, NodeReport, read_living_report
from sparkd.base.status.publisher import status_line
from sparkd.tools.node.served import find_container

FAULTS = {
    "core": "kill -9 of vLLM's core, a process of the head's rank",
    "rank": "kill -9 of all of this node's rank",
    "agent": "kill -9 of sparkd's agent on this node",
}
CORE = "VLLM::EngineCore"
"""The title of that process in vLLM 0.8 to 0.33; a number may follow."""
LEAST_SECONDS, LOADS = 900.0, 3
"""The limit of a wait: LEAST_SECONDS, or LOADS times the last load's time where that is longer."""


class Target(Struct, frozen=True):
    """The process that a drill kills."""

    pid: int
    start_time: int
    container_id: str
    """Empty for the agent."""
    title: str


def find_target(fault: str, host: Host, report: NodeReport) -> Target:
    """The process for a fault of FAULTS. Raises BlockedError where this node has no such process."""
    if fault == "agent":
        return Target(report.pid, report.start_time, "", "sparkd's agent")
    container = find_container(host, report)
    if fault == "rank":
        if (first := read_process(host.files, container.pid)) is None:
            raise BlockedError(f"{container.name} has just ended by itself", "sparkd status")
        return Target(first.pid, first.start_time, container.id, f"the first process of {container.name}")
    for process in host.container_processes(container.pid, container.id):
        if " ".join(host.argv(process)).startswith(CORE):
            return Target(process.pid, process.start_time, container.id, CORE)
    raise BlockedError(f"no process of {container.name} is called {CORE}", "sudo sparkd drill rank")


def read_serving(host: Host) -> NodeReport:
    """The report of a node that serves. Raises BlockedError for any other, since a fault could end nothing."""
    report = read_living_report(host.files)
    if report is None or report.phase not in IN_SERVICE:
        state = status_line(report) if report is not None else "no agent runs"
        raise BlockedError(f"a drill needs an endpoint that serves: {sanitize(state)}", "sparkd status")
    return report


def foretell(fault: str, host: Host, role: str, load: float | None) -> str:
    """What a fault does to the endpoint, which the next agent may keep. `load`: seconds that the last one took."""
    from sparkd.agent.daemon.taking_over import find_adoptable_rank

    last = f"about {format_duration(load)}, as the last load took" if load else "as long as a load takes"
    gone, refusals = f"The endpoint is gone for {last}.", list[str]()
    if fault != "agent":
        return gone
    if find_adoptable_rank(host, role, "", refusals.append) is not None:
        return "The engine is to serve on."
    return f"The engine ends with it: {next(iter(refusals), 'its rank is not kept for the next agent')}. {gone}"


def kill(target: Target) -> None:
    """End the target. Raises BlockedError where it has ended meanwhile."""
    if not signal_process(signal.SIGKILL, target.pid, target.start_time, target.container_id):
        raise BlockedError(f"{target.title}, pid {target.pid}, has just ended by itself", "sparkd status")


def follow(
    report_before: NodeReport, host: Host, limit_seconds: float, show: Callable[[str], None]
) -> tuple[float, NodeReport]:
    """Show each step once the fault is noticed. Returns the seconds until the node serves again, and its report then.

    Raises NotReadyError where it does not serve within the limit.
    """
    began, shown_step, is_noticed = time.monotonic(), "", False
    while (seconds := time.monotonic() - began) <= limit_seconds:
        report = read_living_report(host.files)
        serving = report if report is not None and report.phase in IN_SERVICE else None
        is_noticed = is_noticed or serving is None or serving.launch_id != report_before.launch_id
        step = report.phase.value if report is not None else "no agent"
        if is_noticed and step != shown_step:
            shown_step = step
            show(f"{seconds:7.1f} s  {sanitize(status_line(report)) if report is not None else 'no agent runs'}")
        if is_noticed and serving is not None:
            return seconds, serving
        time.sleep(0.25)
    late = f"it does not serve again {limit_seconds:.0f} s after the fault"
    reason = late if is_noticed else "nothing has noticed it"
    raise NotReadyError(reason, f"journalctl -u sparkd-{report_before.role} -n 100; sudo sparkd capture")
