"""Where settings come from: a file, `conf.d` beside it, the environment; later ones win, key by key."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource, InitSettingsSource, TomlConfigSettingsSource

from sparkd.config.settings import Settings
from sparkd.lib.errors import ConfigError
from sparkd.lib.text import did_you_mean, format_key, read_file, validator_message
from sparkd.vllm.args import TABLES as ARG_TABLES

DEFAULT_FILE = "etc/sparkd/sparkd.toml"
PREFIX = "SPARKD_"
FILE_VARIABLE = "SPARKD_CONFIG"

Key = tuple[str, ...]
TABLES = {("engine", name): check for name, check in ARG_TABLES.items()}
"""Keys that are tables, each with the check of its entries: sources are merged entry by entry."""


class Loaded(Struct, frozen=True):
    settings: Settings
    origins: Mapping[str, str]
    """File or variable that set a dotted key, such as `engine.env.NAME`. What is absent has its default."""
    files: tuple[Path, ...]


class File(TomlConfigSettingsSource):
    """One file, whose name is the origin of what it sets."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        self.__name__, self.problems = str(path), problems
        super().__init__(Settings, path)

    def _read_files(self, files: Any, deep_merge: bool = False) -> dict[str, Any]:  # noqa: ARG002
        """The library ignores what is no regular file, and reads without a limit."""
        return _checked(tomllib.loads(read_file(files)), self.__name__, self.problems)


class Variable(EnvSettingsSource):
    """One variable of the environment, whose name is the origin of what it sets."""

    def __init__(self, name: str, key: Key, value: Any, problems: list[str]) -> None:
        self.__name__, self.problems = name, problems
        super().__init__(Settings, True, PREFIX, env_nested_delimiter="__", env_nested_max_split=2)
        # With the key in lower case: the library would change the case of a table's entry too.
        self.env_vars = {PREFIX + "__".join(key): value}

    def __call__(self) -> dict[str, Any]:
        return _checked(super().__call__(), self.__name__, self.problems)


class Origins(InitSettingsSource):
    """The last source: it sets nothing, and sees what each source before it has set."""

    found: dict[str, str]

    def __call__(self) -> dict[str, Any]:
        self.found = {}
        for origin, document in reversed(self.settings_sources_data.items()):
            for key, value in _keys_in(document):
                entries = [(*key, name) for name in value] if key in TABLES else [key]
                self.found |= dict.fromkeys(map(".".join, entries), origin)
        return {}


def load_settings(env: Mapping[str, str], root: Path = Path("/")) -> Settings:
    """Settings of this node. Raises ConfigError that names every fault at once.

    `SPARKD_CONFIG` names the file, else it is /etc/sparkd/sparkd.toml below `root`. Only the last may be missing.
    """
    return load_with_origins(env, root).settings


def load_with_origins(env: Mapping[str, str], root: Path = Path("/")) -> Loaded:
    """As `load_settings`, with the file or variable that each value came from."""
    problems: list[str] = []
    files, origins = list(_files(env, root, problems)), Origins(Settings, {})
    try:
        settings = Settings(_build_sources=((*reversed([*files, *_variables(env, problems)]), origins), {}))
    except ValidationError as error:
        problems.extend(_explained(error.errors(), origins))
    if problems:
        raise ConfigError("\n".join(problems), "`sparkd config show --default` lists every key")
    return Loaded(settings, origins.found, tuple(Path(file.__name__) for file in files))


def keys() -> dict[Key, FieldInfo]:
    """Every key that there is, in the order of the model."""
    sections = Settings.model_fields.items()
    return {(name, key): info for name, section in sections for key, info in type(section.default).model_fields.items()}


def _keys_in(document: Mapping[str, Any]) -> Iterator[tuple[Key, Any]]:
    """Each key with its value. What is no known section, or no table, stands for itself."""
    for section, table in document.items():
        if section in Settings.model_fields and isinstance(table, dict):
            yield from (((section, key), value) for key, value in table.items())
        else:
            yield (section,), table


def _checked(document: Mapping[str, Any], origin: str, problems: list[str]) -> dict[str, dict[str, object]]:
    """The known keys of a source, with tables ready to be merged. All else is added to `problems`."""
    good: dict[str, dict[str, object]] = {section: {} for section in document}
    for key, value in _keys_in(document):
        try:
            good[key[0]][key[-1]] = _mergeable(key, value)
        except ValueError as error:
            problems.append(f"{origin}: {error}")
    return {section: table for section, table in good.items() if table}


def _mergeable(key: Key, value: Any) -> object:
    dotted = ".".join(key)
    if key in TABLES and isinstance(value, dict):
        try:
            entries = TABLES[key](value)
        except ValueError as error:
            raise ValueError(f"{dotted}: {error}") from None
        # The library merges each dict with the one below it, but a flag's JSON value is replaced as a whole.
        return {name: MappingProxyType(one) if isinstance(one, dict) else one for name, one in entries.items()}
    if key in TABLES:
        raise ValueError(f"{format_key(key, value)}: must be a table of names and values")
    if dotted in Settings.model_fields:
        raise ValueError(f"{format_key(key, value)}: must be a table, [{dotted}]")
    if key not in keys():
        near = did_you_mean(dotted, Settings.model_fields) if len(key) == 1 else ""
        raise ValueError(f"{dotted}: there is no such key{near or did_you_mean(dotted, map('.'.join, keys()))}")
    return value


def _variables(env: Mapping[str, str], problems: list[str]) -> Iterator[Variable]:
    known = {PREFIX + "__".join(key).upper(): key for key in keys()}
    for name in sorted(name for name in env if name.startswith(PREFIX) and name != FILE_VARIABLE):
        section, _, rest = name.partition("__")
        key, _, entry = rest.partition("__")
        at = known.get(f"{section}__{key}", ())
        if not at or (rest != key and at not in TABLES):
            problems.append(f"{name}: there is no such setting{did_you_mean(name.upper(), [FILE_VARIABLE, *known])}")
        elif rest == key:
            yield Variable(name, at, _parsed(env[name], keys()[at].default), problems)
        elif at == ("engine", "args"):
            yield Variable(name, (*at, entry.lower()), _parsed(env[name], None), problems)
        else:
            yield Variable(name, (*at, entry), env[name], problems)


def _parsed(raw: str, default: object) -> object:
    """Text where text is the default, a list by commas or JSON, all else JSON: the library would take yes for true."""
    if isinstance(default, str):
        return raw
    if isinstance(default, tuple) and not raw.lstrip().startswith("["):
        return [part.strip() for part in raw.split(",")] if raw.strip() else []
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw


def _files(env: Mapping[str, str], root: Path, problems: list[str]) -> Iterator[File]:
    named = env.get(FILE_VARIABLE)
    main = Path(named) if named else root / DEFAULT_FILE
    for path in (main, *_drop_ins(main.parent / "conf.d", trusted=not named)):
        try:
            yield File(path, problems)
        except FileNotFoundError:
            if named or path != main:
                problems.append(f"{path}: does not exist")
        except ConfigError as error:
            problems.append(error.reason)
        except (ValueError, RecursionError) as error:
            problems.append(f"{path}: is no TOML: {error}")


def _drop_ins(folder: Path, trusted: bool) -> list[Path]:
    """Raises ConfigError where others may write: that a file was named, such as one in /tmp, covers that file alone."""
    try:
        found, link = folder.stat(), folder.lstat()
        if not trusted and (not {found.st_uid, link.st_uid} <= {0, os.geteuid()} or found.st_mode & 0o022):
            raise ConfigError(
                f"{folder}: others may write in it, and what stands in it is read after the named file",
                f"chown root {folder} && chmod go-w {folder}, or name a file that stands elsewhere",
            )
        return sorted(path for path in folder.iterdir() if path.name.endswith(".toml"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error.strerror}") from None


def _explained(errors: list[ErrorDetails], origins: Origins) -> Iterator[str]:
    for error in errors:
        context = error.get("ctx", {})
        at = context.get("at") or ".".join(str(one) for one in error["loc"][:2])
        origin = origins.found.get(at) or origins.found.get(context.get("other", "")) or "default"
        set_there = dict(_keys_in(origins.settings_sources_data.get(origin, {})))
        found = set_there.get(tuple(at.split(".")), context.get("found"))
        yield f"{origin}: {format_key((at,), found)}: {validator_message(error['msg'])}"
