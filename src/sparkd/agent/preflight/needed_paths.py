"""A path that the launch needs: what it has to be, what it is, and what is wrong with it."""

from __future__ import annotations

from enum import Enum
from errno import ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR

from msgspec import Struct

from sparkd.base.host.files import FileFacts, Files, Kind


class Needed(Enum):
    """What a path has to be."""

    ANYTHING = "there"
    FILE = "a file"
    FOLDER = "a folder with something in it"
    PROGRAM = "an executable file"
    MOUNT = "in a mount"


class NeededPath(Struct, frozen=True):
    path: str
    what: str
    """Where it is named: `engine.script`, `ExecStart of ...`."""
    needed: Needed
    hint: str = ""
    may_fail: bool = False
    """Whether its failure does not matter, as with `-` before a command of a unit."""


class PathFacts(Struct, frozen=True):
    needed: NeededPath
    kind: Kind | None
    """What it is; None where it does not exist."""
    executable: bool = False
    empty: bool = False

    @property
    def fault(self) -> str:
        """What is wrong with it; empty where nothing is."""
        needed = self.needed.needed
        if self.kind is None:
            return "is in no mount" if needed is Needed.MOUNT else "does not exist"
        if needed is Needed.ANYTHING:
            return ""
        wanted_kind = Kind.FOLDER if needed is Needed.FOLDER else Kind.FILE
        if self.kind is not wanted_kind:
            return f"is a {self.kind.value}, not a {wanted_kind.value}"
        if needed is Needed.PROGRAM and not self.executable:
            return "is not executable"
        return "is empty" if self.empty else ""


def read_path(files: Files, needed: NeededPath) -> PathFacts:
    """Read what the path is. Raises OSError for one that may exist and is unreadable."""
    path = needed.path
    facts = None if needed.needed is Needed.MOUNT else stat_if_any(files, path)
    if facts is None and ":" in path:
        path = path.partition(":")[0]  # a word of docker's -v SOURCE:TARGET
        facts = stat_if_any(files, path)
    if facts is None:
        return PathFacts(needed, None)
    if facts.kind is Kind.FOLDER:
        is_empty = needed.needed is Needed.FOLDER and not files.names(path)
    else:
        is_empty = facts.kind is Kind.FILE and facts.size_bytes == 0
    return PathFacts(needed, facts.kind, facts.executable, is_empty)


def stat_if_any(files: Files, path: str) -> FileFacts | None:
    """Stat the path; None where there is no such path, or can be none. Raises OSError."""
    try:
        return files.stat(path)
    except OSError as error:
        if error.errno not in (ENOENT, ENOTDIR, ENAMETOOLONG, ELOOP):
            raise
        return None
