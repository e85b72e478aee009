"""The files that `sparkd init` writes: settings, key, drop-ins; what would change in them, and what overrules them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sparkd.base.config import Loaded, Settings, load_with_origins, units
from sparkd.base.config.layers import Key
from sparkd.base.config.reference import format_line
from sparkd.base.config.sources import DEFAULT_FILE, FILE_VARIABLE, FOLDER, INIT_FILE
from sparkd.base.config.types import Section
from sparkd.base.host import Host
from sparkd.base.lib.errors import BlockedError, ConfigError
from sparkd.base.vllm.args import API_KEY
from sparkd.tools.setup.cluster_key import KeyFile, is_key_text
from sparkd.tools.setup.setup_manifest import Setup
from sparkd.tools.setup.system_config import UnitFiles

HEAD = """\
# Written by `sparkd init`, and removed by `sparkd deinit`, unless other keys or comments are added to it. Your own
# settings belong into ../sparkd.toml, which wins over this file: `sparkd config show --default` lists every key.
"""
KEYS = {"engine": ("recipe", "secrets"), "cluster": ("nodes", "follow_head"), "notify": ("webhook_file", "template")}
"""All that `init` writes; of the secrets, the key of the API alone."""
TO_WRITE = (units.State.MISSING, units.State.DIFFERS)
Values = dict[Key, str | bool | list[str] | dict[str, str]]


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
        """The file of a person's own settings."""
        return self.env.get(FILE_VARIABLE) or f"/{DEFAULT_FILE}"

    @property
    def init_file(self) -> str:
        return str(Path(self.file).parent / FOLDER / INIT_FILE)

    def load(self) -> Loaded:
        return load_with_origins(self.env, self.root)

    def changes(self, values: Values, settings: Settings, keys: Sequence[KeyFile] = ()) -> Iterator[str]:
        self.refuse_overruled(values)
        missing = self._missing(values).items()
        yield from (f"{self.init_file}: {section}.{name} = {value}" for (section, name), value in missing)
        yield from (f"{key.path}: {key.what}" for key in keys if not self.host.files.exists(key.path))
        for dropin in units.dropins(settings.model_copy(update=updated(settings, values))):
            if dropin.text and units.compare_file(self.host.files, dropin) in TO_WRITE:
                yield dropin.path

    def refuse_overruled(self, values: Mapping[Key, object]) -> None:
        """Raises ConfigError where another file, or a variable, sets another value, or would after the write."""
        loaded = self.load()
        own = str(self.root / self.init_file.lstrip("/"))
        for (section, name), value in values.items():
            by = loaded.origins.get(f"{section}.{name}", own)
            if by != own and getattr(getattr(loaded.settings, section), name) != _frozen(value):
                raise ConfigError(f"{by} sets {section}.{name} too, and comes after {own}", "take it out there")

    def is_persons(self, key: Key) -> bool:
        """Whether a person's own file sets it, and nothing that comes after."""
        return self.load().origins.get(".".join(key)) == str(self.root / self.file.lstrip("/"))

    def write(self, values: Values, keys: Sequence[KeyFile] = ()) -> None:
        """Write the keys first: settings of several nodes need them."""
        self.refuse_overruled(values)
        missing = self._missing(values)
        text = render({**self._written(), **missing}) if missing else ""
        for key in keys:
            now = self.setup.read(key.path)
            if now is None or (key.over and key.text != now):
                # Not as a person's: the manifest would keep what was there, and `deinit` put it in force again.
                self.setup.write(key.path, key.text, 0o600, own=True)
            elif any(entry.path == key.path for entry in self.setup.written()):  # by a version that kept what was there
                self.setup.record(key.path, now, own=True)
        if text:
            self.setup.write(self.init_file, text, 0o644, own=True)
        wanted = units.dropins(self.load().settings)
        for dropin in wanted:
            if dropin.text and units.compare_file(self.host.files, dropin) in TO_WRITE:
                self.setup.record(dropin.path, dropin.text)
        UnitFiles(self.root).install(wanted)

    def _missing(self, values: Values) -> Values:
        """Values that do not hold yet, or only as defaults, which another version may have otherwise.

        Raises ConfigError where they can't be written, because something else in the file would be lost.
        """
        loaded = self.load()
        missing: Values = {
            (section, name): value
            for (section, name), value in values.items()
            if f"{section}.{name}" not in loaded.origins
            or getattr(getattr(loaded.settings, section), name) != _frozen(value)
        }
        if missing and not self._is_whole():
            hint = f"move keys of your own into {self.file}, remove this file, and run `sparkd init` again"
            raise ConfigError(f"{self.init_file} has keys or comments that `sparkd init` does not write", hint)
        return missing

    def _is_whole(self) -> bool:
        """Whether nothing is lost of `init`'s file when it is written from its values: no other comment, no other key.

        `init` writes no value with a # in it.
        """
        lines = (self.setup.read(self.init_file) or "").splitlines()
        written, comments = self._written(), any("#" in line for line in lines if line not in HEAD.splitlines())
        secrets = written.get(("engine", "secrets"), {API_KEY: ""})
        known = all(name in KEYS.get(section, ()) for section, name in written)
        return known and isinstance(secrets, dict) and set(secrets) == {API_KEY} and not comments

    def take_back(self) -> list[str]:
        """What was done with each file that `init` wrote. Raises BlockedError while an agent runs with them."""
        if owner := self.host.owner():
            raise BlockedError("an agent runs with what `sparkd init` wrote", owner.hint)
        with self.setup.alone():
            self.adopt()
            lines = list(self.setup.take_back())
            if lines:
                UnitFiles(self.root).daemon_reload()
        return lines

    def adopt(self) -> None:
        """Values that were changed in `init`'s file, and keys in theirs, become its own, for `deinit` to remove."""
        for written in self.setup.written():
            with suppress(tomllib.TOMLDecodeError, RecursionError, ConfigError):
                text = self.setup.read(written.path) or ""
                own = written.path == self.init_file and text.startswith(HEAD) and self._is_whole()
                if own or is_key_text(text):
                    self.setup.record(written.path, text, own=True)

    def _written(self) -> Values:
        """What `init` has written."""
        sections = tomllib.loads(self.setup.read(self.init_file) or "")
        tables = {section: keys if isinstance(keys, dict) else {"": keys} for section, keys in sections.items()}
        return {(section, name): value for section, keys in tables.items() for name, value in keys.items()}


def render(values: Values) -> str:
    """`init`'s file."""
    lines = [HEAD]
    for section in dict.fromkeys(section for section, _ in values):
        lines.append(f"\n[{section}]\n")
        lines += [f"{format_line(key, value)}\n" for (of, key), value in values.items() if of == section]
    return "".join(lines)


def updated(settings: Settings, values: Values) -> dict[str, Section]:
    """The sections with these values, for model_copy."""
    sections: dict[str, Section] = {}
    for (section, key), value in values.items():
        before = sections.get(section) or getattr(settings, section)
        sections[section] = before.model_copy(update={key: _frozen(value)})
    return sections


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
