"""Finds recipes by name: an administrator's before a shipped one."""

from collections.abc import Sequence
from pathlib import Path

from sparkd.base.lib import recipes_dir
from sparkd.base.lib.errors import ConfigError, unreadable
from sparkd.base.lib.text import did_you_mean
from sparkd.base.lib.text_file import refuse_dangling

NOT_SET_UP, SET_UP_HINT = "this node is not set up: engine.recipe names no recipe", "sudo sparkd init --plan"
ADMINISTRATORS = "etc/sparkd/recipes"
SUFFIX = ".yaml"


def recipe_folders(root: Path = Path("/")) -> tuple[Path, ...]:
    """The administrator's folder, then the shipped one. The first that contains a name wins."""
    return root / ADMINISTRATORS, recipes_dir()


def find_recipes(folders: Sequence[Path]) -> dict[str, Path]:
    """The file of every recipe, sorted by name. Raises ConfigError where a folder can't be read."""
    recipes: dict[str, Path] = {}
    for folder in folders:
        try:
            files = sorted(folder.iterdir())
        except FileNotFoundError:
            continue
        except OSError as error:
            raise unreadable(error)(f"{folder}: cannot be read: {error.strerror}", f"sudo ls -ld {folder}") from None
        for path in files:
            if path.suffix == SUFFIX and not path.name.startswith("."):  # an editor's own, such as Emacs' lock
                recipes.setdefault(path.stem, path)
    return dict(sorted(recipes.items()))


def find_file(name: str, folders: Sequence[Path]) -> Path:
    """The file of a recipe, by its name or absolute path.

    Raises ConfigError where no folder has the name, AwaitedError where one that may have it may come by a late mount.
    """
    if not name:
        raise ConfigError(NOT_SET_UP, SET_UP_HINT)
    if name.startswith("/"):
        return Path(name)
    known = find_recipes(folders)
    for folder in folders:
        if name in known and known[name].parent == folder:
            return known[name]
        if not folder.exists():
            refuse_dangling(folder)
    searched = " and ".join(str(folder) for folder in folders) or "no folder"
    raise ConfigError(
        f"there is no recipe {name}{did_you_mean(name, known)} (looked in {searched})",
        "`sparkd recipe list` shows them all",
    )
