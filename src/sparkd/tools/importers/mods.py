"""Finds and reads mods of a foreign recipe. Runs none.

A mod is a folder with a run.sh, which both tools copy into each container and run there before the engine starts.
The names come from the recipe, the files from its publisher: nothing outside the recipe's tree is read.
"""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from sparkd.base.host.files import FileFacts, Files
from sparkd.base.lib.text import sanitize

SCRIPT = "run.sh"
MOST_FILES, MOST_BYTES = 300, 16 << 20
"""Limits of one mod. The largest published one has 30 files and 2 MB."""
_MOST_LEVELS = 4
"""Levels of folders that may hold a recipe's mods, its own included."""
_ROOTS = (".git", ".sparkrun", "run-recipe.py")
"""Names in the root of a published tree. Nothing above it belongs to the recipe."""
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A step of the path to a mod: none that leads up, and none that is hidden."""
_NO_EFFECT = re.compile(r"(?:#.*|set -[a-z]+(?: pipefail)?|echo (?:\"[^\"`$\\]*\"|'[^']*'|[\w .,:=-]*))?")
"""A line of run.sh that changes no file: empty, a comment, `set`, or `echo` of plain text."""
_COPY = re.compile(r"cp (?P<file>[\w.-]+\.jinja) \"?\$(?:WORKSPACE_DIR|\{WORKSPACE_DIR\})/(?P<name>[\w.-]+\.jinja)\"?")
"""A line of run.sh that copies a template of the mod to WORKSPACE_DIR, the folder in which the engine starts."""
BACKGROUND = re.compile(r"\bnohup\b|(?<![&>|])&[ \t]*(?:$|#)", re.MULTILINE)
"""A command that is left running: by `nohup`, or by an `&` at the end of a line that is none of `&&`, `>&`, `|&`."""


class ModError(Exception):
    """The mod cannot be taken; the message says why."""


class File(Struct, frozen=True):
    content: bytes
    executable: bool


class Mod(Struct, frozen=True):
    name: str
    files: Mapping[str, File]
    """Files by path below the mod's folder."""

    def templates(self) -> dict[str, str]:
        """The mod's templates by the name that run.sh copies them to; empty where run.sh may do anything else."""
        copies: dict[str, str] = {}
        for line in map(str.strip, self._read_script().splitlines()):
            copied = _COPY.fullmatch(line)
            if copied and copied["file"] in self.files:
                copies[copied["name"]] = copied["file"]
            elif not _NO_EFFECT.fullmatch(line):
                return {}
        return copies

    def starts_background(self) -> bool:
        """Whether run.sh seems to leave something running, which a build ends."""
        return bool(BACKGROUND.search(self._read_script()))

    def _read_script(self) -> str:
        return self.files[SCRIPT].content.decode("utf-8", "replace")


def find_mod(reference: object, recipe: Path | None, further: Path | None) -> Mod:
    """Read a mod beside the recipe, or in the folder `further`. Raises ModError, also where others may write to it."""
    text = reference if isinstance(reference, str) else json.dumps(reference, default=str)
    steps = split_reference(text)[1].removeprefix("mods/").rstrip("/").split("/")
    if not all(_FOLDER_NAME.fullmatch(step) for step in steps) or len(steps) > _MOST_LEVELS:
        raise ModError("is no name of a folder beside the recipe")
    for root, place, trusted_path in _list_places(recipe, further):
        folder = place.joinpath(*steps)
        if (folder / SCRIPT).is_file():
            owner = trusted_path.stat().st_uid
            _check_path(folder, root, (0, owner))
            return Mod(steps[-1], _read_files(folder, owner))
    raise ModError("it is not beside the recipe")


def _check_path(folder: Path, root: Path, owners: Collection[int]) -> None:
    """Raise ModError where the folder is outside of its tree, or others than the owners may change the way to it."""
    real_folder, real_root = folder.resolve(), root.resolve()  # once: a user may exchange what is there meanwhile
    if not real_folder.is_relative_to(real_root):
        raise ModError("a link leads out of the recipe's tree")
    for step, top in ((folder, root), (real_folder, real_root)):
        while step != top:
            _refuse_others(Files().stat(str(step)), step.name, owners)
            step = step.parent


def split_reference(reference: str) -> tuple[str, str]:
    """Split sparkrun's @REGISTRY/MOD. The registry is empty where none is named."""
    registry, _, path = reference[1:].partition("/")
    return (registry, path) if reference.startswith("@") else ("", reference)


def _list_places(recipe: Path | None, further: Path | None) -> Iterator[tuple[Path, Path, Path]]:
    """Tree and folder of each place that may hold mods, and the path whose owner's files are taken from there.

    A mod must stay in the tree.
    """
    roots = [(further, further)] if further else []
    roots += [(tree, recipe) for tree in list_trees(recipe) if recipe]
    for root, trusted_path in roots:
        for place in (root, *sorted(root.glob("*mods"))):
            yield root, place, trusted_path


def list_trees(recipe: Path | None) -> Iterator[Path]:
    """The recipe's folder, and those above it that were published with it."""
    folder = recipe.absolute().parent if recipe else Path("/")
    for _ in range(_MOST_LEVELS):
        if folder == folder.parent or folder.stat().st_mode & 0o002:
            return  # such as /tmp: anybody may have put a mod there
        yield folder
        if any((folder / mark).exists() for mark in _ROOTS):
            return
        folder = folder.parent


def _read_files(folder: Path, owner: int) -> dict[str, File]:
    """Read every file below a mod, all of which are to be `owner`'s: the folder may become a link at any time.

    Raises ModError also for a link: it could lead to a secret of the reader's.
    """
    files: dict[str, File] = {}
    remaining_bytes = MOST_BYTES
    try:
        for count, path in enumerate(walk(folder), 1):
            name = str(path.relative_to(folder))
            if count > MOST_FILES:
                raise ModError(f"has over {MOST_FILES} files")
            if path.is_symlink() or not (path.is_dir() or path.is_file()) or not name.isprintable():
                raise ModError(f"{sanitize(name)} is a link, no file, or has an odd name")
            if path.is_dir():
                _refuse_others(Files().stat(str(path)), name, (owner,))
                continue
            opened = Files().itself(str(path), remaining_bytes)
            files[name] = File(opened.content, bool(opened.facts.permissions & 0o100))
            remaining_bytes -= len(opened.content)
            _refuse_others(opened.facts, name, (owner,))
    except OSError as error:
        raise ModError(f"{sanitize(str(error.filename))} cannot be read: {error.strerror}") from None
    return dict(sorted(files.items()))


def _refuse_others(facts: FileFacts, name: str, owners: Collection[int]) -> None:
    """Raise ModError where others than the owners may change the file."""
    if facts.uid not in owners or facts.permissions & 0o002:
        raise ModError(f"{sanitize(name)} has another owner, or anybody may write to it")


def walk(folder: Path, *, hidden: bool = True) -> Iterator[Path]:
    """Files and folders below a folder, through no link. `hidden`: also in hidden folders. Raises OSError."""

    def fail(error: OSError) -> None:
        raise error

    for here, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if hidden or not name.startswith(".")]
        yield from (Path(here, name) for name in names + folders)
