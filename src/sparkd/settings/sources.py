"""Where settings come from: a file, `conf.d` beside it, the environment; later ones win, key by key."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource, InitSettingsSource, TomlConfigSettingsSource

from sparkd import faults, flags, text_file
from sparkd.errors import ConfigError
from sparkd.nearest import did_you_mean
from sparkd.settings.model import Settings

DEFAULT_FILE = "etc/sparkd/sparkd.toml"
PREFIX = "SPARKD_"
FILE_VARIABLE = "SPARKD_CONFIG"
HINT = "`sparkd config show --default` lists every key"

Key = tuple[str, ...]
TABLES = {("engine", name): check for name, check in flags.TABLES.items()}
"""Keys that are tables, each with the check of its entries: sources are merged entry by entry."""


class Loaded(Struct, frozen=True):
    settings: Settings
    origins: Mapping[str, str]
    """File or variable that set a dotted key, such as `engine.env.NAME`. What is absent has its default."""
    files: tuple[Path, ...]


class File(TomlConfigSettingsSource):
    """One TOML file. Each is a source, so that its name is known as the origin of what it sets."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        self.__name__, self.path, self.problems = str(path), path, problems
        super().__init__(Settings, None)

    def _read_files(self, *_: object, **_options: object) -> dict[str, Any]:
        """The library ignores what is no regular file, and reads without a limit."""
        import tomllib

        return _well_formed(tomllib.loads(text_file.read(self.path)), self.__name__, self.problems)


class Variable(EnvSettingsSource):
    """One variable of the environment: each is a source, as files are."""

    def __init__(self, name: str, key: Key, value: object, problems: list[str]) -> None:
        self.__name__, self.given, self.problems = name, {PREFIX + "__".join(key): value}, problems
        super().__init__(Settings, True, PREFIX, env_nested_delimiter="__", env_nested_max_split=2)

    def _load_env_vars(self) -> dict[str, Any]:
        """With the key in lower case: the library would change the case of a table's entry too."""
        return self.given

    def __call__(self) -> dict[str, Any]:
        return _well_formed(super().__call__(), self.__name__, self.problems)


class Origins(InitSettingsSource):
    """The last source: it sets nothing, and sees what each source before it has set."""

    found: dict[str, str]

    def __call__(self) -> dict[str, Any]:
        self.found = {}
        for origin, document in reversed(self.settings_sources_data.items()):
            for section, table in document.items():
                for key, value in table.items():
                    dotted = f"{section}.{key}"
                    entries = [f"{dotted}.{name}" for name in value] if (section, key) in TABLES else [dotted]
                    self.found |= dict.fromkeys(entries, origin)
        return {}


def load(config_file: Path | None, env: Mapping[str, str], root: Path = Path("/")) -> Settings:
    """Settings of this node. Raises ConfigError that names every fault at once.

    Without `config_file`, `SPARKD_CONFIG` names the file, else it is /etc/sparkd/sparkd.toml below `root`. Only the
    last may be missing.
    """
    return load_with_origins(config_file, env, root).settings


def load_with_origins(config_file: Path | None, env: Mapping[str, str], root: Path = Path("/")) -> Loaded:
    """As `load`, with the file or variable that each value came from."""
    problems: list[str] = []
    files = list(_files(config_file, env, root, problems))
    origins = Origins(Settings, {})
    sources = (*reversed([*files, *_variables(env, problems)]), origins)
    try:
        settings = Settings(_build_sources=(sources, {}))
    except ValidationError as error:
        problems.extend(_lines(error.errors(), origins))
    if problems:
        raise ConfigError("\n".join(problems), HINT)
    return Loaded(settings, origins.found, tuple(file.path for file in files))


def keys() -> dict[Key, FieldInfo]:
    """Every key that there is, in the order of the model."""
    sections = Settings.model_fields.items()
    return {(name, key): info for name, section in sections for key, info in type(section.default).model_fields.items()}


def _well_formed(document: Mapping[str, object], origin: str, problems: list[str]) -> dict[str, dict[str, object]]:
    """The known keys of a source, with tables ready to be merged. All else is added to `problems`."""
    good: dict[str, dict[str, object]] = {}
    for section, table in document.items():
        if section not in Settings.model_fields:
            problems.append(f"{origin}: {_unknown((section,))}")
        elif not isinstance(table, dict):
            problems.append(f"{origin}: {faults.said((section,), table)}: must be a table, [{section}]")
        else:
            good[section] = {}
            for name, value in table.items():
                try:
                    good[section][name] = _mergeable((section, name), value)
                except ValueError as error:
                    problems.append(f"{origin}: {error}")
    return good


def _mergeable(key: Key, value: object) -> object:
    if key not in keys():
        raise ValueError(_unknown(key))
    if key not in TABLES:
        return value
    if not isinstance(value, dict):
        raise ValueError(f"{faults.said(key, value)}: must be a table of names and values")
    try:
        entries = TABLES[key](value)
    except ValueError as error:
        raise ValueError(f"{'.'.join(key)}: {error}") from None
    # The library merges each dict with the one below it, but a flag's JSON value is replaced as a whole.
    return {name: MappingProxyType(one) if isinstance(one, dict) else one for name, one in entries.items()}


def _unknown(key: Key) -> str:
    dotted, known = ".".join(key), [".".join(one) for one in keys()]
    near = (did_you_mean(dotted, Settings.model_fields) if len(key) == 1 else "") or did_you_mean(dotted, known)
    return f"{dotted}: there is no such key{near}"


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
        else:
            is_flag = at == ("engine", "args")
            at = (*at, entry.lower() if is_flag else entry)
            yield Variable(name, at, _parsed(env[name], None if is_flag else ""), problems)


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


def _files(config_file: Path | None, env: Mapping[str, str], root: Path, problems: list[str]) -> Iterator[File]:
    named = config_file or (Path(env[FILE_VARIABLE]) if env.get(FILE_VARIABLE) else None)
    main = named or root / DEFAULT_FILE
    for path in (main, *_drop_ins(main.parent / "conf.d", trusted=named is None)):
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
        found, owners = folder.stat(), (0, os.geteuid())
        if not trusted and (folder.lstat().st_uid not in owners or found.st_uid not in owners or found.st_mode & 0o022):
            raise ConfigError(
                f"{folder}: others may write in it, and what stands in it is read after the named file",
                f"chown root {folder} && chmod go-w {folder}, or name a file that stands elsewhere",
            )
        return sorted(path for path in folder.iterdir() if path.name.endswith(".toml"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error.strerror}") from None


def _lines(errors: list[ErrorDetails], origins: Origins) -> Iterator[str]:
    for error in errors:
        context = error.get("ctx", {})
        at = context.get("at") or ".".join(str(one) for one in error["loc"][:2])
        origin = origins.found.get(at) or origins.found.get(context.get("other", "")) or "default"
        section, _, key = at.partition(".")
        document = origins.settings_sources_data.get(origin, {})
        found = document.get(section, {}).get(key, context.get("found"))
        yield f"{origin}: {faults.said((at,), found)}: {faults.needed(error['msg'])}"
