"""Sources of settings; later ones win, key by key: `sparkd init`'s file, a person's, `conf.d`, the environment."""

import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from msgspec import Struct
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource, TomlConfigSettingsSource

from sparkd.base.config.layers import Key, Layers, Location, TableCheck, known_keys
from sparkd.base.config.settings import Settings
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import AwaitedError, ConfigError, unreadable
from sparkd.base.lib.text import did_you_mean, parse_json
from sparkd.base.lib.text_file import read_file, refuse_dangling
from sparkd.base.vllm.args import TABLE_CHECKS, describe_repeat

DEFAULT_FILE = "etc/sparkd/sparkd.toml"
FOLDER = "conf.d"
"""The folder beside the file."""
INIT_FILE = "10-init.toml"
"""The file that `sparkd init` writes to FOLDER. It is read first, so that whatever a person writes wins over it."""
PREFIX = "SPARKD_"
FILE_VARIABLE = "SPARKD_CONFIG"

TABLES: dict[Key, TableCheck] = {("engine", name): check for name, check in TABLE_CHECKS.items()}
"""Keys that are tables, each with the check of its entries: sources are merged entry by entry."""


class LoadedSettings(Struct, frozen=True):
    """Settings, with what set them."""

    settings: Settings
    origins: Mapping[str, str]
    """File or variable that set a dotted key, such as `engine.env.NAME`. What is absent has its default."""
    files: tuple[Path, ...]
    """Files that were read, in order."""


class File(TomlConfigSettingsSource):
    """One file, whose name is the origin of what it sets."""

    def __init__(self, path: Path, real: Path) -> None:
        """`real`: the path to give to the kernel."""
        self.__name__ = str(path)  # the origin of its values
        super().__init__(Settings, real)

    def _read_files(self, files: Any, deep_merge: bool = False) -> dict[str, Any]:  # noqa: ARG002
        """The library ignores what is no regular file, and reads without a limit."""
        return tomllib.loads(read_file(files))


class Variable(EnvSettingsSource):
    """One variable of the environment, whose name is the origin of what it sets: a key, or an entry of a table."""

    def __init__(self, name: str, key: Key, value: Any) -> None:
        self.__name__ = name
        # case_sensitive keeps the case of a table's entry. Sections and keys are in lower case.
        super().__init__(
            Settings, case_sensitive=True, env_prefix=PREFIX, env_nested_delimiter="__", env_nested_max_split=2
        )
        self.env_vars = {PREFIX + "__".join(key): value}


def load_settings(env: Mapping[str, str], root: Path = Path("/")) -> Settings:
    """Settings of this node. Raises ConfigError that names every fault at once, AwaitedError.

    `SPARKD_CONFIG` names the file, else it is /etc/sparkd/sparkd.toml below `root`. Only the last may be missing.
    """
    return load_with_origins(env, root).settings


def load_with_origins(env: Mapping[str, str], root: Path = Path("/")) -> LoadedSettings:
    """Settings as from `load_settings`, with the file or variable that each value came from."""
    layers = Layers[Settings, str](Settings, TABLES, "a table, [{}]".format, _trim_location, describe_repeat)
    files = list(_open_files(env, root, layers.problems))
    sources: list[File | Variable] = [*files, *_read_variables(env, layers.problems)]
    for source in sources:
        layers.add(source(), _same_origin(source.__name__))
    settings = layers.validate(_same_origin("default"))
    if layers.problems or settings is None:
        raise ConfigError("\n".join(dict.fromkeys(layers.problems)), "`sparkd config show --default` lists every key")
    return LoadedSettings(settings, layers.origins(), tuple(Path(file.__name__) for file in files))


def _trim_location(location: Location) -> Location:
    """The part of pydantic's location that is a key: its sections, and its own name."""
    depth = 3 if location[:3] in known_keys(Settings) else 2  # three parts as in cluster.allow; an entry is cut off
    return location[:depth]


def _same_origin(name: str) -> Callable[[Key], str]:
    return lambda _: name


def setting_keys() -> dict[Key, FieldInfo]:
    """Every key of a section, in the order of the model."""
    return {key: info for key, info in known_keys(Settings).items() if len(key) == 2}


def _read_variables(env: Mapping[str, str], problems: list[str]) -> Iterator[Variable]:
    keys_by_variable = {PREFIX + "__".join(key).upper(): key for key in setting_keys()}
    for name in sorted(name for name in env if name.startswith(PREFIX) and name != FILE_VARIABLE):
        section, _, rest = name.partition("__")
        key_name, separator, entry_name = rest.partition("__")
        key = keys_by_variable.get(f"{section}__{key_name}", ())
        if not key or (separator and key not in TABLES):
            suggestion = did_you_mean(name.upper(), [FILE_VARIABLE, *keys_by_variable])
            problems.append(f"{name}: there is no such setting{suggestion}")
        elif not separator:
            yield Variable(name, key, _parse_variable(env[name], setting_keys()[key].default))
        elif key == ("engine", "args"):
            yield Variable(name, (*key, entry_name.lower()), _parse_variable(env[name], None))
        else:
            yield Variable(name, (*key, entry_name), env[name])


def _parse_variable(raw: str, default: object) -> object:
    """A variable's value: text where the default is text; a list by commas or JSON where that is a list; else JSON.

    Text that is no JSON stays text: the library would take yes for true.
    """
    if isinstance(default, str):
        return raw
    if isinstance(default, tuple) and not raw.lstrip().startswith("["):
        return [part.strip() for part in raw.split(",")] if raw.strip() else []
    try:
        return parse_json(raw)
    except ValueError:
        return raw


def _open_files(env: Mapping[str, str], root: Path, problems: list[str]) -> Iterator[File]:
    named_file = env.get(FILE_VARIABLE)
    main_path = Path(named_file) if named_file else root / DEFAULT_FILE

    def real(path: Path) -> Path:
        """The path to give to the kernel: below another `root` than /, no symlink leads out of it."""
        return path if named_file or root == Path("/") else Path(Files(str(root)).real(f"/{path.relative_to(root)}"))

    folder = main_path.parent / FOLDER
    drop_ins = [folder / file.name for file in _list_drop_ins(real(folder), trusted=not named_file)]
    for path in _reading_order(main_path, drop_ins):
        try:
            yield File(path, real(path))  # reads it
        except FileNotFoundError:
            if path.is_symlink():
                problems.append(f"{path}: is a link to a file that does not exist")
            elif named_file or path != main_path:
                problems.append(f"{path}: does not exist")
        except AwaitedError:
            raise
        except ConfigError as error:
            problems.append(error.reason)
        except (ValueError, RecursionError) as error:
            problems.append(f'{path}: is no TOML: {error}; a text stands in quotes, as in recipe = "NAME"')


def _reading_order(main: Path, drop_ins: Iterable[Path]) -> list[Path]:
    """The files in the order in which they are read: a later one wins."""
    # False is before True: the file of init, then the main one, then the others by name.
    return sorted((main, *drop_ins), key=lambda path: (path != main.parent / FOLDER / INIT_FILE, path != main, path))


def _list_drop_ins(folder: Path, trusted: bool) -> list[Path]:
    """TOML files of a folder. Raises ConfigError where it is not `trusted` and others may write to it, AwaitedError.

    Naming a file by SPARKD_CONFIG does not make the folder beside it trusted, such as one in /tmp.
    """
    try:
        real, link = folder.stat(), folder.lstat()
        if not trusted and (not {real.st_uid, link.st_uid} <= {0, os.geteuid()} or real.st_mode & 0o022):
            quoted = quote(str(folder))
            raise ConfigError(
                f"{folder}: others may write in it, and what stands in it is read with the named file",
                f"sudo chown root {quoted} && sudo chmod go-w {quoted}, or name a file that stands elsewhere",
            )
        # None whose name begins with a dot, as an editor's: Emacs' lock is a link to nothing.
        return [path for path in folder.iterdir() if path.name.endswith(".toml") and not path.name.startswith(".")]
    except FileNotFoundError:
        refuse_dangling(folder)
        return []
    except OSError as error:
        if isinstance(error, NotADirectoryError) and not os.path.lexists(folder):
            return []  # beside a file that SPARKD_CONFIG names below another file
        raise unreadable(error)(f"{folder}: cannot be read: {error.strerror}", f"sudo ls -ld {folder}") from None
