"""Writes the files that are made from the source: `make generate`."""

from __future__ import annotations

from pathlib import Path

from sparkd.config import reference
from sparkd.preflight import render

FILES = {
    "config/sparkd.toml": reference.default_file,
    "docs/sparkd.toml.5.md": reference.manual,
    "docs/checks.md": render.checks_manual,
}

if __name__ == "__main__":
    for name, make in FILES.items():
        Path(name).write_text(make())
