"""Finds who ended a rank from outside: another program that kills for want of memory, a client of dockerd, a user.

Evidence is what the killing program, dockerd, sudo or the kernel's audit logs of the rank's container, or of a process
that was seen in it. The lines are chosen by fields that journald sets itself, which no user's program can forge.
"""

import re
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from msgspec import Struct, toml

from sparkd.base.host import Host, docker
from sparkd.base.host.journal import Line, Lines, Query, read_journal
from sparkd.base.host.oom_kills import names_container
from sparkd.base.lib import read_data
from sparkd.base.lib.dockerd.reader import DockerError
from sparkd.base.lib.errors import Cause
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import format_clock

WITHIN_SECONDS = 120.0
"""Span of the search, back from now: an engine ends within 12 s after one of its processes, where memory is left."""
FORGED_US = 100_000
"""Lines that follow on a victim's command line within this time may be forged by it."""


class _Report(Struct, frozen=True, forbid_unknown_fields=True):
    """What a line of the journal reports; killers.toml explains the pattern's groups."""

    text: str
    """What it did, with {} for the pattern's groups."""
    pattern: str
    service: str = ""
    """The units of a program that watches memory as sparkd's guard does: the hint disables them. Empty for others."""
    quotes_victim: bool = False
    """Whether it prints its victim's command line as it is: the lines behind it may be forged by that."""


class _Killers(Struct, frozen=True, forbid_unknown_fields=True):
    """Content of killers.toml."""

    matches: tuple[str, ...]
    """Fields of journald that choose the lines."""
    reports: tuple[_Report, ...]


_KILLERS = toml.decode(read_data("killers.toml"), type=_Killers)
_REPORTS = tuple((report, re.compile(report.pattern, re.ASCII)) for report in _KILLERS.reports)


class Culprit(NamedTuple):
    text: str
    """What it did, and when."""
    hint: str
    cause: Cause | None = None
    """The cause of the rank's end; None where it is not known who it was."""


def find_culprit(
    host: Host,
    container: tuple[str, str],
    pids: Collection[int],
    now: float,
    read: Callable[[Query, tuple[str, ...], float], Lines] = read_journal,
) -> Culprit:
    """Search the journal, then dockerd's events. Raises nothing: what can't be read is part of the text.

    Call it in a thread: both may be slow. `container`: id and name; `pids`: seen in it; `now`: the wall clock.
    """
    read_errors = list[str]()

    def read_lines(matches: tuple[str, ...]) -> tuple[Line, ...]:
        try:
            return read(Query(round((now - WITHIN_SECONDS) * 1e6)), matches, 2.5).lines
        except OSError as error:
            read_errors.append(f"; {sanitize(str(error))}")
            return ()

    container_id, container_name = container
    killer = _find_killer(read_lines(_KILLERS.matches), container_id, pids)
    if killer is not None and killer.cause is not None:
        return killer
    try:
        culprit = find_signal(docker.query(host, lambda reader: reader.events(container_id, now - WITHIN_SECONDS, now)))
    except DockerError as error:
        read_errors.append(f"; {sanitize(str(error))}")
        culprit = None
    if culprit is None and killer is not None:
        return killer
    if culprit is None:
        text = f"neither the journal nor dockerd's events say who it was{''.join(read_errors)}"
        rule = "sudo auditctl -a always,exit -F arch=b64 -S kill -S tgkill"
        return Culprit(text, f"to have the next one named: sudo apt install auditd && {rule}")
    lines = read_lines(("_SYSTEMD_UNIT=dgx-anti-oom.service",))
    if any(container_name in line.text or container_id[:12] in line.text for line in lines):
        return culprit._replace(text=f"{culprit.text}: dgx-anti-oom", hint=_format_hint("dgx-anti-oom"))
    return culprit


def _find_killer(lines: Iterable[Line], container_id: str, pids: Collection[int]) -> Culprit | None:
    """The last program of which a line says that it killed a process of the rank. `lines`: oldest first."""
    culprit, forgeable_until = None, 0
    for line in lines:
        if line.at_us < forgeable_until:
            continue
        for report, pattern in _REPORTS:
            if (match := pattern.match(line.text)) is None:
                continue
            groups = match.groupdict()
            named_pids = {int(pid) for pid in groups.get("pids", "").split()} | {int(groups.get("hex", "0"), 16)}
            if names_container(groups.get("group", ""), container_id) or not named_pids.isdisjoint(pids):
                text = report.text.format(at=format_clock(line.at_us / 1e6), **groups)
                # A number in hex may be of another PID namespace: it may name another process.
                cause = Cause.KILLED_FROM_OUTSIDE if "hex" not in groups else None
                culprit = Culprit(text, _format_hint(report.service) if report.service else "", cause)
            if report.quotes_victim:
                forgeable_until = line.at_us + FORGED_US
    return culprit


def find_signal(events: object) -> Culprit | None:
    """The first deadly signal in dockerd's events, which name no client; docker stop sends another one later."""
    for event in events if isinstance(events, list) else ():
        match event:
            case {"Action": "kill", "time": int(at), "Actor": {"Attributes": {"signal": str(number)}}}:
                if number in ("2", "3", "6", "9", "15"):
                    is_stop = number != "9"
                    client = f"as by docker {'stop' if is_stop else 'kill'}; its events do not name the client"
                    cause = Cause.ENGINE_STOPPED if is_stop else Cause.KILLED_FROM_OUTSIDE
                    return Culprit(f"dockerd sent signal {number} at {format_clock(at)}, {client}", "", cause)
    return None


def _format_hint(name: str) -> str:
    return f"sudo systemctl disable --now {name}; the guard of sparkd watches memory too"
