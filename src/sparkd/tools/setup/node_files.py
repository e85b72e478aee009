"""The files that `sparkd init` writes (settings, keys, drop-ins): their changes, and settings that overrule them."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sparkd.base.config import LoadedSettings, Settings, load_with_origins, units
from sparkd.base.config.layers import Key
from sparkd.base.config.reference import format_line
from sparkd.base.config.sources import DEFAULT_FILE, FILE_VARIABLE, FOLDER, INIT_FILE
from sparkd.base.config.types import Section
from sparkd.base.host import Host
from sparkd.base.lib.errors import BlockedError, ConfigError
from sparkd.base.vllm.args import API_KEY
from sparkd.tools.setup.cluster_key import SecretFile, is_key_text
from sparkd.tools.setup.setup_manifest import Setup
from sparkd.tools.setup.unit_files import UnitFiles

HEADER = """\
# Written by `sparkd init`, and removed by `sparkd deinit`, unless other keys or comments are added to it. Your own
# settings belong into ../sparkd.toml, which wins over this file: `sparkd config show --default` lists every key.
"""
KEYS = {"engine": ("recipe", "secrets"), "cluster": ("nodes", "follow_head"), "notify": ("webhook_file", "template")}
"""Settings that `init` writes, by section; of the secrets only the API's key."""
TO_WRITE = (units.DropInState.MISSING, units.DropInState.DIFFERS)
Values = dict[Key, str | bool | list[str] | dict[str, str]]


@dataclass(frozen=True)
class NodeFiles:
    """The files of `init` below the host's root. `env`: the process's environment."""

    host: Host
    env: Mapping[str, str]

    @cached_property
    def setup(self) -> Setup:
        return Setup(self.root)

    @property
    def root(self) -> Path:
        return Path(self.host.files.root)

    @property
    def persons_file(self) -> str:
        """The file for a person's own settings."""
        return self.env.get(FILE_VARIABLE) or f"/{DEFAULT_FILE}"

    @property
    def init_file(self) -> str:
        """The file of the settings that `init` writes."""
        return str(Path(self.persons_file).parent / FOLDER / INIT_FILE)

    def load(self) -> LoadedSettings:
        return load_with_origins(self.env, self.root)

    def changes(self, values: Values, settings: Settings, files: Sequence[SecretFile] = ()) -> Iterator[str]:
        """Yield a line for each change that `write` would make. Raises ConfigError as `write`."""
        self.refuse_overruled(values)
        missing = self._missing(values).items()
        yield from (f"{self.init_file}: {section}.{name} = {value}" for (section, name), value in missing)
        yield from (f"{file.path}: {file.description}" for file in files if not self.host.files.exists(file.path))
        for dropin in units.dropins(settings.model_copy(update=updated_sections(settings, values))):
            if dropin.text and units.compare_file(self.host.files, dropin) in TO_WRITE:
                yield dropin.path

    def refuse_overruled(self, values: Mapping[Key, object]) -> None:
        """Raises ConfigError where another file, or a variable, sets another value, which would hold after `write`."""
        loaded = self.load()
        init_file = str(self.root / self.init_file.lstrip("/"))
        for (section, name), value in values.items():
            origin = loaded.origins.get(f"{section}.{name}", init_file)
            if origin != init_file and getattr(getattr(loaded.settings, section), name) != _freeze(value):
                reason = f"{origin} sets {section}.{name} too, and comes after {init_file}"
                raise ConfigError(reason, "take it out there")

    def refuse_fixed(self, section: str, name: str) -> None:
        """Raises ConfigError where `write` could not change this value: another file sets it, or its own has more."""
        other_value: Values = {(section, name): [""]}  # equals none that holds
        self.refuse_overruled(other_value)
        self._missing(other_value)

    def is_set_by_person(self, key: Key) -> bool:
        """Whether a person's own file sets the value that holds."""
        return self.load().origins.get(".".join(key)) == str(self.root / self.persons_file.lstrip("/"))

    def write(self, values: Values, files: Sequence[SecretFile] = ()) -> None:
        """Write secret files, settings and drop-ins, in this order: settings of several nodes need keys.

        Raises ConfigError, also where other settings would overrule these, and UsageError.
        """
        self.refuse_overruled(values)
        missing = self._missing(values)
        settings_text = render({**self._read_values(), **missing}) if missing else ""
        for file in files:
            self._write_secret(file)
        if settings_text:
            self.setup.write(self.init_file, settings_text, 0o644, own=True)
        dropins = units.dropins(self.load().settings)
        for dropin in dropins:
            if dropin.text and units.compare_file(self.host.files, dropin) in TO_WRITE:
                self.setup.record(dropin.path, dropin.text)
        UnitFiles(self.root).install(dropins)

    def _write_secret(self, file: SecretFile) -> None:
        """Write a secret file, unless one is there that counts. In the manifest it is sparkd's own.

        Else the manifest would keep the old key, as that of an older version does, and `deinit` would put it in force.
        """
        current_text = self.setup.read(file.path)
        if current_text is None or (file.replaces and file.text != current_text):
            self.setup.write(file.path, file.text, 0o600, own=True)
        elif any(entry.path == file.path for entry in self.setup.written()):
            self.setup.record(file.path, current_text, own=True)

    def _missing(self, values: Values) -> Values:
        """Values that do not hold yet, or hold only as defaults, which may change in another version.

        Raises ConfigError where they can't be written, since other keys or comments in the file would be lost.
        """
        loaded = self.load()
        missing: Values = {
            (section, name): value
            for (section, name), value in values.items()
            if f"{section}.{name}" not in loaded.origins
            or getattr(getattr(loaded.settings, section), name) != _freeze(value)
        }
        if missing and not self._can_rewrite():
            hint = f"move keys of your own into {self.persons_file}, remove this file, and run `sparkd init` again"
            raise ConfigError(f"{self.init_file} has keys or comments that `sparkd init` does not write", hint)
        return missing

    def _can_rewrite(self) -> bool:
        """Whether nothing is lost where `init` writes over its file: that has no other key and no comment.

        A # in a line counts as a comment, since `init` writes no value with one.
        """
        lines, values = (self.setup.read(self.init_file) or "").splitlines(), self._read_values()
        has_comments = any("#" in line for line in lines if line not in HEADER.splitlines())
        has_known_keys = all(name in KEYS.get(section, ()) for section, name in values)
        secrets = values.get(("engine", "secrets"))
        has_known_secrets = secrets is None or (isinstance(secrets, dict) and set(secrets) == {API_KEY})
        return has_known_keys and has_known_secrets and not has_comments

    def take_back(self) -> list[str]:
        """Remove or restore each file that `init` wrote, and return a line for each.

        Raises BlockedError while an agent runs with them.
        """
        if owner := self.host.owner():
            raise BlockedError("an agent runs with what `sparkd init` wrote", owner.hint)
        with self.setup.hold_lock():
            self.adopt()
            lines = list(self.setup.take_back())
            if lines:
                UnitFiles(self.root).daemon_reload()
        return lines

    def adopt(self) -> None:
        """Record `init`'s file and key files that a person has edited as sparkd's own, so that `deinit` removes them.

        A file that has something else than settings of `init`, or keys, is left out.
        """
        for file in self.setup.written():
            with suppress(tomllib.TOMLDecodeError, RecursionError, ConfigError):
                text = self.setup.read(file.path) or ""
                is_own = file.path == self.init_file and text.startswith(HEADER) and self._can_rewrite()
                if is_own or is_key_text(text):
                    self.setup.record(file.path, text, own=True)

    def _read_values(self) -> Values:
        """The values in `init`'s file."""
        sections = tomllib.loads(self.setup.read(self.init_file) or "")
        tables = {section: table if isinstance(table, dict) else {"": table} for section, table in sections.items()}
        return {(section, name): value for section, table in tables.items() for name, value in table.items()}


def render(values: Values) -> str:
    """The text of `init`'s file."""
    lines = [HEADER]
    for section in dict.fromkeys(section for section, _ in values):
        lines.append(f"\n[{section}]\n")
        lines += [f"{format_line(key, value)}\n" for (table, key), value in values.items() if table == section]
    return "".join(lines)


def updated_sections(settings: Settings, values: Values) -> dict[str, Section]:
    """The sections of the settings that change by these values, for model_copy."""
    sections: dict[str, Section] = {}
    for (section, key), value in values.items():
        current = sections.get(section) or getattr(settings, section)
        sections[section] = current.model_copy(update={key: _freeze(value)})
    return sections


def _freeze(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
