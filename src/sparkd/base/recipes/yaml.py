"""Parses YAML into plain data, with the line of each value, and writes values.

Scalars are converted here and not by the YAML library: where a program gets the text itself, a number that Python
would write differently (0.90, 012, 1_000) stays text. Files of other tools are read by YAML 1.1, as those tools do:
there `yes` is true, 012 is 10, and 0.90 is 0.9.
"""

import json
import re
from collections.abc import Callable, Mapping
from math import inf

from msgspec import Struct, field
from yaml import CSafeLoader, MarkedYAMLError, YAMLError
from yaml.composer import Composer
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

Key = tuple[str, ...]

_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)\Z")
_SCALAR = re.compile(
    r"(?P<bool>true|True|TRUE|false|False|FALSE)|(?P<merge><<)|(?P<null>~|null|Null|NULL|)"
    r"|(?P<float>[-+]?[0-9][0-9_]*(?:\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)"
    r"|[-+]?\.[0-9_]+(?:[eE][-+][0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))"
    r"|(?P<int>[-+]?0(?:b[01_]+|o[0-7_]+|x[0-9a-fA-F_]+)|[-+][0-9_]+|[0-9][0-9_]*)"
    r"|(?P<timestamp>[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt]|[ \t]+)[0-9]{1,2}"
    r":[0-9]{2}:[0-9]{2}(?:\.[0-9]*)?(?:[ \t]*(?:Z|[-+][0-9]{1,2}(?::[0-9]{2})?))?)"
)
"""Plain scalars of YAML 1.2, and dates of YAML 1.1, which are refused."""
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*(?::[A-Za-z0-9_./-]+)*")
_NUMBER = re.compile(r"-?[1-9][0-9]{0,17}|0|0\.[0-9]{0,3}[1-9]")
_WORDS_OF_YAML = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
_LONGEST_NUMBER = 300
_DEEPEST = 50
_MOST_VALUES = 20_000
"""Values where aliases are followed."""
_MOST_NODES = 150_000
"""Keys and values; 60,000 keys with theirs take some 1.5 s."""


class YamlError(Exception):
    """The text is not valid data. The message gives line and reason."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line, self.reason = line, reason


class Document(Struct, frozen=True):
    data: dict[str, object]
    lines: dict[Key, int] = field(default_factory=dict)
    """Line of each key and each list item `[n]`, by path."""

    def line(self, key: Key) -> int:
        """The line of `key`, or of its nearest parent."""
        while key and key not in self.lines:
            key = key[:-1]
        return self.lines.get(key, 1)


def parse_yaml(text: str, keeps_text: Callable[[Key], bool]) -> Document:
    """Parse a mapping. Where `keeps_text(path)`, numbers in unusual notation stay text. Raises YamlError."""
    return _parse(text, _Yaml12Reader, lambda node, path, _: _convert_scalar(node, keeps_text(path)))


def parse_as_pyyaml(text: str, *, aliases: bool = False) -> Document:
    """Parse a mapping as PyYAML does, except that a date stays text. Raises YamlError.

    `aliases`: read it as docker reads a compose file: *NAME and << are followed, for 20,000 values in all, and yes, no,
    on and off are text (README of yaml.v3, docker's library).
    """
    words = ("yes", "no", "on", "off") if aliases else ()
    reader_class = _AliasReader if aliases else _Reader
    return _parse(text, reader_class, lambda node, _, reader: _convert_yaml11_scalar(node, reader, words), aliases)


class _Reader(CSafeLoader):
    """YAML 1.1, as PyYAML reads it. Nodes are composed in C, whose stack has no bound of its own."""

    last_wins = True
    """Whether a key may occur twice."""
    depth = nodes = 0

    def descend_resolver(self, parent: Node | None, _index: object) -> None:
        self.depth += 1
        self.nodes += 1
        if parent and self.depth > _DEEPEST + 2:
            raise YamlError(parent.start_mark.line + 1, "is nested too deep")
        if parent and self.nodes > _MOST_NODES:
            raise YamlError(
                parent.start_mark.line + 1, f"has more than {_MOST_NODES:,} keys and values, which no recipe needs"
            )

    def ascend_resolver(self) -> None:
        self.depth -= 1


class _AliasReader(Composer, _Reader):
    """Composes in Python, where an anchor may be defined again, as YAML has it; PyYAML refuses that."""

    def __init__(self, text: str) -> None:
        _Reader.__init__(self, text)
        Composer.__init__(self)

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        if not self.check_event(AliasEvent):
            self.anchors.pop(getattr(self.peek_event(), "anchor", None), None)
        return super().compose_node(parent, index)


class _Yaml12Reader(_Reader):
    """YAML 1.2: `_SCALAR` gives the type of a plain scalar."""

    last_wins = False

    def resolve(self, kind: type[Node], value: str, implicit: tuple[bool, bool]) -> str:
        if kind is not ScalarNode or not implicit[0]:
            return str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]  # its stub has no types
        match = _SCALAR.fullmatch(value)
        return f"{_TAG}{match.lastgroup if match else 'str'}"


def _parse(
    text: str,
    reader_class: type[_Reader],
    read_scalar: Callable[[ScalarNode, Key, _Reader], object],
    aliases: bool = False,
) -> Document:
    """Parse a mapping. `read_scalar` makes the value of a scalar, by its node, its path and the reader."""
    for number, row in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        if row.startswith("%TAG"):  # slow: each is compared with all before it, and its prefix is repeated in each tag
            raise YamlError(number, "%TAG is not known")
    try:
        reader = reader_class(text)
        root = reader.get_single_node()
    except (YAMLError, UnicodeError) as error:
        raise _locate_error(text, error) from None
    if not isinstance(root, MappingNode):
        raise YamlError(1, "must be a mapping of keys and values")
    builder = _Builder(
        lambda node, path: read_scalar(node, path, reader), reader.last_wins, _MOST_VALUES if aliases else 0
    )
    return Document(builder.build_mapping(root, ()), builder.lines)


def _locate_error(text: str, error: YAMLError | UnicodeError) -> YamlError:
    """The library's error with the line and the reason, as far as it gives them."""
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = min(mark.line, text.rstrip().count("\n")) if mark else 0  # the end of a text is behind its last line
        reason = " ".join(str(part) for part in (error.context, error.problem) if part)
        reason = reason.replace("; first occurrence second occurrence", ": give each &name once")
        return YamlError(line + 1, reason or "is no YAML")
    if isinstance(error, UnicodeDecodeError):
        line = _find_escapes(text, error.object[error.start : error.end])
    else:
        line = text.encode(errors="replace")[: getattr(error, "position", 0)].count(b"\n") + 1
    return YamlError(line, str(error).splitlines()[0])


def _find_escapes(text: str, undecoded: bytes) -> int:
    """The line of a tag whose escapes (%C0) make these bytes, which are no UTF-8. libyaml gives no position."""
    escapes = "".join(f"%{byte:02x}" for byte in undecoded)
    match = re.search(rf"![^\s!]*?{escapes}", text, re.IGNORECASE)
    return text.count("\n", 0, match.start()) + 1 if match else 1


class _Builder(Struct):
    """Makes plain data of the nodes of YAML, and notes the line of each value by its path."""

    build_scalar: Callable[[ScalarNode, Key], object]
    last_wins: bool
    most_values: int = 0
    """Most values where aliases are followed, since aliases of aliases double themselves; 0: no alias is followed."""
    value_count: int = 0
    lines: dict[Key, int] = field(default_factory=dict)
    seen_nodes: set[int] = field(default_factory=set)

    def build_mapping(self, node: MappingNode, path: Key, depth: int = 0) -> dict[str, object]:
        """`depth`: levels above the node. Each `<<` on the way counts as a level, and has no key in the path."""
        values = self._build_merged(node, path, depth)
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == _MERGE and self.most_values:
                continue
            if not isinstance(key, ScalarNode) or key.tag == _MERGE:
                raise YamlError(line, "a key must be text; `extends:` of a recipe does what << would")
            name = str(key.value)
            inner = (*path, name)
            if name in values and not self.last_wins:
                raise YamlError(line, f"{'.'.join(inner)} is given twice")
            self.lines[inner] = line
            values[name] = self.build_value(value, inner, depth + 1)
        return values

    def _build_merged(self, node: MappingNode, path: Key, depth: int) -> dict[str, object]:
        """The values that `<<` adds to a mapping, from one other mapping or a list of them; the first one wins."""
        values: dict[str, object] = {}
        added = [value for key, value in node.value if key.tag == _MERGE and self.most_values]
        for value in reversed(added):
            for part in reversed(value.value) if isinstance(value, SequenceNode) else (value,):
                mapping = self.build_value(part, path, depth + 1)  # counts: lists of aliases may be of any length
                if not isinstance(mapping, dict):
                    raise YamlError(part.start_mark.line + 1, "<< needs a mapping")
                values |= mapping
        return values

    def build_value(self, node: Node, path: Key, depth: int) -> object:
        line = node.start_mark.line + 1
        self.value_count += 1 + len(node.value) // 256  # each alias of a long text is written out in full
        if self.most_values and self.value_count > self.most_values:
            raise YamlError(line, f"its aliases make more than {self.most_values} values")
        if id(node) in self.seen_nodes and not self.most_values:
            raise YamlError(line, "an alias (*name) is not followed: write the value out")
        self.seen_nodes.add(id(node))
        if depth > _DEEPEST:
            raise YamlError(line, "is nested too deep")
        if isinstance(node, ScalarNode):
            return self.build_scalar(node, path)
        if isinstance(node, SequenceNode) and node.tag == f"{_TAG}seq":
            children = [((*path, f"[{index}]"), child) for index, child in enumerate(node.value)]
            self.lines.update({inner: child.start_mark.line + 1 for inner, child in children})
            return [self.build_value(child, inner, depth + 1) for inner, child in children]
        if isinstance(node, MappingNode) and node.tag == f"{_TAG}map":
            return self.build_mapping(node, path, depth)
        raise YamlError(line, f"the tag {node.tag} is not known")


def _convert_scalar(node: ScalarNode, keeps_text: bool = False) -> object:
    """The scalar's value, by its tag."""
    raw, tag, line = str(node.value), str(node.tag).removeprefix(_TAG), node.start_mark.line + 1
    if tag in ("str", "value"):
        return raw
    if tag == "null":
        return None
    if tag == "bool":
        return raw.lower() == "true"
    if tag in ("int", "float"):
        return raw if len(raw) > _LONGEST_NUMBER else _convert_number(raw, tag, keeps_text)
    if tag == "timestamp":
        raise YamlError(line, f"{raw} would be a date: put it in quotes")
    raise YamlError(line, f"the tag {node.tag} is not known")


def _convert_yaml11_scalar(node: ScalarNode, reader: _Reader, words: tuple[str, ...]) -> object:
    """YAML 1.1 as PyYAML reads it; dates and `words` are text."""
    raw, tag = node.value, node.tag.removeprefix(_TAG)
    if tag == "timestamp" or (tag == "bool" and raw.lower() in words):
        return raw
    if tag in ("int", "float", "bool") and len(raw) <= _LONGEST_NUMBER:
        try:
            value: object = reader.construct_object(node)
        except (ValueError, LookupError):  # 018, a sign alone, !!bool maybe
            return raw
        return value
    return _convert_scalar(node)


def _convert_number(raw: str, tag: str, keeps_text: bool) -> object:
    if _DECIMAL.match(raw):
        return int(raw)
    try:
        number = float(raw.replace("_", "")) if tag == "float" else int(raw.replace("_", ""), 0)
    except ValueError:  # .inf, .nan and 012
        return raw
    is_text = abs(number) == inf or (keeps_text and str(number) != raw)
    return raw if is_text else number


def format_flow(value: object, plain_numbers: bool = True) -> str:
    """A value on one line. With `plain_numbers`, text that is a number stays unquoted."""
    if isinstance(value, Mapping):
        entries = (f"{_quote(str(key))}: {format_flow(inner, plain_numbers)}" for key, inner in value.items())
        return "{" + ", ".join(entries) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(format_flow(inner, plain_numbers) for inner in value) + "]"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = str(value)
    if plain_numbers and _NUMBER.fullmatch(text):
        return text
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS_OF_YAML else _quote(text)


def _quote(text: str) -> str:
    """Any text as one line."""
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    escapes = {'"': '\\"', "\\": "\\\\"}
    return '"' + "".join(escapes.get(c) or (c if c.isprintable() else f"\\U{ord(c):08x}") for c in text) + '"'
