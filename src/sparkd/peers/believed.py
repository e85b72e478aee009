"""Another node's report, once its signature was right: read, and bounded. A key says who speaks, not that it is sane.

What it says goes into this node's report, journal and reasons, and from there to others again: with no bound, two nodes
that quote each other would grow without end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from sparkd.lib.text import sanitize
from sparkd.report.node_report import NodeReport, parse

TEXT_LIMIT = 1000
"""Characters of each text: a cause that quotes an engine takes a few hundred."""
ITEMS_LIMIT = 100
"""Findings and versions: preflight has some twenty checks."""
NUMBER_LIMIT = 1 << 63


class _AbsurdError(ValueError):
    """A number that means nothing."""


def believed(body: bytes, rank: int) -> NodeReport | None:
    """The report of this rank, without the peers that it knows, its texts sanitized; None where it is none."""
    report = parse(body.decode("utf-8", "replace"))
    if report is None or report.rank != rank:
        return None
    try:
        return cast("NodeReport", _bounded(replace(report, peers=())))
    except _AbsurdError:
        return None


def _bounded(value: object) -> object:
    if isinstance(value, str):
        return sanitize(value, TEXT_LIMIT)
    if isinstance(value, (int, float)):
        if abs(value) >= NUMBER_LIMIT or not math.isfinite(value):
            raise _AbsurdError
        return value
    if isinstance(value, tuple):
        return tuple(_bounded(one) for one in value[:ITEMS_LIMIT])
    if isinstance(value, Mapping):
        return {_bounded(name): _bounded(one) for name, one in list(value.items())[:ITEMS_LIMIT]}
    if isinstance(value, Struct):
        return replace(value, **{name: _bounded(getattr(value, name)) for name in value.__struct_fields__})
    return value
