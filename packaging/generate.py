"""Writes the files that are made from the source: `make generate`. In a manual only the marked parts are.

In the README the number of checks is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import manuals
from sparkd.agent.preflight.runner import IDS
from sparkd.base.config import reference

CHECKOUT = Path(__file__).parents[1]
PART = re.compile(
    r"(?<=^<!-- Made by `make generate`: )([a-z-]+)( -->\n).*?(?=^<!-- end -->$)", re.MULTILINE | re.DOTALL
)
PARTS = {
    "options": manuals.options,
    "settings": manuals.settings,
    "recipe-keys": manuals.recipe_keys,
    "symptoms": manuals.symptoms,
}


def fill(path: str) -> str:
    """The file with its marked parts made again."""
    text = (CHECKOUT / path).read_text()
    return PART.sub(lambda part: f"{part[1]}{part[2]}\n{PARTS[part[1]]().strip()}\n\n", text)


def readme() -> str:
    return re.sub(r"\d+(?= checks find)", str(len(IDS)), (CHECKOUT / "README.md").read_text())


MARKED = (
    "docs/sparkd.8.md",
    "docs/sparkd.toml.5.md",
    "docs/sparkd-recipe.5.md",
    "docs/troubleshooting.md",
)
FILES: dict[str, Callable[[], str]] = {
    "README.md": readme,
    "config/sparkd.toml": reference.default_file,
    **{path: partial(fill, path) for path in MARKED},
}

if __name__ == "__main__":
    for name, make in FILES.items():
        (CHECKOUT / name).write_text(make())
