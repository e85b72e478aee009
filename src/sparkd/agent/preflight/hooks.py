"""Lists the operator's hooks, and judges whether root may run a program of the operator."""

import re
from shlex import quote

from msgspec import Struct

from sparkd.agent.preflight.check import Finding, unknown
from sparkd.base.host.files import Files, Kind
from sparkd.base.host.ownership import find_writable
from sparkd.base.lib.text import sanitize

FOLDER = "/etc/sparkd/preflight.d"

_IGNORED = re.compile(r"\..*|.*~|.*\.(dpkg-(old|new|dist|tmp)|bak|orig|swp)")
"""Names of leftovers of editors and dpkg."""


class Hook(Struct, frozen=True):
    """One program. A hook with a `problem` is never run: it is UNKNOWN, and that blocks."""

    name: str
    path: str
    problem: str = ""
    hint: str = ""

    @property
    def id(self) -> str:
        return f"hook:{self.name}"

    @property
    def refusal(self) -> Finding:
        """The finding in place of a run."""
        return Finding(self.id, unknown(self.problem, self.hint), {"path": self.path}, 0.0)


def list_hooks(files: Files) -> tuple[Hook, ...]:
    """All hooks in the order in which they run.

    A hook runs as root, so only root may be able to write to it or to a folder above it.
    """
    try:
        names = [name for name in files.names(FOLDER) if not _IGNORED.fullmatch(name)]
    except OSError as error:
        folder, _, name = FOLDER.rpartition("/")
        if isinstance(error, FileNotFoundError) and name not in files.names_if_any(folder):  # else a link to nothing
            return ()
        return (
            Hook("preflight.d", FOLDER, f"{FOLDER} can't be read: {error.strerror}", "sudo sparkd preflight --dry-run"),
        )
    if not names:
        return ()
    unsafe = find_writable(files, FOLDER)
    return tuple(check_program(files, f"{FOLDER}/{name}", unsafe) for name in names)


def check_program(files: Files, path: str, unsafe_folder: str = "") -> Hook:
    """Judge whether a program is safe to run as root. `unsafe_folder`: one above it that others may write to."""
    name, quoted_path = sanitize(path.rpartition("/")[2], 64), quote(path)
    if unsafe_folder:
        hint = f"sudo chown root: {unsafe_folder}; sudo chmod go-w {unsafe_folder}"
        return Hook(name, path, f"others than root may write to {unsafe_folder}", hint)
    try:
        if files.lstat(path).kind is Kind.LINK:
            return Hook(name, path, f"{path} is a symlink", "put the program itself there")
        facts = files.stat(path)
    except OSError as error:
        return Hook(name, path, f"{path} can't be read: {error.strerror}", f"ls -l {quoted_path}")
    if facts.kind is not Kind.FILE:
        return Hook(name, path, f"{path} is a {facts.kind.value}, not a file", "move it away")
    if writable := find_writable(files, path):
        own_hint = f"sudo chown root: {quoted_path}; sudo chmod go-w {quoted_path}"
        hint = own_hint if writable == path else "move it to a folder that only root may write to, such as /etc/sparkd"
        return Hook(name, path, f"others than root may write to {writable}", hint)
    if not facts.executable:
        return Hook(name, path, f"{path} is not executable", f"sudo chmod +x {quoted_path}, or move it away")
    return Hook(name, path)
