"""Placeholders of a recipe, such as {node.address}: their values on a node, and how texts are filled with them."""

import re
from collections.abc import Mapping

from sparkd.base.lib.errors import AwaitedError, ConfigError
from sparkd.base.lib.text import did_you_mean
from sparkd.base.plan.model import Node
from sparkd.base.recipes.schema import PLACEHOLDER
from sparkd.base.vllm.args import LONGEST_ARGUMENT, LONGEST_COMMAND, JsonValue

_SET_BY = {"node.interface": "set fabric.interface", "node.hcas": "set fabric.hcas"}
"""Placeholders whose values come with the fabric, each with the setting that can give one."""


def list_values(node: Node, model_target: str) -> Mapping[str, str]:
    return {
        "node.address": node.address,
        "node.rank": str(node.rank),
        "node.interface": node.interface,
        "node.hcas": ",".join(node.hcas),
        "node.compile_jobs": node.compile_jobs,
        "head.address": node.head_address,
        "cluster.size": str(node.cluster_size),
        "model.path": model_target,
    }


class Filler:
    """Fills the texts of one plan, which have a bound together: else a recipe of 1 MB fills gigabytes."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values, self._characters_left = values, LONGEST_COMMAND

    def fill_text(self, template: str, where: str) -> str:
        """Replace the placeholders. Raises ConfigError, prefixed with `where`, for one that is unknown or has no value,
        and for too long a text once it is filled in; AwaitedError where the value may come with the fabric.
        """

        def find_value(match: re.Match[str]) -> str:
            name = match[1]
            if name not in self._values:
                raise ConfigError(f"{where}: there is no placeholder {{{name}}}{did_you_mean(name, self._values)}")
            if not self._values[name]:
                may_come = name in _SET_BY and self._values["cluster.size"] != "1"
                error_type = AwaitedError if may_come else ConfigError
                raise error_type(f"{where}: {{{name}}} is not known on this node", _SET_BY.get(name, ""))
            return self._values[name]

        text = PLACEHOLDER.sub(find_value, template)
        _check_length(len(text), where)
        self._characters_left -= len(text)
        if self._characters_left < 0:
            reason = f"all flags and variables together are longer than {LONGEST_COMMAND} characters once filled in"
            raise ConfigError(f"{where}: with it, {reason}")
        return text

    def fill_value(self, template: JsonValue, where: str) -> JsonValue:
        """Fill every text of a JSON value except its keys. Raises ConfigError like `fill_text`."""
        if isinstance(template, str):
            return self.fill_text(template, where)
        if isinstance(template, list):
            return [self.fill_value(inner, where) for inner in template]
        if isinstance(template, dict):  # one argument, where each text of a list is its own
            before = self._characters_left
            filled = {key: self.fill_value(inner, where) for key, inner in template.items()}
            _check_length(before - self._characters_left, where)
            return filled
        return template


def _check_length(length: int, where: str) -> None:
    if length > LONGEST_ARGUMENT:
        raise ConfigError(f"{where}: is longer than {LONGEST_ARGUMENT} characters once it is filled in")
