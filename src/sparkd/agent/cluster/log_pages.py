"""A page of a node's journal: how it is requested, answered and parsed.

Each agent answers signed requests for lines of its own units, and for nothing else. The lines are those of journalctl,
not of this process: the cause of a failure was written by the process before. They are bounded on both sides, and one
request at a time is answered.
"""

import time
from contextlib import suppress
from typing import Annotated
from urllib.parse import parse_qs

import msgspec
from msgspec import Meta, Struct

from sparkd.base.host.journal import LATEST_US, Line, Lines, Query, read_journal
from sparkd.base.lib import prepared
from sparkd.base.lib.text import printable, sanitize
from sparkd.base.state.file import Codec

PATH = "/log"
NAME_LIMIT = 64


class LogPage(Struct, frozen=True):
    """One answer of a node."""

    node: Annotated[str, Meta(max_length=1000)]
    now_us: Annotated[int, Meta(ge=0, le=LATEST_US)]
    """The time of its clock."""
    lines: Lines
    trouble: Annotated[str, Meta(max_length=2000)] = ""
    """Why its journal can't be read."""


CODEC = Codec(LogPage)


def make_path(query: Query) -> str:
    return f"{PATH}?since={query.since_us}&until={query.until_us}&priority={query.priority}&engine={query.engine:d}"


def parse_query(text: str) -> Query | None:
    """The query of a request's path; None where it is invalid."""
    with suppress(KeyError, IndexError, ValueError):  # ValueError: of msgspec too
        fields = parse_qs(text, strict_parsing=True, max_num_fields=8)
        words = [fields[name][0] for name in ("since", "until", "priority", "engine")]
        if all(word.isascii() and word.isdigit() and len(word) <= 16 for word in words):
            return msgspec.convert((*map(int, words[:3]), words[3] != "0"), prepared(Query))
    return None


def answer(node: str, text: str) -> bytes:
    """The answer to a request's query; empty where the query is invalid."""
    query = parse_query(text)
    return b"" if query is None else CODEC.encode(read_page(node, query)).encode()


def read_page(node: str, query: Query) -> LogPage:
    """The page of this node. Takes as long as the journal is read."""
    try:
        lines, trouble = read_journal(query), ""
    except OSError as error:
        lines, trouble = Lines(()), sanitize(str(error), 1000)
    return LogPage(node, time.time_ns() // 1000, lines, trouble)


def parse(body: bytes) -> LogPage:
    """The page of another node, printable. Raises ValueError."""
    page = CODEC.decode(body)
    lines = (
        Line(line.at_us, sanitize(line.place, NAME_LIMIT), line.priority, printable(line.text))
        for line in page.lines.lines
    )
    name, is_cut = sanitize(page.node, NAME_LIMIT), page.lines.cut
    return LogPage(name, page.now_us, Lines(tuple(lines), is_cut), sanitize(page.trouble))
