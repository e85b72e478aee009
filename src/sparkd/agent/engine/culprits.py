"""Who ended a rank from outside: another program that kills for want of memory, a client of dockerd, a user.

Evidence is what the killing program, dockerd, sudo or the kernel's audit says of the rank's container, or of a process
that was seen in it. Fields that journald sets itself say whose a line is: no user's program can write one of these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from msgspec import Struct, toml

from sparkd.base.host import Host, docker
from sparkd.base.host.journal import Line, Lines, Query, read_journal
from sparkd.base.host.kernel import names_container
from sparkd.base.lib import read_data
from sparkd.base.lib.dockerd.reader import DockerError
from sparkd.base.lib.errors import Cause
from sparkd.base.lib.text import format_clock, sanitize

WITHIN_SECONDS = 120.0
"""Span before the look: an engine ends within 12 s of a process that it lacks, on a machine that has memory."""
FORGED_US = 100_000
"""earlyoom prints its victim's command line as it is: lines that follow at once may be of that."""


class _Killers(Struct, frozen=True, forbid_unknown_fields=True):
    """Content of killers.toml."""

    matches: tuple[str, ...]
    said: tuple[tuple[str, str], ...]


_KILLERS = toml.decode(read_data("killers.toml"), type=_Killers)
_SAID = tuple((words, re.compile(pattern, re.ASCII)) for words, pattern in _KILLERS.said)


class Culprit(NamedTuple):
    text: str
    hint: str
    cause: Cause | None = None
    """None where it is not known who it was."""


def find_culprit(
    host: Host,
    container: tuple[str, str],
    pids: Collection[int],
    now: float,
    read: Callable[[Query, tuple[str, ...], float], Lines] = read_journal,
) -> Culprit:
    """Runs in a thread. `container`: id and name; `pids`: seen in it; `now`: the wall clock."""
    unread, events = list[str](), None

    def read_said(matches: tuple[str, ...]) -> tuple[Line, ...]:
        try:
            return read(Query(round((now - WITHIN_SECONDS) * 1e6)), matches, 2.5).lines
        except OSError as error:
            unread.append(f"; {sanitize(str(error))}")
            return ()

    program = _find_program(read_said(_KILLERS.matches), container[0], pids)
    if program is not None and program.cause is not None:
        return program
    try:
        events = docker.query(host, lambda reader: reader.events(container[0], now - WITHIN_SECONDS, now))
    except DockerError as error:
        unread.append(f"; {sanitize(str(error))}")
    if (culprit := find_client(events)) is None and program is not None:
        return program
    if culprit is None:
        text = f"neither the journal nor dockerd's events say who it was{''.join(unread)}"
        hint = "to have the next one named: sudo auditctl -a always,exit -F arch=b64 -S kill -S tgkill"
        return Culprit(text, hint)
    lines = read_said(("_SYSTEMD_UNIT=dgx-anti-oom.service",))
    if any(container[1] in line.text or container[0][:12] in line.text for line in lines):
        return culprit._replace(text=f"{culprit.text}: dgx-anti-oom", hint=_turn_off("dgx-anti-oom"))
    return culprit


def _find_program(lines: Iterable[Line], container_id: str, pids: Collection[int]) -> Culprit | None:
    """The last one. `lines`: oldest first."""
    culprit, forged_until = None, 0
    for line in lines:
        for words, pattern in _SAID if line.at_us >= forged_until else ():
            if (match := pattern.match(line.text)) is None:
                continue
            parts = match.groupdict()
            named = {int(pid) for pid in parts.get("pids", "").split()} | {int(parts.get("hex", "0"), 16)}
            if names_container(parts.get("group", ""), container_id) or not named.isdisjoint(pids):
                text, name = words.format(at=format_clock(line.at_us / 1e6), **parts), words.partition(" ")[0]
                cause = Cause.KILLED_FROM_OUTSIDE if "hex" not in parts else None
                culprit = Culprit(text, _turn_off(name) if "oom" in name else "", cause)
            forged_until = line.at_us + FORGED_US * words.startswith("earlyoom")
    return culprit


def find_client(events: object) -> Culprit | None:
    """Who sent the first deadly signal: docker stop has another one sent later."""
    for event in events if isinstance(events, list) else ():
        match event:
            case {"Action": "kill", "time": int(at), "Actor": {"Attributes": {"signal": str(number)}}}:
                if number in ("2", "3", "6", "9", "15"):
                    stops = number != "9"
                    client = f"as by docker {'stop' if stops else 'kill'}; its events do not name the client"
                    cause = Cause.ENGINE_STOPPED if stops else Cause.KILLED_FROM_OUTSIDE
                    return Culprit(f"dockerd sent signal {number} at {format_clock(at)}, {client}", "", cause)
    return None


def _turn_off(name: str) -> str:
    return f"sudo systemctl disable --now {name}; the guard of sparkd watches memory too"
