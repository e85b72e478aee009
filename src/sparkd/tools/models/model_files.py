"""A model's files: their folder, whether they are whole, where they are published, and copies on other nodes."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sparkd.agent.actions.shared_folders import find_owner
from sparkd.agent.preflight.checks.weights import ModelWeights
from sparkd.base.cluster.membership import resolve_context
from sparkd.base.config import Settings, load_settings
from sparkd.base.host import Host, shm, weights
from sparkd.base.host.disks import Room, read_rooms
from sparkd.base.host.files import Files, Kind
from sparkd.base.host.ownership import ROOT, read_private
from sparkd.base.lib.errors import BlockedError, ConfigError, UsageError
from sparkd.base.lib.text import did_you_mean, sanitize, size
from sparkd.base.plan.model import pull_command
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import SUFFIX, find_recipes, recipe_folders
from sparkd.base.recipes.schema import Model
from sparkd.base.recipes.types import REPO
from sparkd.tools.models.hub import Repo
from sparkd.tools.models.peers import require_room
from sparkd.tools.models.ssh import NOT_FOUND, SshHost, read_error

TOKEN = "HF_TOKEN"  # noqa: S105 - the variable's name
TOKEN_LIMIT_BYTES = 4096
RSYNC_OPTIONS = ("--partial-dir=.sparkd-partial", "--exclude=*.incomplete", "--exclude=.sparkd-partial/")
"""A file gets its name there once it is whole. The part of an interrupted one is kept in a folder, and resumed."""


def find_folder(word: str | None, host: Host) -> str:
    """The folder of the model of that name or path; without one, that of the plan's model."""
    if word and word.startswith("/"):
        return word.rstrip("/")
    configured = load_settings(os.environ)
    if word:
        return f"{configured.engine.models_dir}/{word.strip('/')}"
    return resolve_context(configured, None, host).plan.model_path


def describe_files(folder: str, host: Host) -> str:
    """A line on the model's files. Raises BlockedError (10) where the loader would fail."""
    with suppress(FileNotFoundError, NotADirectoryError):
        if host.files.stat(folder).kind is Kind.FILE:
            raise UsageError(f"{folder} is a file, not a model's folder", "name the folder that it is in")
    facts, verdict = ModelWeights(folder, pull=_find_pull(folder, host)).run(host)
    if not facts.exists:
        raise BlockedError(f"{folder} is missing or empty", "put the model there, or name another folder")
    if verdict.level.blocks:
        raise BlockedError(f"{folder}: {verdict.reason}", verdict.hint)
    return f"{folder}: {verdict.reason}"


def _find_pull(folder: str, host: Host) -> str:
    """The command that downloads the plan's model, where that is its folder; else empty."""
    with suppress(ConfigError, UsageError, OSError):
        plan = resolve_context(load_settings(os.environ), None, host).plan
        return plan.model_pull if plan.model_path == folder else ""
    return ""


def is_open(folder: str, host: Host) -> bool:
    """Whether a program, such as a loading engine, has the model's files open."""
    with suppress(OSError):
        return bool(shm.find_uses(host.files, host.processes(), weights.list_shards(host.files, folder)).used)
    return False


def refuse_changed(
    folder: str, hashes: Mapping[str, str], files: Files, show: Callable[[str], None], count: Callable[[int], None]
) -> None:
    """Raises BlockedError (10) where a file has another SHA-256 than in `hashes`, by name.

    `show` gets the name of each file before it is read, `count` the bytes of each piece.
    """
    changed = []
    for name, sha256 in hashes.items():
        show(name)
        if weights.compute_hash(files, f"{folder}/{name}", count) != sha256:
            changed.append(name)
    if changed:
        more = f" and {len(changed) - 1} more" if changed[1:] else ""
        hint = "remove them there, and fetch them again: `sparkd model pull` or `sync`; the disk: sudo dmesg"
        raise BlockedError(f"{folder}: {changed[0]}{more} is not what was downloaded: another SHA-256", hint)


class Published(NamedTuple):
    """A repository of the hub."""

    name: str
    model: Model
    """The recipe's model, which may be another one."""

    @property
    def revision(self) -> str | None:
        """The recipe's revision; None where it has none, or its model is another one."""
        return (self.model.revision if self.name == self.model.repo else "") or None

    def folder(self, settings: Settings) -> str:
        """The recipe's folder where its model is this one; else a folder of the model's name.

        Raises UsageError where another model of the recipe has that folder.
        """
        name, model = self
        last_part = name.rpartition("/")[2]
        is_of_recipe = name == model.repo or last_part.lower() == model.path.rpartition("/")[2].lower()
        path = model.path if is_of_recipe else last_part
        if path == model.path and model.repo and name.lower() != model.repo.lower():
            raise UsageError(f"{path} is the folder of {model.repo}, not of {name}", "name another folder by --to")
        return path if path.startswith("/") else f"{settings.engine.models_dir}/{path}"


def choose_folder(to: str | None, name: str | None, published: Published, settings: Settings) -> str:
    """The folder to download into: `to`, else the model's own.

    Raises UsageError where `to` is another folder than the configured model's, and no name says what belongs there.
    """
    folder = os.path.abspath(to) if to else published.folder(settings)  # noqa: PTH100 - links stay as they are
    if to and not name and folder != published.folder(settings):
        reason = f"{folder} is not the folder of {published.name}, the configured model"
        raise UsageError(reason, f"name its model: {pull_command(folder)}")
    return folder


def choose_repo(word: str | None, settings: Settings, host: Host) -> Published:
    """The repository of that name, or of that recipe; without a word the configured recipe's.

    Raises UsageError, ConfigError.
    """
    if word and "/" in word and not word.endswith(SUFFIX):
        if not REPO.fullmatch(word):
            raise UsageError(f"{word} is no name of a model on the hub", "such as deepseek-ai/DeepSeek-V4-Flash")
        with suppress(ConfigError):  # a named model needs no good recipe
            return Published(word, load_recipe(settings.engine.recipe, recipe_folders()).recipe.model)
        return Published(word, Model())
    if word is None and settings.cluster.follow_head:
        context = resolve_context(settings, None, host).recipe
        model, recipe = context.model, context.name
    else:
        recipe = word or settings.engine.recipe
        recipe = os.path.abspath(recipe) if word and "/" in word else recipe  # noqa: PTH100 - links stay as they are
        model = _load_model(recipe)
    if not model.repo:
        hint = "name it: sudo sparkd model pull ORGANISATION/NAME"
        raise UsageError(f"recipe {recipe} does not say where its model is published", hint)
    return Published(model.repo, model)


def _load_model(recipe: str) -> Model:
    """The recipe's model. Raises ConfigError.

    For a name that no recipe has, the error names the repository of a model with that name.
    """
    recipes = find_recipes(recipe_folders())
    if recipe and "/" not in recipe and recipe not in recipes:
        repos = dict.fromkeys(repo for name in recipes for repo in _read_repo(name) if repo.endswith(f"/{recipe}"))
        reason = f"there is no recipe {sanitize(recipe, 60)}{did_you_mean(recipe, recipes)}"
        name = next(iter(repos), "ORGANISATION/NAME")
        raise ConfigError(reason, f"by the model's name: sudo sparkd model pull {name}")
    return load_recipe(recipe, recipe_folders()).recipe.model


def _read_repo(recipe: str) -> Iterator[str]:
    """Yield the repository of the recipe's model; nothing for a recipe that can't be loaded."""
    with suppress(ConfigError):
        yield load_recipe(recipe, recipe_folders()).recipe.model.repo


def require_download_room(repo: Repo, folder: str, host: Host) -> tuple[int | None, Room]:
    """Bytes to download, None where that is not known, and the room for them. Raises BlockedError without room."""
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
        file = read_private(files, os.path.abspath(path), TOKEN_LIMIT_BYTES, *ROOT, os.geteuid())  # noqa: PTH100
    except FileNotFoundError as error:
        raise UsageError(f"the token can't be read from {path}: {error.strerror}", hint) from None
    except ConfigError as error:
        raise UsageError(error.reason, hint) from None
    token = file.content.strip()
    if not token.isascii() or not token.decode("ascii", "replace").isprintable() or b" " in token or not token:
        raise UsageError(f"{path} holds no token", hint)
    return token.decode()


def send_model(folder: str, show: Callable[[str], None], peer: SshHost, *, quick: bool) -> None:
    """Send the folder to a peer, and let sparkd there check it. `quick`: without reading all. Raises BlockedError."""
    source, prefix = f"{folder}/", f"{peer.address}: "
    options = (*RSYNC_OPTIONS, *peer.choose_writer(folder))
    if ids := find_owner(Path(folder)):  # rsync follows links, and this owner may put one there to a file of root's
        options += (f"--copy-as={ids[0]}:{ids[1]}",)
    need_bytes, room = peer.count_to_send(source, folder, *options), peer.read_room(folder)
    if need_bytes:
        require_room(room, need_bytes, "", "", peer)
    show(prefix + (f"{size(need_bytes)} to send" if need_bytes else "nothing to send"))
    peer.send(source, folder, *options)
    show(f"{prefix}its files are checked there")
    check = ("sparkd", "model", "check", *(("--quick",) if quick else ()), "--", folder)
    check_end = peer.run(*check, seconds=4 * 3600.0)  # enough to read all of a slow disk
    if check_end.code == NOT_FOUND:
        show(f"{prefix}copied, each sent file with its checksum; it has no sparkd to check it with")
        return
    if check_end.code:
        lines = check_end.trouble.strip().splitlines() or [f"ended with {check_end.code}"]
        reason, hint = read_error(check_end.trouble) or (sanitize(lines[-1], 400), "")
        raise BlockedError(prefix + reason, hint)
    for line in check_end.answer.splitlines():
        show(f"{prefix}{sanitize(line, 400)}")
