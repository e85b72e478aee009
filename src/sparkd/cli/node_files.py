"""The files that `sparkd init` writes: settings, key, drop-ins; what would change in them, and what overrules them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sparkd.actions.setup_manifest import Setup
from sparkd.actions.system_config import UnitFiles
from sparkd.cli import cluster_key
from sparkd.config import Loaded, Settings, load_with_origins, units
from sparkd.config.edit import set_keys
from sparkd.config.layers import Key
from sparkd.config.settings import Section
from sparkd.config.sources import DEFAULT_FILE, FILE_VARIABLE
from sparkd.host import Host
from sparkd.lib.errors import ConfigError

HEAD = (
    "# Configuration of sparkd on this node, begun by `sparkd init`. `sparkd config show --default` lists every key.\n"
)
TO_WRITE = (units.State.MISSING, units.State.DIFFERS)
Values = dict[Key, str | bool | list[str]]


@dataclass(frozen=True)
class NodeFiles:
    host: Host
    env: Mapping[str, str]

    @cached_property
    def setup(self) -> Setup:
        return Setup(self.root)

    @property
    def root(self) -> Path:
        return Path(self.host.files.root)

    @property
    def file(self) -> str:
        return self.env.get(FILE_VARIABLE) or f"/{DEFAULT_FILE}"

    def load(self) -> Loaded:
        return load_with_origins(self.env, self.root)

    def changes(self, values: Values, settings: Settings, key: str) -> Iterator[str]:
        self.refuse_overruled(values, settings)
        _, keys = set_keys(self.setup.read(self.file) or HEAD, values)
        yield from (f"{self.file}: {one.section}.{one.key} = {one.value}" for one in keys)
        if key and not self.host.files.exists(key):
            yield f"{key}: a new key"
        for one in units.dropins(settings.model_copy(update=updated(settings, values))):
            if one.text and units.judge(self.host.files, one) in TO_WRITE:
                yield one.path

    def refuse_overruled(self, values: Mapping[Key, object], settings: Settings) -> None:
        """Raises ConfigError where another file, or a variable, sets another value."""
        origins, own = self.load().origins, str(self.root / self.file.lstrip("/"))
        for (section, name), value in values.items():
            by = origins.get(f"{section}.{name}", own)
            if by != own and getattr(getattr(settings, section), name) != _frozen(value):
                raise ConfigError(f"{by} sets {section}.{name} too, and comes after {own}", "take it out there")

    def write(self, values: Values, key: str, key_text: str = "") -> None:
        """The key first: settings of several nodes need it."""
        text, keys = set_keys(self.setup.read(self.file) or HEAD, values)
        now = self.setup.read(key) if key else ""
        if now is None or key_text not in ("", now):
            new = key_text or cluster_key.key_text(os.urandom(cluster_key.KEY_BYTES).hex())
            self.setup.write(key, new, 0o600)
        if keys:
            self.setup.write(self.file, text, 0o644, keys)
        wanted = units.dropins(self.load().settings)
        for one in wanted:
            if one.text and units.judge(self.host.files, one) in TO_WRITE:
                self.setup.record(one.path, one.text)
        UnitFiles(self.root).install(wanted)


def updated(settings: Settings, values: Values) -> dict[str, Section]:
    """The sections with these values, for model_copy."""
    found: dict[str, Section] = {}
    for (section, key), value in values.items():
        before = found.get(section) or getattr(settings, section)
        found[section] = before.model_copy(update={key: _frozen(value)})
    return found


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
