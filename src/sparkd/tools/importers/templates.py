"""Templates of a foreign recipe's command, filled in by the rules of eugr's tool and of sparkrun.

The two tools interpret the same braces differently.
"""

import re
import string
from collections.abc import Mapping

from msgspec import Struct, field

from sparkd.base.lib.text import did_you_mean
from sparkd.base.vllm.args import LONGEST_ARGUMENT
from sparkd.tools.importers.marks import mark
from sparkd.tools.importers.source import Overrides, UnusableRecipeError
from sparkd.tools.importers.variables import CommandError

_SPEC = re.compile(r"[^\d{}]*\d{0,3}(?:[^\d{}]+\d{0,3})?[^\d{}]*")
"""Format specifications with widths below 1000, so that the result stays small."""
_UP_TO_LAST_BRACE = re.compile(r"^.*\}", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{([^}\n]*)\}")
_BRACES = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]")
NAMED = re.compile(r"(?<!\$)\{[A-Za-z_]\w*\}")
"""A placeholder; ${NAME} is the shell's."""
_MASKS = {"{": "\0", "}": "\1"}
"""Characters in place of braces that are text, while placeholders are filled in."""


class Values(Struct):
    """Values of placeholders; records which were used."""

    values: Mapping[str, object]
    used: set[str] = field(default_factory=set)

    def get(self, name: str) -> object:
        """The value, or None; the name counts as used either way."""
        self.used.add(name)
        return self.values.get(name)

    def check_overrides(self, overrides: Overrides, command: str) -> None:
        """Raises UnusableRecipeError for an override that filled in nothing, and has no such blank in the command."""
        for name in overrides:
            if name not in self.used and not re.search(rf"(?:\$\{{?|<){re.escape(name)}\b", command):
                known = did_you_mean(name, sorted(self.used))
                raise UnusableRecipeError((), f"-o {name}: nothing in its command is filled in by that name{known}")


def format_template(template: str, values: Values) -> str:
    """Fill in a template by Python's `str.format`, as eugr's run-recipe.py does: {{ and }} are braces.

    Raises CommandError, also for a name without a value.
    """
    formatter, text = string.Formatter(), ""
    try:
        for literal, name, spec, conversion in formatter.parse(_check_length(template)):
            text += literal
            if name is not None:
                text += _format_field(formatter, name, spec or "", conversion, values)
            _check_length(text, " once it is filled in")
    except ValueError as error:
        raise CommandError(f"{error}: a brace that is meant as one is written twice") from None
    return text


def _format_field(formatter: string.Formatter, name: str, spec: str, conversion: str | None, values: Values) -> str:
    placeholder = "{" + name[:60] + "}"
    if name not in values.values:
        values.used.add(name)
        raise CommandError(f"{placeholder} is given no value; a brace that is meant as one is written twice")
    # Format c makes a character of a number, possibly one that can't be encoded.
    if len(spec) > 32 or not _SPEC.fullmatch(spec) or spec.endswith("c"):
        raise CommandError(f"{placeholder} has a format that is not taken: {spec[:60]}")
    value = formatter.convert_field(values.get(name), conversion)
    try:
        return format(value, spec)
    except (TypeError, ValueError, OverflowError) as error:
        raise CommandError(f"{placeholder}: {error}") from None


def _check_length(text: str, when: str = "") -> str:
    """Return the text. Raises CommandError where it is too long; `when` ends the message."""
    if len(text) > LONGEST_ARGUMENT:
        raise CommandError(f"is longer than {LONGEST_ARGUMENT} characters{when}")
    return text


def substitute(template: str, values: Values) -> str:
    """Fill in a template by sparkrun's rule: replace {name} until nothing changes. A name without a value gets a mark.

    Braces around another pair of braces are text. In a template with {{ somewhere, each {{ and }} becomes one brace;
    else }} stays two. Raises CommandError.
    """
    braces_left = 1 if "{{" in template else 2

    def mask(match: re.Match[str]) -> str:
        braces = match[0]
        if braces in ("{{", "}}"):
            return _MASKS[braces[0]] * braces_left
        return _MASKS[braces] if len(braces) == 1 else braces

    text = _BRACES.sub(mask, _check_length(template))
    for _ in range(10):
        previous_text, text = text, _substitute_once(text, values)
        if text == previous_text:
            break
    else:
        raise CommandError("a placeholder stands for itself: filling in has no end")
    text = NAMED.sub(lambda placeholder: mark(placeholder[0]), text)
    return text.replace(_MASKS["{"], "{").replace(_MASKS["}"], "}")


def _substitute_once(text: str, values: Values) -> str:
    size = len(text)

    def fill_in(placeholder: re.Match[str]) -> str:
        nonlocal size
        value = values.get(placeholder[1].strip("{"))
        replacement = placeholder[0] if value is None else str(value)
        size += len(replacement) - len(placeholder[0])
        if size > LONGEST_ARGUMENT:
            raise CommandError(f"is longer than {LONGEST_ARGUMENT} characters once it is filled in")
        return replacement

    # Only the part of each line up to its last } is searched: many unclosed { would take minutes.
    return _UP_TO_LAST_BRACE.sub(lambda line: _PLACEHOLDER.sub(fill_in, line[0]), text)
