"""The agent on its way to another plan, as a command follows it: its reports, the outcome, and why it went back."""

import re
import time
from collections.abc import Callable, Iterator

from sparkd.base.host import Host
from sparkd.base.lib.errors import Cause, NotReadyError
from sparkd.base.lib.text import sanitize
from sparkd.base.state import launch_history
from sparkd.base.state.launch_history import End, LaunchHistory
from sparkd.base.state.switch import Stage, Switch, label
from sparkd.base.status.model import IN_SERVICE, NodeReport, read_living_report
from sparkd.base.status.publisher import status_line
from sparkd.tools.node.switching import read_choice

_NUMBER = re.compile(r"[0-9]+")
"""Left out where two lines of status are compared, so that a change of counts alone is not shown."""

POLL_SECONDS = 0.5
GONE_SECONDS = 30.0
"""Time without an agent after which none is expected any more: systemd starts the next one within seconds."""


def follow(switch: Switch, host: Host, show: Callable[[str], None], gone_seconds: float = GONE_SECONDS) -> str:
    """Show what the agent does, until the new plan is in force, or the one before is again.

    Returns "", or the reason for the return. Raises NotReadyError where no agent runs any more.
    """
    shown_step = ""
    for report in follow_agent(host, gone_seconds):
        if (outcome := find_outcome(switch, read_choice(host))) is not None:
            return "" if outcome else _explain_return(switch, host, gone_seconds)
        if report is not None:
            line = sanitize(status_line(report))
            if (step := _NUMBER.sub("", line)) != shown_step:
                shown_step = step
                show(line)
    raise NotReadyError("no agent runs any more", "systemctl status sparkd-head")


def _explain_return(switch: Switch, host: Host, gone_seconds: float) -> str:
    """Why the node has returned to the plan before the switch."""
    end = await_end(host, lambda last: last.cause == Cause.SWITCH_FAILED and last.at > switch.chosen_at, gone_seconds)
    return sanitize(str(end), 1000) if end is not None else f"{label(switch.to)} is not in force: sparkd status"


def find_outcome(switch: Switch, choice: Switch | None) -> bool | None:
    """Whether the new plan is in force (true), or can't come into force any more; None while that is open. Pure."""
    if choice is None or choice.stage is Stage.IN_FORCE:
        return (choice.to if choice is not None else None) == switch.to
    return None if choice.chosen_at == switch.chosen_at and choice.stage is not Stage.RETURNING else False


def await_end(host: Host, counts: Callable[[End], bool], gone_seconds: float = GONE_SECONDS) -> End | None:
    """Wait for an end that counts, which an agent writes once its rank has ended; None after `gone_seconds`."""
    deadline = time.monotonic() + gone_seconds
    while (end := (launch_history.FILE.read(host.files) or LaunchHistory()).last_exit) is None or not counts(end):
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_SECONDS)
    return end


def await_service(host: Host, seconds: float, gone_seconds: float = GONE_SECONDS) -> bool | None:
    """Wait until the engine serves, for about `seconds`; return whether it does, None where no agent runs any more."""
    began = time.monotonic()
    for report in follow_agent(host, gone_seconds):
        if report is not None and report.phase in IN_SERVICE:
            return True
        if time.monotonic() - began > seconds:
            return False
    return None


def follow_agent(host: Host, gone_seconds: float) -> Iterator[NodeReport | None]:
    """Yield the report of the agent that runs, every half second, None without one; end after `gone_seconds`."""
    alive_at = time.monotonic()
    while (report := read_living_report(host.files)) is not None or time.monotonic() - alive_at <= gone_seconds:
        alive_at = time.monotonic() if report is not None else alive_at
        yield report
        time.sleep(POLL_SECONDS)
