"""A path that has to be there for the launch: what is needed of it, what was read, and what is wrong with it."""

from __future__ import annotations

from enum import Enum
from errno import ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR

from msgspec import Struct

from sparkd.base.host.files import FileFacts, Files, Kind


class Needed(Enum):
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
    """Its failure does not matter, as with `-` before a command."""


class PathFacts(Struct, frozen=True):
    needed: NeededPath
    kind: Kind | None
    """None: it does not exist."""
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
        kind = Kind.FOLDER if needed is Needed.FOLDER else Kind.FILE
        if self.kind is not kind:
            return f"is a {self.kind.value}, not a {kind.value}"
        if needed is Needed.PROGRAM and not self.executable:
            return "is not executable"
        return "is empty" if self.empty else ""


def read_path(files: Files, needed: NeededPath) -> PathFacts:
    """Raises OSError for one that may be there and is unreadable."""
    path = needed.path
    facts = None if needed.needed is Needed.MOUNT else stat_if_any(files, path)
    if facts is None and ":" in path:
        path = path.partition(":")[0]  # docker's -v SOURCE:TARGET
        facts = stat_if_any(files, path)
    if facts is None:
        return PathFacts(needed, None)
    if facts.kind is Kind.FOLDER:
        empty = needed.needed is Needed.FOLDER and not files.names(path)
    else:
        empty = facts.kind is Kind.FILE and facts.size_bytes == 0
    return PathFacts(needed, facts.kind, facts.executable, empty)


def stat_if_any(files: Files, path: str) -> FileFacts | None:
    """None where there is no such path, or can be none. Raises OSError."""
    try:
        return files.stat(path)
    except OSError as error:
        if error.errno not in (ENOENT, ENOTDIR, ENAMETOOLONG, ELOOP):
            raise
        return None
