"""Each format's own templating. Neither is ever used for the other: they read the same braces differently."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping

from msgspec import Struct, field

from sparkd.flags import LONGEST_TEXT_BYTES as LONGEST

_ROUNDS = 50
_LONGEST_SPEC = 32
_SPEC = re.compile(r"[^\d{}]*\d{0,3}(?:[^\d{}]+\d{0,3})?[^\d{}]*")
"""A format specification that cannot ask for gigabytes of blanks."""


class TemplateError(Exception):
    """The template cannot be filled in; says why."""


class Values(Struct):
    """What placeholders stand for; remembers which were asked for."""

    values: Mapping[str, object]
    used: set[str] = field(default_factory=set)

    def get(self, name: str) -> object:
        self.used.add(name)
        return self.values.get(name)


def formatted(template: str, values: Values) -> str:
    """Python's `str.format`, as eugr's run-recipe.py calls it: {{ and }} are braces, an unknown name is a fault."""
    formatter, parts, size = string.Formatter(), list[str](), 0
    try:
        for literal, name, spec, conversion in formatter.parse(_bounded(template)):
            text = literal
            if name is not None:
                text += _field(formatter, name, spec or "", conversion, values)
            size += len(text)
            if size > LONGEST:
                raise TemplateError(f"is longer than {LONGEST} characters once it is filled in")
            parts.append(text)
    except ValueError as error:
        raise TemplateError(f"{error}: a brace that is meant as one is written twice") from None
    return "".join(parts)


def _field(formatter: string.Formatter, name: str, spec: str, conversion: str | None, values: Values) -> str:
    shown = "{" + name[:60] + "}"
    if name not in values.values:
        values.used.add(name)
        raise TemplateError(f"{shown} is given no value; a brace that is meant as one is written twice")
    if len(spec) > _LONGEST_SPEC or not _SPEC.fullmatch(spec):
        raise TemplateError(f"{shown} has a format that is not taken: {spec[:60]}")
    value = formatter.convert_field(values.get(name), conversion)
    try:
        return format(value, spec)
    except (TypeError, ValueError) as error:
        raise TemplateError(f"{shown}: {error}") from None


def _bounded(template: str) -> str:
    if len(template) > LONGEST:
        raise TemplateError(f"is longer than {LONGEST} characters")
    return template


def substituted(template: str, values: Values) -> str:
    """sparkrun's: {name} by what it stands for, again until nothing changes; what is not known stays as it is."""
    text = _bounded(template)
    for _ in range(_ROUNDS):
        before, text = text, _round(text, values)
        if text == before:
            return text
    raise TemplateError("a placeholder stands for itself: filling in has no end")


def _round(text: str, values: Values) -> str:
    r"""What `\{(.*?)\}` finds, in one pass: a regular expression takes minutes over many braces that nothing closes."""
    parts, at, grown = list[str](), 0, len(text)
    while True:
        start = text.find("{", at)
        end = text.find("}", start)
        if start < 0 or end < 0:
            return "".join((*parts, text[at:]))
        line = text.rfind("\n", start, end) + 1
        if line:
            parts.append(text[at:line])
            at = line
            continue
        placeholder = text[start : end + 1]
        found = values.get(placeholder.strip("}{"))
        said = placeholder if found is None else str(found)
        grown += len(said) - len(placeholder)
        if grown > LONGEST:
            raise TemplateError(f"is longer than {LONGEST} characters once it is filled in")
        parts += (text[at:start], said)
        at = end + 1
