"""A path that the launch needs: what it has to be, what it is, and what is wrong with it."""

from enum import Enum
from errno import ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR

from msgspec import Struct

from sparkd.base.host.disks import find_unmounted
from sparkd.base.host.files import FileFacts, Files, Kind


class Requirement(Enum):
    """What a path has to be."""

    ANYTHING = "there"
    FILE = "a file"
    FOLDER = "a folder with something in it"
    PROGRAM = "an executable file"
    MOUNT = "in a mount"
    """The path is known to be in no mount, so that it is always at fault."""


class NeededPath(Struct, frozen=True, rename={"requirement": "needed"}):  # its key in recorded evidence
    path: str
    what: str
    """Where it is named: `engine.script`, `ExecStart of ...`."""
    requirement: Requirement
    hint: str = ""
    may_fail: bool = False
    """Whether its failure does not matter, as with `-` before a command of a unit."""


class PathFacts(Struct, frozen=True):
    needed: NeededPath
    kind: Kind | None
    """What it is; None where it does not exist."""
    executable: bool = False
    empty: bool = False
    unmounted: str = ""
    """Where it is missing or empty: the folder above it for a disk that is not mounted, if there is one."""

    @property
    def fault(self) -> str:
        """What is wrong with it; empty where nothing is."""
        requirement = self.needed.requirement
        if self.kind is None:
            return "is in no mount" if requirement is Requirement.MOUNT else "does not exist"
        if requirement is Requirement.ANYTHING:
            return ""
        wanted_kind = Kind.FOLDER if requirement is Requirement.FOLDER else Kind.FILE
        if self.kind is not wanted_kind:
            return f"is a {self.kind.value}, not a {wanted_kind.value}"
        if requirement is Requirement.PROGRAM and not self.executable:
            return "is not executable"
        return "is empty" if self.empty else ""


def read_path(files: Files, needed: NeededPath) -> PathFacts:
    """Read what the path is. Raises OSError for one that may exist and is unreadable."""
    if needed.requirement is Requirement.MOUNT:
        return PathFacts(needed, None)
    if (facts := stat_if_any(files, needed.path)) is None:
        return PathFacts(needed, None, unmounted=find_unmounted(files, needed.path))
    if facts.kind is Kind.FOLDER:
        is_empty = needed.requirement is Requirement.FOLDER and not files.names(needed.path)
    else:
        is_empty = facts.kind is Kind.FILE and facts.size_bytes == 0
    unmounted = find_unmounted(files, needed.path) if is_empty else ""
    return PathFacts(needed, facts.kind, facts.executable, is_empty, unmounted)


def stat_if_any(files: Files, path: str) -> FileFacts | None:
    """Stat the path; None where there is no such path, or can be none. Raises OSError."""
    try:
        return files.stat(path)
    except OSError as error:
        if error.errno not in (ENOENT, ENOTDIR, ENAMETOOLONG, ELOOP):
            raise
        return None
