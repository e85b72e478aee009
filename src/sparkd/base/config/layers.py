"""Documents merged key by key: a later one wins, each value keeps its origin, and each fault names its place."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct, field
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from sparkd.base.config.types import read_keys_fault
from sparkd.base.lib.text import did_you_mean, format_key, validator_message
from sparkd.base.vllm.args import SECRET_NAME

Key = tuple[str, ...]
Location = tuple[int | str, ...]
Origin = TypeVar("Origin")
"""Where a value is written. Its text names the document, and the line if it is known."""
OriginOf = Callable[[Key], Origin]
"""Gives the origin of a key in one document."""
TableCheck = Callable[[Mapping[str, object]], Mapping[str, object]]
"""Checks the entries of a table, and may rename them."""
Model = TypeVar("Model", bound=BaseModel)


MOST_FAULTS = 100
"""Faults of the values that are described: each may quote its whole value, such as a list of ten thousand. Unknown
keys past so many problems get no suggestion."""


class _Entry(NamedTuple, Generic[Origin]):
    value: object
    origin_of: OriginOf[Origin]
    """Gives the origin of any key of the document that has the entry, such as a file's line."""
    written_as: Key
    """The key in that document, such as args.max_num_seqs for args.max-num-seqs."""

    def origin(self, below: Key = ()) -> Origin:
        return self.origin_of((*self.written_as, *below))


class Layers(Struct, Generic[Model, Origin]):
    """Documents that are merged, to be validated together as one model."""

    model: type[Model]
    tables: Mapping[Key, TableCheck]
    """Keys that are merged entry by entry, with the check of their entries."""
    describe_mapping: Callable[[str], str]
    """What the section or the table of that name must be, for messages."""
    written_part: Callable[[Location], Iterable[int | str]]
    """Selects the part of pydantic's error location that a person wrote: engine.recipe of (engine, recipe, 0)."""
    describe_repeat: Callable[[str], str]
    """The fault of an entry that a document has twice, since the table's check gives both the same name."""
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
                    self.problems.append(f"{where}: {self.describe_repeat(name)}")
                names.add(name)
                self.entries[*table, name] = _Entry(valid, origin_of, (*table, written))

    def origins(self) -> dict[str, Origin]:
        """The origin of each dotted key that is set."""
        return {".".join(key): entry.origin() for key, entry in self.entries.items()}

    def validate(self, default_origin: OriginOf[Origin]) -> Model | None:
        """The merged values; None where they have faults. Those are added to `problems`.

        `default_origin`: of keys that no document sets.
        """
        return self._try_values({key: entry.value for key, entry in self.entries.items()}, default_origin)[0]

    def validate_partly(self, default_origin: OriginOf[Origin], stand_in: Mapping[Key, object]) -> Model | None:
        """The merged values, as from `validate`, but without wrong ones. `stand_in`: values for required keys.

        None where the faults remain without those values.
        """
        entries = {key: entry.value for key, entry in self.entries.items()}
        while True:
            model, faults = self._try_values(entries, default_origin)
            if model is not None:
                return model
            # Wrong are the faults' keys, and the keys above them.
            faulty_keys = {key[:end] for key in map(self._find_key, faults) for end in range(len(key) + 1)}
            kept_entries = {key: value for key, value in entries.items() if key not in faulty_keys}
            repaired = kept_entries | {key: value for key, value in stand_in.items() if key in faulty_keys}
            if repaired == entries:
                return None
            entries = repaired

    def _try_values(
        self, values: Mapping[Key, object], default_origin: OriginOf[Origin]
    ) -> tuple[Model | None, list[ErrorDetails]]:
        """The model of the values; or None and their faults, which are added to `problems`."""
        try:
            return self.model.model_validate(_nest(values)), []
        except ValidationError as error:
            faults = error.errors()
        self.problems += [self._describe(fault, default_origin) for fault in faults[:MOST_FAULTS]]
        return None, faults

    def _find_key(self, error: ErrorDetails) -> Key:
        fault = read_keys_fault(error)
        steps = fault.at.split(".") if fault else self.written_part(error["loc"])
        return tuple(step if isinstance(step, str) else f"[{step}]" for step in steps)

    def _describe(self, error: ErrorDetails, default_origin: OriginOf[Origin]) -> str:
        key, fault = self._find_key(error), read_keys_fault(error)
        other_origin = self._find_origin(tuple(fault.other.split("."))) if fault else None
        where = self._find_origin(key) or other_origin or default_origin(key)
        if error["type"] == "extra_forbidden":
            return f"{where}: {self._describe_unknown(key)}"
        if error["type"] == "missing":
            return f"{where}: {'.'.join(key)} is missing"
        written = self.entries[key].value if key in self.entries else error["input"]
        return f"{where}: {format_key(key, fault.value if fault else written)}: {validator_message(error['msg'])}"

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
