"""Lines of the journal of sparkd's units, read by journalctl: the journal's files have no other stable reader."""

import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Annotated, TypeVar

from msgspec import Meta, Struct

from sparkd.base.host.files import Files
from sparkd.base.host.units import OWN_UNITS
from sparkd.base.lib import start_thread
from sparkd.base.lib.redactor import Redactor
from sparkd.base.lib.text import parse_json, printable

MOST_LINES, MOST_BYTES = 2_000, 4 << 20
"""Limits of one answer, its bytes as JSON: there a letter of another script takes six, an emoji twelve."""
LINE_LIMIT = 16_384
"""Characters, as of a line of the engine."""
PRINTED_BYTES = 32 << 20
"""Limit of what journalctl prints for one answer, most of which may be lines that are not wanted."""
READ_SECONDS = 5.0
ENGINE = "engine| "
"""The agent puts it before each line of the engine, so that no client's text passes for an event."""
LATEST_US = 1 << 53
"""Microseconds since 1970: the year 2255."""
T = TypeVar("T")


class RefusedError(OSError):
    """journalctl ended with an exit code: it has no such boot, or takes no such option."""


class Query(Struct, frozen=True, array_like=True):
    """Which lines are wanted. `priority`: of syslog(3), this and more urgent ones; `engine`: only the engine's."""

    since_us: Annotated[int, Meta(ge=0, le=LATEST_US)]
    until_us: Annotated[int, Meta(ge=0, le=LATEST_US)] = LATEST_US
    priority: Annotated[int, Meta(ge=0, le=7)] = 7
    engine: bool = False


class Line(Struct, frozen=True):
    at_us: Annotated[int, Meta(ge=0, le=LATEST_US)]
    """Since 1970, by this machine's clock."""
    place: Annotated[str, Meta(max_length=64)]
    """The line's place in the journal: two lines may have one time."""
    priority: Annotated[int, Meta(ge=0, le=7)]
    text: Annotated[str, Meta(max_length=LINE_LIMIT)]


class Lines(Struct, frozen=True):
    lines: Annotated[tuple[Line, ...], Meta(max_length=MOST_LINES)]
    """Oldest first."""
    cut: bool = False
    """Whether older ones are left out."""


def read_journal(query: Query, matches: Sequence[str] = (), seconds: float = READ_SECONDS) -> Lines:
    """The newest lines that fit, without likely secrets; without `matches` those of sparkd's units.

    Raises OSError where journalctl can't be run, or fails.
    """
    options = ["--output-fields=MESSAGE,PRIORITY", f"--priority={query.priority}"]
    options += [f"--since={_format_time(query.since_us)}", f"--until={_format_time(query.until_us)}"]
    options += matches or [f"--unit={unit}" for unit in OWN_UNITS]
    lines, is_whole = run_journalctl(options, lambda printed: take_wanted(printed, query), seconds)
    return Lines(tuple(reversed(lines)), cut=not is_whole)


def take_wanted(printed: Iterable[bytes], query: Query, most_bytes: int = PRINTED_BYTES) -> tuple[list[Line], bool]:
    """The wanted lines, newest first, and whether these are all. `printed`: by journalctl --output=json --reverse."""
    lines, dumped_bytes, size_bytes, redact = list[Line](), 0, 0, Redactor()
    for document in printed:
        size_bytes += len(document)
        line = parse_line(document, redact)
        if line is None or (query.engine and not line.text.startswith(ENGINE)):
            continue
        dumped_bytes += len(json.dumps(line.text))
        if len(lines) == MOST_LINES or dumped_bytes > MOST_BYTES or size_bytes > most_bytes:
            return lines, False
        lines.append(line)
    return lines, True


def parse_line(printed: bytes, redact: Callable[[str], str]) -> Line | None:
    """The line of a JSON document of journalctl's; None for anything else. `redact` removes likely secrets."""
    with suppress(ValueError):
        match parse_json(printed):
            case {"__CURSOR": str(cursor), **fields}:
                at_us = parse_number(fields.get("__REALTIME_TIMESTAMP"), LATEST_US)
                text = decode_message(fields.get("MESSAGE"))
                priority = parse_number(fields.get("PRIORITY"), 7)
                if at_us is not None and text is not None:
                    place = next((part[2:66] for part in cursor.split(";") if part.startswith("i=")), "")
                    text = printable(redact(text))[:LINE_LIMIT]
                    return Line(at_us, place, 6 if priority is None else priority, text)
    return None


def read_warnings(files: Files, most: int) -> tuple[Line, ...]:
    """The agent's warnings and errors of the last day, newest first; not its engine's, which have what clients send.

    Raises OSError as `read_journal`.
    """
    if files.root != "/":
        return ()
    redact, engine = Redactor(), f'"MESSAGE":"{ENGINE}'.encode()

    def collect(printed: Iterable[bytes]) -> tuple[list[Line], bool]:
        # Clients may cause long lines of the engine: parsing and redacting 2,000 of 16 KB takes 10 s of CPU.
        own = (document for document in islice(printed, MOST_LINES) if engine not in document)
        lines = (parse_line(document, redact) for document in own)
        return list(islice((line for line in lines if line and not line.text.startswith(ENGINE)), most)), False

    options = ["--output-fields=MESSAGE,PRIORITY", "--priority=4", "--since=-1d"]
    return tuple(run_journalctl([*options, *(f"--unit={unit}" for unit in OWN_UNITS)], collect)[0])


def run_journalctl(
    options: Sequence[str], collect: Callable[[Iterable[bytes]], tuple[list[T], bool]], seconds: float = READ_SECONDS
) -> tuple[list[T], bool]:
    """The list that `collect` makes of the printed lines, newest first, and whether it has read all of them."""
    command = ["journalctl", "--no-pager", "--quiet", "--all", "--reverse", "--output=json", *options]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = threading.Timer(seconds, process.kill)
        try:
            start_thread(deadline)
            collected, is_whole = collect(process.stdout or ())
            if not is_whole:
                process.kill()
            errors = process.stderr.read(1000) if process.stderr else b""
            code = process.wait()
        finally:
            deadline.cancel()
            process.kill()
    if code > 0:
        raise RefusedError(f"journalctl: {printable(errors.decode('utf-8', 'replace')).strip() or f'exit code {code}'}")
    if code < 0 and is_whole and not collected:
        raise OSError(f"journalctl found nothing in {seconds:g} s, and was ended")
    return collected, is_whole and code >= 0


def _format_time(at_us: int) -> str:
    seconds, microseconds = divmod(at_us, 1_000_000)
    return f"@{seconds}.{microseconds:06}"


def decode_message(message: object) -> str | None:
    """The message as text: journalctl prints what is not UTF-8, or not printable, as a list of bytes."""
    if isinstance(message, str):
        return message
    if isinstance(message, list):
        with suppress(TypeError, ValueError):
            return bytes(message).decode("utf-8", "replace")
    return None


def parse_number(value: object, most: int) -> int | None:
    """The number of a field's digits; None for another value, and for more than `most`."""
    if isinstance(value, str) and len(value) <= len(str(most)) and value.isascii() and value.isdigit():
        return number if (number := int(value)) <= most else None
    return None
