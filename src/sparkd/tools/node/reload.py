"""What `systemctl reload` of an agent runs: checks that this program can take the rank over, then reloads."""

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sparkd import __version__
from sparkd.agent.daemon.taking_over import AdoptableRank, find_adoptable_rank
from sparkd.base.config import units
from sparkd.base.host import Host
from sparkd.base.host.owner import OWNER_FILE, NodeOwner, read_account
from sparkd.base.lib.errors import BlockedError, NotReadyError
from sparkd.base.status.model import IN_SERVICE, PATH, NodeReport, parse, read_living_report, read_report

WAIT_SECONDS = 30.0
LEAST_SECONDS = 10
"""Seconds that the other nodes must wait for an agent: a reload takes less than one, on a busy machine some."""
UNCHANGED = "nothing has changed: the agent continues as it is"


class _FileTimes(NamedTuple):
    """When each file was written, since 1970. The new program writes the owner file first, then the report."""

    owner_ns: int
    report_ns: int


def reload(host: Host, show: Callable[[str], None]) -> None:
    """Reload the agent, and return once the new program has the rank.

    Raises BlockedError (exit 10) where nothing has happened, NotReadyError where it has not come up.
    """
    owner, report = read_account(host.files), read_living_report(host.files)
    if owner is None or report is None or owner.pid != report.pid or report.phase not in IN_SERVICE:
        last_report = parse(read_report(host.files))
        unit = f"sparkd-{last_report.role}" if last_report is not None else "sparkd-head; on a worker: sparkd-worker"
        remedy = f"to restart anyway, which ends a load: sudo systemctl restart {unit}"
        raise BlockedError(f"no agent that serves runs here; {UNCHANGED}", remedy)
    rank = _find_rank(host, owner, report)
    try:
        pidfd = os.pidfd_open(owner.pid)
    except ProcessLookupError:
        raise BlockedError(f"the agent has just ended; {UNCHANGED}", "sparkd status") from None
    try:
        current, times_before = read_account(host.files), _read_file_times(host)
        is_same = current is not None and (current.pid, current.start_time) == (owner.pid, owner.start_time)
        if not is_same or times_before is None:
            raise BlockedError(f"another agent has just begun; {UNCHANGED}", "try it again")
        signal.pidfd_send_signal(pidfd, signal.SIGHUP)
        _wait_for_service(host, owner, pidfd, times_before)
    finally:
        os.close(pidfd)
    show(f"sparkd {report.version} became sparkd {__version__}; the engine served on")
    if rank.kept.service != units.digest_service(report.role, rank.kept.configured):
        restart = f"sudo systemctl restart sparkd-{report.role}"
        show(f"its unit's [Service] has changed; this takes effect at the next restart: {restart}")
    else:
        show("nothing is to be done")


def _find_rank(host: Host, owner: NodeOwner, report: NodeReport) -> AdoptableRank:
    """The rank that the new program is to take over. Raises BlockedError where a reload would lose it."""
    restart, refusals = f"sudo systemctl restart sparkd-{report.role}", list[str]()
    rank = find_adoptable_rank(host, report.role, owner.invocation, refusals.append)
    if rank is None:
        reason = refusals[0] if refusals else "no guard would end its rank if this went wrong"
        raise BlockedError(f"{reason}; {UNCHANGED}", restart)
    for peer in report.peers:
        if peer.living is None:
            raise BlockedError(f"{peer.name} does not answer; {UNCHANGED}", "sparkd status; then try it again")
        if (seconds := peer.living.awaits_agents_seconds) < LEAST_SECONDS:
            reason = f"{peer.name} awaits another node's agent for {seconds} s, of {LEAST_SECONDS} that are needed"
            raise BlockedError(f"{reason}; {UNCHANGED}", f"its sparkd is {peer.living.version}; {restart}")
    return rank


def _wait_for_service(host: Host, owner: NodeOwner, pidfd: int, times_before: _FileTimes) -> None:
    """Wait until the process serves again, as the new program. Raises NotReadyError."""
    poll, deadline = select.poll(), time.monotonic() + WAIT_SECONDS
    poll.register(pidfd, select.POLLIN)
    reason = f"the agent has not taken its rank over within {WAIT_SECONDS:.0f} s"
    while time.monotonic() < deadline:
        report, times = read_living_report(host.files), _read_file_times(host)
        serves = report is not None and report.pid == owner.pid and report.phase in IN_SERVICE
        if times and times.owner_ns != times_before.owner_ns and times.report_ns >= times.owner_ns and serves:
            return
        if poll.poll(100):  # systemd starts the next one once this command has ended
            reason = "the agent ended, and the next one takes its rank over, or starts another"
            break
    raise NotReadyError(reason, "sparkd status; journalctl -u 'sparkd-*' -n 50")


def _read_file_times(host: Host) -> _FileTimes | None:
    """None where one of the files is missing."""
    with suppress(FileNotFoundError):
        return _FileTimes(*(Path(host.files.real(path)).stat().st_mtime_ns for path in (OWNER_FILE, PATH)))
    return None
