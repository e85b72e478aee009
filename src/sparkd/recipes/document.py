"""YAML as text, read into plain data with the line that each value stands on. Knows nothing of recipes.

The values are built here and not by the YAML library: a number that Python would write otherwise (0.90, 012, 1_000)
stays the text that a person wrote, wherever the text itself is what a program gets. Files of other tools are read as
those read them, by YAML 1.1: there `yes` is true, 012 is 10, and 0.90 is 0.9.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

Key = tuple[str, ...]

_TAG = "tag:yaml.org,2002:"
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)\Z")
_OLD_FLOAT = re.compile(r"[-+]?(?=[0-9._:]*\.)[0-9._:]*(?:[eE][-+][0-9]+)?\Z|[-+]?\.(?:inf|nan)\Z", re.IGNORECASE)
"""YAML 1.1 wants a dot, and a sign in the exponent: 1e5 is text."""
_LONGEST_NUMBER = 300
_DEEPEST = 50


class YamlError(Exception):
    """The text cannot be taken as data; says the line and the reason."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")


class Document(Struct, frozen=True):
    data: dict[str, object]
    lines: dict[Key, int] = field(default_factory=dict)
    """Line of each key, and of each item `[n]` of a list, by its path."""


def parse(text: str, keeps_text: Callable[[Key], bool]) -> Document:
    """The mapping that `text` is. Below a path that `keeps_text` names, odd numbers stay text. Raises YamlError."""
    return _read(text, _Builder(keeps_text), None)


def parse_as_pyyaml(text: str) -> Document:
    """The mapping that `text` is to programs that read it with PyYAML; a date stays text. Raises YamlError."""
    return _read(text, _OldBuilder(lambda _: False, last_wins=True), (1, 1))


def _read(text: str, builder: _Builder, version: tuple[int, int] | None) -> Document:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.error import YAMLError as AnyYamlError
    from ruamel.yaml.nodes import MappingNode

    try:
        reader = YAML(typ="safe", pure=True)
        reader.version = version
        root = reader.compose(text)
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
    return Document(builder.mapping(root, ()), builder.lines)


def _line_of(text: str, error: Exception) -> int:
    position = getattr(error, "position", 0)
    return text.count("\n", 0, position) + 1 if isinstance(position, int) else 1


class _Builder(Struct):
    keeps_text: Callable[[Key], bool]
    last_wins: bool = False
    """Whether a key may be given twice."""
    lines: dict[Key, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def mapping(self, node: MappingNode, path: Key) -> dict[str, object]:
        found: dict[str, object] = {}
        for name, value_node, line in self._entries(node):
            if name in found and not self.last_wins:
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


class _OldBuilder(_Builder):
    """YAML 1.1 as PyYAML has it."""

    def _scalar(self, node: ScalarNode, path: Key, line: int) -> object:
        raw, tag = str(node.value), str(node.tag).removeprefix(_TAG)
        if tag == "timestamp":
            return raw
        if tag == "bool":
            return raw if raw.lower() in ("y", "n") else raw.lower() in ("true", "yes", "on")
        if tag == "float" and not _OLD_FLOAT.match(raw):
            return raw
        if tag in ("int", "float") and len(raw) <= _LONGEST_NUMBER:
            return _old_number(raw.replace("_", ""), tag)
        return super()._scalar(node, path, line)


def _old_number(raw: str, tag: str) -> object:
    sign, digits = (-1, raw[1:]) if raw.startswith("-") else (1, raw.removeprefix("+"))
    try:
        if ":" in digits:  # 1:30 is 90: base 60
            number: float = 0
            for part in digits.split(":"):
                number = number * 60 + (int(part) if tag == "int" else float(part))
            return sign * number
        if tag == "float":
            return sign * float(digits.lower().replace(".inf", "inf").replace(".nan", "nan"))
        return sign * (int(digits, 8) if re.fullmatch("0[0-7]+", digits) else int(digits, 0))
    except ValueError:
        return raw


def _number(raw: str, tag: str, keeps_text: bool) -> object:
    if _DECIMAL.match(raw):
        return int(raw)
    try:
        number = float(raw.replace("_", "")) if tag == "float" else int(raw.replace("_", ""), 0)
    except ValueError:  # .inf, .nan and 012: nobody means a number by them
        return raw
    return raw if keeps_text and str(number) != raw else number
