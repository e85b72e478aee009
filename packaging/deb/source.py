"""The checkout that a package is built from: its version and its time."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from deb.errors import BuildError

_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


class Source(Struct, frozen=True):
    root: Path
    version: str
    """Debian's: a commit without a release tag sorts before the release, and after every earlier commit."""
    epoch: int
    """Every time in the package, in seconds since 1970: so that a commit always gives the same bytes."""

    @property
    def dependencies(self) -> tuple[str, ...]:
        return tuple(tomllib.loads(self.text("pyproject.toml"))["project"]["dependencies"])

    def text(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")

    def program(self) -> tuple[str, ...]:
        """Files of the program, below `src`."""
        found = (self.root / "src/sparkd").rglob("*")
        return tuple(
            sorted(
                str(file.relative_to(self.root / "src"))
                for file in found
                if file.is_file() and file.suffix in (".py", ".typed", ".html")
            )
        )


def read(root: Path) -> Source:
    """Raises BuildError where the source does not say its version."""
    match = _VERSION.search((root / "src/sparkd/__init__.py").read_text(encoding="utf-8"))
    if not match:
        raise BuildError("src/sparkd/__init__.py has no __version__")
    version = match[1]
    commit = git(root, "log", "-1", "--format=%ct %h", "--abbrev=9")
    if not commit:
        newest = max(int(file.stat().st_mtime) for file in (root / "src").rglob("*.py"))
        return Source(root, version, int(os.environ.get("SOURCE_DATE_EPOCH", newest)))
    seconds, short = commit.split()
    if f"v{version}" not in git(root, "tag", "--points-at", "HEAD").split():
        version += f"~git{datetime.fromtimestamp(int(seconds), UTC):%Y%m%d%H%M%S}.{short}"
    return Source(root, version, int(os.environ.get("SOURCE_DATE_EPOCH", seconds)))


def git(root: Path, *words: str) -> str:
    """Empty where there is no repository, or no git. Root may build what belongs to somebody else."""
    command = ["git", "-c", f"safe.directory={root}", "-C", str(root), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
