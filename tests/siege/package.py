"""The same package under another version, as an upgrade."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

VERSION = "99.0"


def renamed(package: Path, folder: Path, version: str = VERSION) -> Path:
    target = folder / f"{package.stem}.{version}.deb"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
        for path, before, after in (
            (tree / "DEBIAN/control", "Version: ", f"Version: {version}"),
            (tree / "usr/lib/sparkd/app/sparkd/__init__.py", "__version__ = ", f'__version__ = "{version}"'),
        ):
            lines = [after if line.startswith(before) else line for line in path.read_text().splitlines()]
            path.write_text("\n".join(lines) + "\n")
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "--build", tree, target], check=True, stdout=subprocess.DEVNULL)
    return target
