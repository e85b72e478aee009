"""What `-o key=value` puts in the place of a recipe's defaults."""

from __future__ import annotations

from sparkd.errors import UsageError
from sparkd.nearest import did_you_mean
from sparkd.recipes.imports.source import Overrides, Unusable
from sparkd.recipes.imports.templates import Values

_LONGEST_NUMBER = 300


def parse(words: list[str]) -> Overrides:
    """Raises UsageError."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise UsageError(f"-o {word}: must be KEY=VALUE, such as -o port=9000")
        found[name] = value
    return found


def all_used(given: Overrides, values: Values) -> None:
    """Raises Unusable for an override that changes nothing."""
    for name in given:
        if name not in values.used:
            known = did_you_mean(name, sorted(values.used))
            raise Unusable((), f"-o {name}: nothing in its command is filled in by that name{known}")


def whole(text: str) -> int:
    """Python's own `int`, but for numbers that nobody means. Raises ValueError."""
    if len(text) > _LONGEST_NUMBER:
        raise ValueError("too long")
    return int(text)
