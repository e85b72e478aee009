"""Flags of `vllm serve`, as its own parser has them, and the fields in their JSON, as its classes read them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, json

from sparkd.lib import read_data
from sparkd.vllm.flag import Field, Flag

FILE = "vllm-flags.json"
"""Below sparkd/data. `make flags` writes it: do not edit."""


class FlagTable(Struct, frozen=True, forbid_unknown_fields=True):
    version: str
    """Of vLLM."""
    flags: tuple[Flag, ...]
    fields: Mapping[str, tuple[Field, ...]]
    """By the name of the flag whose JSON has them."""


_TABLE = json.decode(read_data(FILE), type=FlagTable)
VERSION, FLAGS, FIELDS = _TABLE.version, _TABLE.flags, _TABLE.fields
