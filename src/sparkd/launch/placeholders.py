"""`{node.address}` and its like in a recipe's text. Every other brace stays as it is: JSON is full of them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from sparkd.flags import JsonValue
from sparkd.launch.plan import Node
from sparkd.nearest import did_you_mean

_PLACEHOLDER = re.compile(r"\{((?:node|head|cluster|model)\.[A-Za-z0-9_]*)\}")
_SET_BY = {"node.interface": "set fabric.interface", "node.hcas": "set fabric.hcas"}


def named(text: str) -> bool:
    """Whether there is a placeholder in it."""
    return _PLACEHOLDER.search(text) is not None


class PlaceholderError(Exception):
    """A placeholder that is not known, or has no value on this node; `hint` says what would give it one."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


class Placeholders(Struct, frozen=True):
    values: Mapping[str, str]

    @classmethod
    def of(cls, node: Node, model_path: str) -> Placeholders:
        """`model_path` as the container sees it."""
        return cls(
            {
                "node.address": node.address,
                "node.rank": str(node.rank),
                "node.interface": node.interface,
                "node.hcas": ",".join(node.hcas),
                "head.address": node.head_address,
                "cluster.size": str(node.cluster_size),
                "model.path": model_path,
            }
        )

    def text(self, template: str) -> str:
        return _PLACEHOLDER.sub(lambda match: self._value(match[1]), template)

    def value(self, template: JsonValue) -> JsonValue:
        """The value with every text in it filled in, keys left alone."""
        if isinstance(template, str):
            return self.text(template)
        if isinstance(template, list):
            return [self.value(one) for one in template]
        if isinstance(template, dict):
            return {key: self.value(one) for key, one in template.items()}
        return template

    def _value(self, name: str) -> str:
        if name not in self.values:
            raise PlaceholderError(f"there is no placeholder {{{name}}}{did_you_mean(name, self.values)}")
        if not self.values[name]:
            raise PlaceholderError(f"{{{name}}} is not known on this node", _SET_BY.get(name, ""))
        return self.values[name]
