"""The last lines in the journal of the boot before this one: the machine's, and those of sparkd's units."""

import heapq
from collections.abc import Callable, Iterable
from contextlib import suppress

from msgspec import Struct

from sparkd.base.host.files import Files
from sparkd.base.host.journal import LATEST_US, LINE_LIMIT, RefusedError, decode_message, parse_number, run_journalctl
from sparkd.base.host.units import OWN_UNITS
from sparkd.base.lib.redactor import Redactor
from sparkd.base.lib.text import parse_json


class BootLine(Struct, frozen=True):
    """`source`: kernel, journald, systemd or sparkd, which nobody else can write."""

    at_seconds: float
    source: str
    text: str


def read_last_boot(files: Files, seconds: float = 12) -> tuple[BootLine, ...]:
    """The last lines of the boot before this one, newest first; none where the journal does not have it.

    Raises OSError where that is not known, as after `seconds`, which each of two calls of journalctl gets.
    """
    if files.root != "/":  # a tree's are not this machine's
        return tuple(files.recorded("last-boot", list[BootLine]) or ())
    redact = Redactor()

    def take_all(printed: Iterable[bytes]) -> tuple[list[BootLine], bool]:
        return list(filter(None, (parse_boot_line(line, redact) for line in printed))), True

    # A loud engine crowds out no line of the kernel or of systemd: sparkd's own lines have a limit of their own.
    machines = ("--lines=300", "_TRANSPORT=kernel", "+", "_TRANSPORT=driver", "+", "_PID=1")
    own = ("--lines=100", *(f"_SYSTEMD_UNIT={unit}" for unit in OWN_UNITS))
    try:
        groups = [run_journalctl(["--boot=-1", *options], take_all, seconds)[0] for options in (machines, own)]
    except (FileNotFoundError, RefusedError):
        return ()
    return tuple(heapq.merge(*groups, key=lambda line: line.at_seconds, reverse=True))


def parse_boot_line(printed: bytes, redact: Callable[[str], str]) -> BootLine | None:
    """The line without likely secrets; None where others may have written it: only journald sets fields with _."""
    with suppress(ValueError):
        match parse_json(printed):
            case {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", **fields}:
                source = "kernel"
            case {"_TRANSPORT": "driver", **fields}:
                source = "journald"
            case {"_TRANSPORT": "journal", "_PID": "1", **fields}:
                source = "systemd"
            case {"_SYSTEMD_UNIT": str(unit), "_UID": "0", **fields} if unit in OWN_UNITS:
                source = "sparkd"
            case _:
                return None
        at_us = parse_number(fields.get("__REALTIME_TIMESTAMP"), LATEST_US) or 0
        return BootLine(at_us / 1e6, source, redact(decode_message(fields.get("MESSAGE")) or "")[:LINE_LIMIT])
    return None
