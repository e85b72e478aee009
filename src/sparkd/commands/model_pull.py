"""`sparkd model pull`: a model from the hub, into the folder where the recipe looks for it."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sparkd.errors import BlockedError, ConfigError, ExitCode, UsageError

if TYPE_CHECKING:
    from sparkd.commands.console import Progress
    from sparkd.hands.hub import Repo
    from sparkd.host import Host
    from sparkd.host.files import Files
    from sparkd.recipes.schema import Model
    from sparkd.settings import Settings

TOKEN = "HF_TOKEN"  # noqa: S105 - the variable's name
TOKEN_LIMIT_BYTES = 4096
SPARE_BYTES = 1 << 30
"""Left on the disk beside the model."""


def arguments(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    pull = actions.add_parser(
        "pull",
        help="download a model from Hugging Face, or go on with a download",
        description="Download a model by Hugging Face's client, or go on with a download that was broken off; then "
        "look at it as `check` does. HF_ENDPOINT may name a mirror, HTTPS_PROXY a proxy.",
    )
    pull.add_argument("name", nargs="?", help="such as deepseek-ai/DeepSeek-V4-Flash; the recipe's where none is named")
    pull.add_argument("--revision", help="a branch, a tag or a commit, instead of the newest files")
    pull.add_argument("--to", metavar="FOLDER", help="folder of the model, instead of its own below engine.models_dir")
    pull.add_argument(
        "--exclude", metavar="PATTERN", action="append", default=[], help='files to leave out, such as "original/*"'
    )
    pull.add_argument(
        "--token-file", metavar="FILE", help=f"file of a token; else that of {TOKEN} under engine.secrets, if any"
    )


def run(args: argparse.Namespace) -> int:
    from sparkd import settings
    from sparkd.commands import model_check
    from sparkd.commands.console import Progress
    from sparkd.hands import hub
    from sparkd.host import Host

    host = Host()
    configured = settings.load(None, os.environ)
    name, folder = _wanted(args.name, args.to, configured)
    token = _token(args.token_file or configured.engine.secrets.get(TOKEN), host.files)
    repo = hub.find_repo(name, args.revision, token, tuple(args.exclude))
    print(f"{name} at {repo.commit[:12]}: {len(repo.sizes)} files for {folder}", flush=True)
    _room(repo, folder, host)
    model_check.tell_of_use(folder, host)
    with Progress(1, repo.missing_bytes(Path(folder))) as progress, _ended_by_interrupt(progress):
        progress.next(name)
        hub.download(repo, Path(folder), token, progress.done)
    model_check.check(folder, host)
    model_check.compare(folder, host.files)
    return ExitCode.GOOD


@contextmanager
def _ended_by_interrupt(progress: Progress) -> Iterator[None]:
    """The download's threads would first finish their files. What they have is kept for the next time."""

    def end(number: int, _frame: object) -> None:
        progress.__exit__()  # the cursor is shown again
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _wanted(word: str | None, to: str | None, settings: Settings) -> tuple[str, str]:
    """Name of the repository, and the folder that it goes to."""
    from sparkd.recipes.schema import REPO

    model = _of_recipe(settings, needed=word is None)
    name = word or model.repo
    if not name:
        raise UsageError(
            f"recipe {settings.engine.recipe} does not say where its model is published",
            "name it: sparkd model pull ORGANISATION/NAME",
        )
    if not REPO.fullmatch(name):
        raise UsageError(f"{name} is no name of a model on the hub", "such as deepseek-ai/DeepSeek-V4-Flash")
    if to is not None:
        return name, os.path.abspath(to)  # noqa: PTH100 - links stay as they are
    last = name.rpartition("/")[2]
    fits = name == model.repo or last.lower() == model.path.rpartition("/")[2].lower()
    path = model.path if fits else last
    if path == model.path and model.repo and name.lower() != model.repo.lower():
        raise UsageError(f"{path} is the folder of {model.repo}, not of {name}", "name another folder by --to")
    return name, path if path.startswith("/") else f"{settings.engine.models_dir}/{path}"


def _of_recipe(settings: Settings, *, needed: bool) -> Model:
    """Whoever names a model may pull it before there is a recipe that is good."""
    from sparkd.recipes import load, lookup
    from sparkd.recipes.schema import Model

    with suppress(*(() if needed else (ConfigError,))):
        return load.load(settings.engine.recipe, lookup.folders()).recipe.model
    return Model()


def _token(path: str | None, files: Files) -> str | None:
    """None leaves it to the client, which looks where `hf auth login` puts one. Raises UsageError."""
    if not path:
        return None
    private = f"chmod 600 {path}, of root or yourself; the token alone on one line"
    try:
        file = files.itself(os.path.abspath(path), TOKEN_LIMIT_BYTES)  # noqa: PTH100
    except OSError as error:
        raise UsageError(f"the token can't be read from {path}: {error.strerror}", private) from None
    if file.facts.permissions & 0o077 or file.facts.uid not in (0, os.geteuid()):
        raise UsageError(f"{path} holds a token, and others than you may read or change it", private)
    token = file.content.strip()
    if not token.isascii() or not token.decode("ascii", "replace").isprintable() or b" " in token or not token:
        raise UsageError(f"{path} holds no token", private)
    return token.decode()


def _room(repo: Repo, folder: str, host: Host) -> None:
    """Raises BlockedError where the disk can't hold what is still to come."""
    from sparkd.host.disks import rooms
    from sparkd.preflight.sizes import size

    need_bytes = repo.missing_bytes(Path(folder))
    (room,) = rooms(host, (folder,))
    if need_bytes and room.free_bytes < need_bytes + SPARE_BYTES:
        raise BlockedError(
            f"{size(room.free_bytes)} free on {room.mount}, {size(need_bytes + SPARE_BYTES)} needed for {repo.name}",
            f"make room: df -h {room.mount}; or name a folder elsewhere by --to",
        )
    print(f"{size(need_bytes)} to download, {size(room.free_bytes)} free on {room.mount}", flush=True)
