"""YAML as text, read into plain data with the line that each value stands on. Knows nothing of recipes.

The values are built here and not by the YAML library: a number that Python would write otherwise (0.90, 012, 1_000)
stays the text that a person wrote, wherever the text itself is what a program gets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

Key = tuple[str, ...]

_TAG = "tag:yaml.org,2002:"
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)\Z")
_LONGEST_NUMBER = 300
_DEEPEST = 50


class YamlError(Exception):
    """The text cannot be taken as data; says the line and the reason."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")


@dataclass(frozen=True)
class Document:
    data: dict[str, object]
    lines: dict[Key, int] = field(default_factory=dict)
    """Line of each key, and of each item `[n]` of a list, by its path."""


def parse(text: str, keeps_text: Callable[[Key], bool]) -> Document:
    """The mapping that `text` is. Below a path that `keeps_text` names, odd numbers stay text. Raises YamlError."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.error import YAMLError as AnyYamlError
    from ruamel.yaml.nodes import MappingNode

    try:
        root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(str(part) for part in (error.context, error.problem) if part)
        raise YamlError(mark.line + 1 if mark else 1, reason or "is no YAML") from None
    except AnyYamlError as error:
        raise YamlError(_line_of(text, error), str(error).splitlines()[0]) from None
    except RecursionError:
        raise YamlError(1, "is nested too deep") from None
    if not isinstance(root, MappingNode):
        raise YamlError(1, "must be a mapping of keys and values")
    builder = _Builder(keeps_text)
    return Document(builder.mapping(root, ()), builder.lines)


def _line_of(text: str, error: Exception) -> int:
    position = getattr(error, "position", 0)
    return text.count("\n", 0, position) + 1 if isinstance(position, int) else 1


@dataclass
class _Builder:
    keeps_text: Callable[[Key], bool]
    lines: dict[Key, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def mapping(self, node: MappingNode, path: Key) -> dict[str, object]:
        found: dict[str, object] = {}
        for name, value_node, line in self._entries(node):
            if name in found:
                raise YamlError(line, f"{'.'.join((*path, name))} is given twice")
            self.lines[(*path, name)] = line
            found[name] = self.value(value_node, (*path, name))
        return found

    def _entries(self, node: MappingNode) -> Iterator[tuple[str, Node, int]]:
        from ruamel.yaml.nodes import ScalarNode

        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, ScalarNode) or key.tag == f"{_TAG}merge":
                raise YamlError(line, "a key must be text; `extends:` of a recipe does what << would")
            yield str(key.value), value, line

    def value(self, node: Node, path: Key) -> object:
        from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

        line = node.start_mark.line + 1
        if id(node) in self.seen:
            raise YamlError(line, "an alias (*name) is not followed: write the value out")
        self.seen.add(id(node))
        if len(path) > _DEEPEST:
            raise YamlError(line, "is nested too deep")
        if isinstance(node, ScalarNode):
            return self._scalar(node, path, line)
        if isinstance(node, SequenceNode) and node.tag == f"{_TAG}seq":
            for index, one in enumerate(node.value):
                self.lines[(*path, f"[{index}]")] = one.start_mark.line + 1
            return [self.value(one, (*path, f"[{index}]")) for index, one in enumerate(node.value)]
        if isinstance(node, MappingNode) and node.tag == f"{_TAG}map":
            return self.mapping(node, path)
        raise YamlError(line, f"the tag {node.tag} is not known")

    def _scalar(self, node: ScalarNode, path: Key, line: int) -> object:
        raw, tag = str(node.value), str(node.tag).removeprefix(_TAG)
        if tag in ("str", "value"):
            return raw
        if tag == "null":
            return None
        if tag == "bool":
            return raw.lower() == "true"
        if tag in ("int", "float"):
            return raw if len(raw) > _LONGEST_NUMBER else _number(raw, tag, self.keeps_text(path))
        if tag == "timestamp":
            raise YamlError(line, f"{raw} would be a date: put it in quotes")
        raise YamlError(line, f"the tag {node.tag} is not known")


def _number(raw: str, tag: str, keeps_text: bool) -> object:
    if _DECIMAL.match(raw):
        return int(raw)
    try:
        number = float(raw.replace("_", "")) if tag == "float" else int(raw.replace("_", ""), 0)
    except ValueError:  # .inf, .nan and 012: nobody means a number by them
        return raw
    return raw if keeps_text and str(number) != raw else number
