"""Placeholders such as `{node.address}` in a recipe's texts. All other braces stay, because JSON contains many."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sparkd.lib.errors import ConfigError
from sparkd.lib.text import did_you_mean
from sparkd.vllm.args import JsonValue

_PLACEHOLDER = re.compile(r"\{((?:node|head|cluster|model)\.[A-Za-z0-9_]*)\}")
_SET_BY = {"node.interface": "set fabric.interface", "node.hcas": "set fabric.hcas"}


def has_placeholder(text: str) -> bool:
    return _PLACEHOLDER.search(text) is not None


def fill_text(template: str, values: Mapping[str, str], where: str) -> str:
    """Raises ConfigError, prefixed with `where`, for a placeholder that is unknown or has no value on this node."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            raise ConfigError(f"{where}: there is no placeholder {{{name}}}{did_you_mean(name, values)}")
        if not values[name]:
            raise ConfigError(f"{where}: {{{name}}} is not known on this node", _SET_BY.get(name, ""))
        return values[name]

    return _PLACEHOLDER.sub(value, template)


def fill_value(template: JsonValue, values: Mapping[str, str], where: str) -> JsonValue:
    """Fills every text of a JSON value except its keys. Raises ConfigError like `fill_text`."""
    if isinstance(template, str):
        return fill_text(template, values, where)
    if isinstance(template, list):
        return [fill_value(one, values, where) for one in template]
    if isinstance(template, dict):
        return {key: fill_value(one, values, where) for key, one in template.items()}
    return template
