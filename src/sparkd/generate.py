"""Writes the files that are made from the source: `python -m sparkd.generate [FOLDER]`."""

from __future__ import annotations

import sys
from pathlib import Path

from sparkd.preflight import manual as checks
from sparkd.settings import text

FILES = {
    "config/sparkd.toml": text.default_file,
    "docs/sparkd.toml.5.md": text.manual,
    "docs/checks.md": checks.manual,
}


def main(folder: Path) -> None:
    for name, make in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
