"""Bounds of a report: the length of its texts, the number of its items, and the size of its numbers."""

import math
from collections.abc import Mapping
from typing import TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from sparkd.base.lib.text import sanitize

TEXT_LIMIT = 1000
"""Characters of each text; a cause that quotes an engine has a few hundred."""
ITEMS_LIMIT = 100
"""Findings or versions of a report; preflight has some thirty checks."""
Value = TypeVar("Value", bound=Struct)


def bounded(value: Value, text_limit: int = TEXT_LIMIT, items_limit: int = ITEMS_LIMIT) -> Value:
    """A report, or a part of one, with each text on one line and cut, and only the first items of each list.

    Raises ValueError for a number that is not finite, or of more than 63 bits.
    """
    return cast("Value", _bound(value, text_limit, items_limit))


def _bound(value: object, text_limit: int, items_limit: int) -> object:
    match value:
        case str():
            return sanitize(value, text_limit)
        case int() | float() if abs(value) >= 1 << 63 or not math.isfinite(value):
            raise ValueError("number out of range")
        case tuple():
            return tuple(_bound(part, text_limit, items_limit) for part in value[:items_limit])
        case Mapping():
            names = list(value)[:items_limit]
            return {sanitize(name, text_limit): _bound(value[name], text_limit, items_limit) for name in names}
        case Struct():
            fields = {name: _bound(getattr(value, name), text_limit, items_limit) for name in value.__struct_fields__}
            return replace(value, **fields)
    return value
