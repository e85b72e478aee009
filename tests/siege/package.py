"""The same package with other text: under another version, as an upgrade, or with a fault that a siege has to find."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

VERSION = "99.0"
SOURCE = "usr/lib/sparkd/app/sparkd/"


class Edit(NamedTuple):
    """A text of one source file, which is there exactly once, and the one in its place. `path`: below src/sparkd."""

    path: str
    before: str
    after: str


PLANTED = {
    "orphan": Edit("agent/actions/segments.py", "os.unlink(name, dir_fd=fd)", "os.stat(name, dir_fd=fd)"),
    "cause": Edit("agent/daemon/engine_cause.py", "return Cause.KILLED_FROM_OUTSIDE, ", "return Cause.KERNEL_OOM, "),
    "descriptor": Edit(
        "agent/daemon/reloading.py",
        "    try:\n        os.execve(",
        "    os.set_inheritable(os.dup(0), True)\n    try:\n        os.execve(",
    ),
}
"""What a siege has to find: segments stay, a kill has a wrong cause, each reload leaks a descriptor."""


def renamed(package: Path, folder: Path, version: str = VERSION) -> Path:
    target = folder / f"{package.stem}.{version}.deb"
    if not target.exists():
        stated = f'__version__ = "{version}"'
        edits = [
            ("DEBIAN/control", "^Version: .*", f"Version: {version}"),
            (f"{SOURCE}__init__.py", "^__version__ = .*", stated),
        ]
        rebuild(package, target, edits)
    return target


def planted(package: Path, folder: Path, name: str) -> Path:
    target, edit = folder / f"{package.stem}.{name}.deb", PLANTED[name]
    rebuild(package, target, [(f"{SOURCE}{edit.path}", re.escape(edit.before), edit.after)])
    return target


def rebuild(package: Path, target: Path, edits: Iterable[tuple[str, str, str]]) -> None:
    """`edits`: a path, a pattern that is there exactly once, and the text in its place. Raises ValueError else."""
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
        for name, pattern, after in edits:
            path = tree / name
            text, count = re.subn(pattern, after.replace("\\", r"\\"), path.read_text(), flags=re.MULTILINE)
            if count != 1:
                raise ValueError(f"{name} has {pattern} {count} times")
            path.write_text(text)
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "--build", tree, target], check=True, stdout=subprocess.DEVNULL)
