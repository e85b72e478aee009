"""Where settings come from: a file, `conf.d` beside it, the environment; later ones win, key by key."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sparkd import faults, flags, text_file
from sparkd.errors import ConfigError
from sparkd.nearest import did_you_mean
from sparkd.settings.model import Settings

DEFAULT_FILE = "etc/sparkd/sparkd.toml"
PREFIX = "SPARKD_"
FILE_VARIABLE = "SPARKD_CONFIG"
HINT = "`sparkd config show --default` lists every key"

Key = tuple[str, ...]
Entries = Callable[[Mapping[str, object]], Mapping[str, object]]
TABLES: dict[Key, Entries] = {
    ("engine", "args"): flags.flags,
    ("engine", "env"): flags.variables,
    ("engine", "secrets"): flags.secret_files,
}
"""Keys that are tables, each with what checks its entries: layers merge these entry by entry."""


class Loaded(Struct, frozen=True):
    settings: Settings
    origins: Mapping[str, str]
    """File or variable that set a dotted key, such as `engine.env.NAME`. What is absent has its default."""
    files: tuple[Path, ...]


class _Layers(Struct):
    """What the layers said so far, who said it last, and every fault on the way."""

    values: dict[Key, object] = field(default_factory=dict)
    origins: dict[Key, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def put(self, key: Key, value: object, origin: str) -> None:
        if key not in TABLES:
            self.values[key], self.origins[key] = value, origin
        elif isinstance(value, Mapping):
            self._put_table(key, value, origin)
        else:
            self.problems.append(f"{origin}: {faults.said(key, value)}: must be a table of names and values")

    def _put_table(self, key: Key, table: Mapping[str, object], origin: str) -> None:
        try:
            entries = TABLES[key](table)
        except ValueError as error:
            self.problems.append(f"{origin}: {'.'.join(key)}: {error}")
            return
        for name, value in entries.items():
            self.values[(*key, name)], self.origins[(*key, name)] = value, origin

    def nested(self) -> dict[str, dict[str, object]]:
        document: dict[str, dict[str, object]] = {}
        for key, value in self.values.items():
            section = document.setdefault(key[0], {})
            if len(key) == 2:
                section[key[1]] = value
            else:
                table = section.setdefault(key[1], {})
                assert isinstance(table, dict)
                table[key[2]] = value
        return document


def load(config_file: Path | None, env: Mapping[str, str], root: Path = Path("/")) -> Settings:
    """Settings of this node. Raises ConfigError that names every fault at once.

    Without `config_file`, `SPARKD_CONFIG` names the file, else it is /etc/sparkd/sparkd.toml below `root`. Only the
    last may be missing.
    """
    return load_with_origins(config_file, env, root).settings


def load_with_origins(config_file: Path | None, env: Mapping[str, str], root: Path = Path("/")) -> Loaded:
    """As `load`, with the file or variable that each value came from."""
    layers = _Layers()
    for path, required in _files(config_file, env, root):
        _read_file(layers, path, required)
    for name in sorted(env):
        if name.startswith(PREFIX) and name != FILE_VARIABLE:
            _read_variable(layers, name, env[name])
    settings = None
    try:
        settings = Settings.model_validate(layers.nested())
    except ValidationError as error:
        layers.problems.extend(_lines(error.errors(), layers))
    if layers.problems or settings is None:
        raise ConfigError("\n".join(layers.problems), HINT)
    origins = {".".join(key): origin for key, origin in layers.origins.items()}
    return Loaded(settings, origins, tuple(layers.files))


def keys() -> list[Key]:
    """Every key that there is, in the order of the model."""
    sections = Settings.model_fields.items()
    return [(section, key) for section, info in sections for key in type(info.default).model_fields]


def _files(config_file: Path | None, env: Mapping[str, str], root: Path) -> Iterator[tuple[Path, bool]]:
    named = config_file or (Path(env[FILE_VARIABLE]) if env.get(FILE_VARIABLE) else None)
    main = named or root / DEFAULT_FILE
    yield main, named is not None
    try:
        if named is not None:
            _refuse_foreign(main.parent / "conf.d")
        drop_ins = sorted(path for path in (main.parent / "conf.d").iterdir() if path.name.endswith(".toml"))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise ConfigError(f"{main.parent / 'conf.d'}: cannot be read: {error.strerror}") from None
    for path in drop_ins:
        yield path, True


def _refuse_foreign(folder: Path) -> None:
    """Whoever names a file, such as one in /tmp, does not mean what others have put beside it."""
    trusted = (0, os.geteuid())
    found = folder.stat()
    if folder.lstat().st_uid not in trusted or found.st_uid not in trusted or found.st_mode & 0o022:
        raise ConfigError(
            f"{folder}: others may write in it, and what stands in it is read after the named file",
            f"chown root {folder} && chmod go-w {folder}, or name a file that stands elsewhere",
        )


def _read_file(layers: _Layers, path: Path, required: bool) -> None:
    import tomllib

    try:
        document = tomllib.loads(text_file.read(path))
    except FileNotFoundError:
        if required:
            layers.problems.append(f"{path}: does not exist")
        return
    except ConfigError as error:
        layers.problems.append(error.reason)
        return
    except (ValueError, RecursionError) as error:
        layers.problems.append(f"{path}: is no TOML: {error}")
        return
    layers.files.append(path)
    known = keys()
    for section, table in document.items():
        if section not in Settings.model_fields:
            layers.problems.append(f"{path}: {_unknown((section,), known)}")
        elif not isinstance(table, dict):
            layers.problems.append(f"{path}: {faults.said((section,), table)}: must be a table, [{section}]")
        else:
            for key, value in table.items():
                if (section, key) in known:
                    layers.put((section, key), value, str(path))
                else:
                    layers.problems.append(f"{path}: {_unknown((section, key), known)}")


def _unknown(key: Key, known: list[Key]) -> str:
    names = [".".join(one) for one in known] if len(key) > 1 else [one[0] for one in known]
    if len(key) == 1 and not did_you_mean(key[0], names):
        names = [".".join(one) for one in known]
    dotted = ".".join(key)
    return f"{dotted}: there is no such key{did_you_mean(dotted, names)}"


def _read_variable(layers: _Layers, name: str, raw: str) -> None:
    known = keys()
    parts = name.removeprefix(PREFIX).split("__", 2)
    key = tuple(part.lower() for part in parts[:2])
    if key not in known or parts[:2] != [part.upper() for part in key] or (len(parts) == 3 and key not in TABLES):
        names = [FILE_VARIABLE, *(PREFIX + "__".join(one).upper() for one in known)]
        layers.problems.append(f"{name}: there is no such setting{did_you_mean(name.upper(), names)}")
    elif len(parts) == 3:
        entry, value = (parts[2].lower(), _json_or_text(raw)) if key == ("engine", "args") else (parts[2], raw)
        layers.put(key, {entry: value}, name)
    else:
        layers.put(key, _value(key, raw), name)


def _value(key: Key, raw: str) -> object:
    """What a variable's text means: text where text is the default, a list by commas or JSON, all else JSON."""
    default = getattr(getattr(Settings(), key[0]), key[1])
    if isinstance(default, str):
        return raw
    if isinstance(default, tuple) and not raw.lstrip().startswith("["):
        return [part.strip() for part in raw.split(",")] if raw.strip() else []
    return _json_or_text(raw)


def _json_or_text(raw: str) -> object:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw


def _lines(errors: list[ErrorDetails], layers: _Layers) -> Iterator[str]:
    for error in errors:
        context = error.get("ctx", {})
        at = tuple(str(context["at"]).split(".")) if "at" in context else tuple(str(one) for one in error["loc"][:2])
        other = tuple(str(context.get("other", "")).split("."))
        origin = layers.origins.get(at) or layers.origins.get(other) or "default"
        found = layers.values.get(at, context.get("found"))
        yield f"{origin}: {faults.said(at, found)}: {faults.needed(error['msg'])}"
