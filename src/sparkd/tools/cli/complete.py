"""`sparkd __complete KIND`: words for the shells' completions, one a line, from files alone.

Runs at each press of TAB, for any user: it imports little beside the standard library, because the real reader of the
settings takes 0.2 s. A file that can't be read gives no words.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from sparkd.base.lib import recipes_dir

SETTINGS = Path("/etc/sparkd/sparkd.toml")
INIT_FILE = "conf.d/10-init.toml"
"""The file of `sparkd init`, beside SETTINGS and read before it."""
MODELS = "/srv/models"
"""Default of engine.models_dir."""
KNOWN_GOOD = Path("/var/lib/sparkd/known-good.json")
"""Only root may read it: other users get no words of it."""
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/:@+-]*")
"""bash expands the words of a completion: one with $( ) in it would run."""


def complete(kind: str) -> None:
    for word in sorted({word for word in _find_words(kind) if _PLAIN.fullmatch(word)}):
        print(word)


def _find_words(kind: str) -> Iterable[str]:
    with suppress(OSError, ValueError, RecursionError):
        match kind:
            case "recipes":
                folders = (Path("/etc/sparkd/recipes"), recipes_dir())
                return [file.stem for folder in folders for file in _list_files(folder, "*.yaml")]
            case "models":
                folder = Path(str(_read_setting("engine", "models_dir") or MODELS))
                files = [*_list_files(folder, "*/config.json"), *_list_files(folder, "*/*/config.json")]
                return [str(file.parent.relative_to(folder)) for file in files]
            case "nodes":
                nodes = _read_setting("cluster", "nodes")
                return [str(node) for node in nodes] if isinstance(nodes, list) else []
            case "ranks":
                return [str(rank) for rank, _ in enumerate(_find_words("nodes"))] or ["0"]
            case "plans":
                return re.findall(r'"plan": *"([0-9a-f]{12})', KNOWN_GOOD.read_text())
    return []


def _list_files(folder: Path, pattern: str) -> list[Path]:
    with suppress(OSError):
        return list(islice(folder.glob(pattern), 1000))
    return []


def _read_setting(section: str, key: str) -> object:
    """The last value that the files give the key."""
    value = None
    for document in _read_documents(Path(os.environ.get("SPARKD_CONFIG") or SETTINGS)):
        table = document.get(section)
        if isinstance(table, dict):
            value = table.get(key, value)
    return value


def _read_documents(settings_file: Path) -> Iterator[dict[str, object]]:
    """Yield the files of the settings in the order in which these are read: a later file wins."""
    folder = settings_file.parent
    init_file, added_files = folder / INIT_FILE, sorted(_list_files(folder / "conf.d", "[!.]*.toml"))
    for path in (init_file, settings_file, *(file for file in added_files if file != init_file)):
        with suppress(OSError, ValueError, RecursionError), path.open("rb") as stream:
            yield tomllib.loads(stream.read(1 << 20).decode())
