"""Words for what is wrong with a key of a configuration file."""

from __future__ import annotations

import json


def said(key: tuple[str, ...], value: object) -> str:
    """`section.key = value`, as found, cut short."""
    try:
        found = json.dumps(value, default=str)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or lists in lists without end
        found = "(too long to print)"
    return f"{'.'.join(key)} = {found if len(found) <= 120 else found[:117] + '...'}"


def needed(message: str) -> str:
    """A validator's message in the words of sparkd."""
    return message.removeprefix("Value error, ").replace("Input should be", "must be")
