"""Placeholders of a recipe, such as {node.address}: their values on a node, and how texts are filled with them."""

import re
from collections.abc import Mapping

from sparkd.base.lib.errors import AwaitedError, ConfigError
from sparkd.base.lib.text import did_you_mean
from sparkd.base.plan.model import Node
from sparkd.base.recipes.schema import PLACEHOLDER
from sparkd.base.vllm.args import LONGEST_ARGUMENT, JsonValue

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


def fill_text(template: str, values: Mapping[str, str], where: str) -> str:
    """Replace the placeholders. Raises ConfigError, prefixed with `where`, for one that is unknown or has no value, and
    AwaitedError where the value may come with the fabric.
    """

    def find_value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            raise ConfigError(f"{where}: there is no placeholder {{{name}}}{did_you_mean(name, values)}")
        if not values[name]:
            may_come = name in _SET_BY and values["cluster.size"] != "1"
            error_type = AwaitedError if may_come else ConfigError
            raise error_type(f"{where}: {{{name}}} is not known on this node", _SET_BY.get(name, ""))
        return values[name]

    if len(text := PLACEHOLDER.sub(find_value, template)) > LONGEST_ARGUMENT:
        raise ConfigError(f"{where}: is longer than {LONGEST_ARGUMENT} characters once it is filled in")
    return text


def fill_value(template: JsonValue, values: Mapping[str, str], where: str) -> JsonValue:
    """Fill every text of a JSON value except its keys. Raises ConfigError like `fill_text`."""
    if isinstance(template, str):
        return fill_text(template, values, where)
    if isinstance(template, list):
        return [fill_value(inner, values, where) for inner in template]
    if isinstance(template, dict):
        return {key: fill_value(inner, values, where) for key, inner in template.items()}
    return template
