"""Templates of a foreign recipe's command, filled in by the rules of eugr's tool and of sparkrun.

The two tools interpret the same braces differently.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping

from msgspec import Struct, field

from sparkd.base.lib.text import did_you_mean
from sparkd.base.vllm.args import LONGEST_TEXT_BYTES as LONGEST
from sparkd.tools.importers.source import Overrides, Unusable
from sparkd.tools.importers.variables import CommandError, mark

_LONGEST_SPEC = 32
_SPEC = re.compile(r"[^\d{}]*\d{0,3}(?:[^\d{}]+\d{0,3})?[^\d{}]*")
"""Format specifications with widths below 1000, so that the result stays small."""
_CLOSED = re.compile(r"^.*\}", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{([^}\n]*)\}")
_BRACES = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]")
NAMED = re.compile(r"(?<!\$)\{[A-Za-z_]\w*\}")
"""A placeholder; ${NAME} is the shell's."""
_MASKED = {"{": "\0", "}": "\1"}


class Values(Struct):
    """Values of placeholders; records which were used."""

    values: Mapping[str, object]
    used: set[str] = field(default_factory=set)

    def get(self, name: str) -> object:
        self.used.add(name)
        return self.values.get(name)

    def check_overrides(self, overrides: Overrides, command: str) -> None:
        """Raises Unusable for an override that filled in nothing, and has no `$NAME` or `<NAME>` in the command."""
        for name in overrides:
            if name not in self.used and not re.search(rf"(?:\$\{{?|<){re.escape(name)}\b", command):
                known = did_you_mean(name, sorted(self.used))
                raise Unusable((), f"-o {name}: nothing in its command is filled in by that name{known}")


def format_template(template: str, values: Values) -> str:
    """Python's `str.format`, as eugr's run-recipe.py uses it: {{ and }} are braces. Raises CommandError for a name
    without a value.
    """
    formatter, text = string.Formatter(), ""
    try:
        for literal, name, spec, conversion in formatter.parse(_bounded(template)):
            text += literal
            if name is not None:
                text += _field(formatter, name, spec or "", conversion, values)
            _bounded(text, " once it is filled in")
    except ValueError as error:
        raise CommandError(f"{error}: a brace that is meant as one is written twice") from None
    return text


def _field(formatter: string.Formatter, name: str, spec: str, conversion: str | None, values: Values) -> str:
    placeholder = "{" + name[:60] + "}"
    if name not in values.values:
        values.used.add(name)
        raise CommandError(f"{placeholder} is given no value; a brace that is meant as one is written twice")
    # c is the character of a number, which may be none that can be written.
    if len(spec) > _LONGEST_SPEC or not _SPEC.fullmatch(spec) or spec.endswith("c"):
        raise CommandError(f"{placeholder} has a format that is not taken: {spec[:60]}")
    value = formatter.convert_field(values.get(name), conversion)
    try:
        return format(value, spec)
    except (TypeError, ValueError, OverflowError) as error:
        raise CommandError(f"{placeholder}: {error}") from None


def _bounded(text: str, when: str = "") -> str:
    if len(text) > LONGEST:
        raise CommandError(f"is longer than {LONGEST} characters{when}")
    return text


def substitute(template: str, values: Values) -> str:
    """sparkrun's rule: replaces {name} by its value until nothing changes. A name without a value gets a mark.

    Braces around another pair of braces are text. In a template with {{ somewhere, each {{ and }} becomes one brace;
    else }} stays two. Raises CommandError.
    """
    braces_left = 1 if "{{" in template else 2

    def mask(match: re.Match[str]) -> str:
        braces = match[0]
        if braces in ("{{", "}}"):
            return _MASKED[braces[0]] * braces_left
        return _MASKED[braces] if len(braces) == 1 else braces

    text = _BRACES.sub(mask, _bounded(template))
    for _ in range(10):
        before, text = text, _substitute_once(text, values)
        if text == before:
            break
    else:
        raise CommandError("a placeholder stands for itself: filling in has no end")
    text = NAMED.sub(lambda placeholder: mark(placeholder[0]), text)
    return text.replace(_MASKED["{"], "{").replace(_MASKED["}"], "}")


def _substitute_once(text: str, values: Values) -> str:
    size = len(text)

    def fill_in(placeholder: re.Match[str]) -> str:
        nonlocal size
        value = values.get(placeholder[1].strip("{"))
        text = placeholder[0] if value is None else str(value)
        size += len(text) - len(placeholder[0])
        if size > LONGEST:
            raise CommandError(f"is longer than {LONGEST} characters once it is filled in")
        return text

    # Limited to the part of each line up to its last brace, because many unclosed braces would take minutes.
    return _CLOSED.sub(lambda line: _PLACEHOLDER.sub(fill_in, line[0]), text)
