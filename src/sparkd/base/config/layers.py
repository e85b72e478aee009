"""Documents merged key by key: a later one wins, each value keeps its origin, and each fault names its place."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct, field
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from sparkd.base.lib.text import did_you_mean, format_key, validator_message
from sparkd.base.vllm.args import SECRET_NAME

Key = tuple[str, ...]
Location = tuple[int | str, ...]
Origin = TypeVar("Origin")
"""Where a value is written. Its text names the document, and the line if it is known."""
OriginOf = Callable[[Key], Origin]
"""Gives the origin of a key in one document."""
Check = Callable[[Mapping[str, object]], Mapping[str, object]]
"""Checks the entries of a table, and may rename them."""
Model = TypeVar("Model", bound=BaseModel)


MOST_FAULTS = 100
"""Faults described at once: each may quote its whole value, such as a list of ten thousand. Further ones get no
suggestion."""


class _Entry(NamedTuple, Generic[Origin]):
    value: object
    origin_of: OriginOf[Origin]
    written_as: Key

    def origin(self, below: Key = ()) -> Origin:
        return self.origin_of((*self.written_as, *below))


class Layers(Struct, Generic[Model, Origin]):
    """Documents that are merged, to be validated together as one model."""

    model: type[Model]
    tables: Mapping[Key, Check]
    """Keys that are merged entry by entry."""
    describe_mapping: Callable[[str], str]
    """What the section or the table of that name must be, for messages."""
    written_part: Callable[[Location], Iterable[int | str]]
    """Selects the part of pydantic's error location that a person wrote."""
    entries: dict[Key, _Entry[Origin]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def is_merged(self, key: Key) -> bool:
        """Whether the key is that of a section or a table."""
        info = known_keys(self.model).get(key)
        return key in self.tables or (info is not None and isinstance(info.default, BaseModel))

    def add(self, document: Mapping[str, object], origin_of: OriginOf[Origin], above: Key = ()) -> None:
        """Merge a document over the earlier ones. Unknown keys and wrong entries are left out, and are `problems`."""
        for name, value in document.items():
            key = (*above, name)
            if not self.is_merged(key):
                if key in known_keys(self.model):
                    self.entries[key] = _Entry(value, origin_of, key)
                else:
                    self.problems.append(f"{origin_of(key)}: {self._describe_unknown(key)}")
            elif not isinstance(value, Mapping):
                needed = self.describe_mapping(".".join(key))
                self.problems.append(f"{origin_of(key)}: {format_key(key, value)}: must be {needed}")
            elif key in self.tables:
                self._add_entries(key, value, origin_of)
            else:
                self.add(value, origin_of, key)

    def _add_entries(self, table: Key, entries: Mapping[str, object], origin_of: OriginOf[Origin]) -> None:
        names: set[str] = set()
        for written, value in entries.items():
            where = f"{origin_of((*table, written))}: {'.'.join(table)}"
            try:
                checked = self.tables[table]({written: value})
            except ValueError as error:
                self.problems.append(f"{where}: {error}")
                continue
            for name, valid in checked.items():
                if name in names:
                    self.problems.append(f"{where}: --{name} is given twice, once as {name.replace('-', '_')}")
                names.add(name)
                self.entries[*table, name] = _Entry(valid, origin_of, (*table, written))

    def origins(self) -> dict[str, Origin]:
        """The origin of each dotted key that is set."""
        return {".".join(key): entry.origin() for key, entry in self.entries.items()}

    def validate(self, default_origin: OriginOf[Origin], stand_in: Mapping[Key, object] | None = None) -> Model | None:
        """The merged values. Faults are added to `problems`, those of keys that no document sets with `default_origin`.

        Where there are faults, None; or, with a `stand_in`, which has a value for each required key, the model without
        the wrong values.
        """
        entries = {key: entry.value for key, entry in self.entries.items()}
        while True:
            try:
                return self.model.model_validate(_nest(entries))
            except ValidationError as error:
                faults = error.errors()
            self.problems += [self._describe(fault, default_origin) for fault in faults[:MOST_FAULTS]]
            if stand_in is None:
                return None
            # Wrong are the faults' keys, and the keys above them.
            wrong = {key[:end] for key in map(self._find_key, faults) for end in range(len(key) + 1)}
            right = {key: value for key, value in entries.items() if key not in wrong}
            repaired = right | {key: value for key, value in stand_in.items() if key in wrong}
            if repaired == entries:
                return None
            entries = repaired

    def _find_key(self, error: ErrorDetails) -> Key:
        context = error.get("ctx", {})
        steps = context["at"].split(".") if "at" in context else self.written_part(error["loc"])
        return tuple(step if isinstance(step, str) else f"[{step}]" for step in steps)

    def _describe(self, error: ErrorDetails, default_origin: OriginOf[Origin]) -> str:
        context, key = error.get("ctx", {}), self._find_key(error)
        other = tuple(context.get("other", "").split("."))
        where = self._find_origin(key) or self._find_origin(other) or default_origin(key)
        if error["type"] == "extra_forbidden":
            return f"{where}: {self._describe_unknown(key)}"
        if error["type"] == "missing":
            return f"{where}: {'.'.join(key)} is missing"
        written = self.entries[key].value if key in self.entries else error["input"]
        return f"{where}: {format_key(key, context.get('found', written))}: {validator_message(error['msg'])}"

    def _find_origin(self, key: Key) -> Origin | None:
        """The origin of `key`, or of the nearest key above it; None if no document sets it."""
        for end in range(len(key), 0, -1):
            if key[:end] in self.entries:
                return self.entries[key[:end]].origin(key[end:])
        return None

    def _describe_unknown(self, key: Key) -> str:
        dotted = ".".join(key)
        if len(self.problems) >= MOST_FAULTS:
            return f"{dotted}: there is no such key"
        known = known_keys(self.model)
        sections, keys = ([".".join(key) for key in known if len(key) == depth] for depth in (1, 2))
        suggestion = did_you_mean(dotted, sections) if len(key) == 1 else ""
        if key[-1].isupper() and SECRET_NAME.search(key[-1]):  # a variable's name
            suggestion = "; the file of a secret is named under secrets ([engine.secrets] of sparkd.toml)"
        return f"{dotted}: there is no such key{suggestion or did_you_mean(dotted, keys)}"


def _nest(entries: Mapping[Key, object]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for (*sections, name), value in entries.items():
        inner = values
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return values


@cache
def known_keys(model: type[BaseModel], above: Key = ()) -> dict[Key, FieldInfo]:
    """Every key of the model and of its sections, in their order."""
    keys: dict[Key, FieldInfo] = {}
    for name, info in model.model_fields.items():
        key = (*above, info.alias or name)
        keys[key] = info
        if isinstance(info.default, BaseModel):
            keys |= known_keys(type(info.default), key)
    return keys
