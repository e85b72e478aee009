"""What `sparkd model pull` downloads: the repository that is meant, its folder, the room there, and the hub's token."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from sparkd.base.cluster.membership import resolve_context
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.disks import Room, find_unmounted, read_rooms
from sparkd.base.host.files import Files
from sparkd.base.host.ownership import read_private
from sparkd.base.lib.errors import BlockedError, ConfigError, UsageError
from sparkd.base.lib.text import did_you_mean, sanitize
from sparkd.base.plan.model import pull_command
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import SUFFIX, find_recipes, recipe_folders
from sparkd.base.recipes.schema import Model
from sparkd.base.recipes.types import REPO
from sparkd.tools.models.hub import Repo
from sparkd.tools.models.peers import require_room

TOKEN = "HF_TOKEN"  # noqa: S105 - the variable's name


class ModelSource(NamedTuple):
    """A repository of the hub that is to be downloaded."""

    name: str
    model: Model
    """The configured or named recipe's model, which may be another one."""

    @property
    def is_of_recipe(self) -> bool:
        """Whether the recipe's model is this one. The hub's repositories differ in more than upper and lower case."""
        return self.name.lower() == self.model.repo.lower()

    @property
    def revision(self) -> str | None:
        """The recipe's revision; None where it has none, or its model is another one."""
        return (self.model.revision if self.is_of_recipe else "") or None

    def folder(self, settings: Settings) -> str:
        """The recipe's folder where its model is this one; else a folder of the model's name.

        Raises UsageError where another model of the recipe has that folder.
        """
        name, model = self
        last_part = name.rpartition("/")[2]
        has_its_folder = self.is_of_recipe or last_part.lower() == model.path.rpartition("/")[2].lower()
        path = model.path if has_its_folder else last_part
        if path == model.path and model.repo and not self.is_of_recipe:
            raise UsageError(f"{path} is the folder of {model.repo}, not of {name}", "name another folder by --to")
        return path if path.startswith("/") else f"{settings.engine.models_dir}/{path}"


def choose_folder(to: str | None, name: str | None, source: ModelSource, settings: Settings) -> str:
    """The folder to download into: `to`, else the model's own.

    Raises UsageError where `to` is another folder than the configured model's, and no name says what belongs there.
    """
    folder = os.path.abspath(to) if to else source.folder(settings)  # noqa: PTH100 - links stay as they are
    if to and not name and folder != source.folder(settings):
        reason = f"{folder} is not the folder of {source.name}, the configured model"
        raise UsageError(reason, f"name its model: {pull_command(folder)}")
    return folder


def choose_repo(word: str | None, settings: Settings, host: Host) -> ModelSource:
    """The repository of that name, or of that recipe; without either, the configured recipe's.

    Raises UsageError, ConfigError.
    """
    if word and "/" in word and not word.endswith(SUFFIX):
        if not REPO.fullmatch(word):
            raise UsageError(f"{word} is no name of a model on the hub", "such as deepseek-ai/DeepSeek-V4-Flash")
        with suppress(ConfigError):  # a named model needs no good recipe
            return ModelSource(word, load_recipe(settings.engine.recipe, recipe_folders()).recipe.model)
        return ModelSource(word, Model())
    if word is None and settings.cluster.follow_head:
        recipe = resolve_context(settings, None, host).recipe
        model, recipe_name = recipe.model, recipe.name
    else:
        recipe_name = word or settings.engine.recipe
        if word and "/" in word:
            recipe_name = os.path.abspath(word)  # noqa: PTH100 - links stay as they are
        model = _load_model(recipe_name)
    if not model.repo:
        hint = "name it: sudo sparkd model pull ORGANISATION/NAME"
        raise UsageError(f"recipe {recipe_name} does not say where its model is published", hint)
    return ModelSource(model.repo, model)


def _load_model(recipe_name: str) -> Model:
    """The model of a recipe, by its name or path. Raises ConfigError.

    For a name that no recipe has, the error names the repository of a model with that name.
    """
    recipes = find_recipes(recipe_folders())
    if recipe_name and "/" not in recipe_name and recipe_name not in recipes:
        repos = (repo for known_name in recipes for repo in _read_repo(known_name))
        repo = next((repo for repo in repos if repo.endswith(f"/{recipe_name}")), "ORGANISATION/NAME")
        reason = f"there is no recipe {sanitize(recipe_name, 60)}{did_you_mean(recipe_name, recipes)}"
        raise ConfigError(reason, f"by the model's name: sudo sparkd model pull {repo}")
    return load_recipe(recipe_name, recipe_folders()).recipe.model


def _read_repo(recipe_name: str) -> Iterator[str]:
    """Yield the repository of the recipe's model; nothing for a recipe that can't be loaded."""
    with suppress(ConfigError):
        yield load_recipe(recipe_name, recipe_folders()).recipe.model.repo


def require_download_room(repo: Repo, folder: str, host: Host) -> tuple[int | None, Room]:
    """Bytes to download, None where that is not known, and the room for them.

    Raises BlockedError without room, and where the folder's disk is not mounted.
    """
    if mount := find_unmounted(host.files, folder):
        hint = f"sudo mount {quote(mount)}; or take its line out of /etc/fstab"
        raise BlockedError(f"{folder} would be on another disk: nothing is mounted at {mount}", hint)
    need_bytes = repo.missing_bytes(Path(folder))
    (room,) = read_rooms(host, (folder,))
    if need_bytes:
        require_room(room, need_bytes, f" for {repo.name}", "; or name a folder elsewhere by --to", None)
    return need_bytes, room


def read_token(path: str | None, files: Files) -> str | None:
    """The token in the file. None without a path: the client then uses that of `hf auth login`. Raises UsageError."""
    if not path:
        return None
    hint = f"chmod 600 {path}, of root or yourself; the token alone on one line"
    try:
        file = read_private(files, os.path.abspath(path), 4096, files.owner_uid, os.geteuid())  # noqa: PTH100
    except FileNotFoundError as error:
        raise UsageError(f"the token can't be read from {path}: {error.strerror}", hint) from None
    except ConfigError as error:
        raise UsageError(error.reason, hint) from None
    token = file.content.strip()
    if not token.isascii() or not token.decode("ascii", "replace").isprintable() or b" " in token or not token:
        raise UsageError(f"{path} holds no token", hint)
    return token.decode()
