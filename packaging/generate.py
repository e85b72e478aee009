"""Writes the files that are made from the source: `make generate`. In a manual only the marked parts are.

In docs/how-it-works.md the number of checks is.
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
    "commands": manuals.commands,
    "settings": manuals.settings,
    "recipe-keys": manuals.recipe_keys,
    "symptoms": manuals.symptoms,
}
PAGES = {path.name.removeprefix("sparkd-").removesuffix(".8.md"): path for path in CHECKOUT.glob("docs/commands/*.md")}
"""The manual page of each command."""


def fill(path: str, **more: Callable[[], str]) -> str:
    """The file with its marked parts made again."""
    parts = PARTS | more
    text = (CHECKOUT / path).read_text()
    return PART.sub(lambda part: f"{part[1]}{part[2]}\n{parts[part[1]]().strip()}\n\n", text)


def command(name: str, path: str) -> str:
    return fill(path, head=partial(manuals.head, name), options=partial(manuals.options, name))


def how_it_works(path: str) -> str:
    return re.sub(r"\d+(?= checks find)", str(len(IDS)), (CHECKOUT / path).read_text())


MARKED = (
    "docs/sparkd.8.md",
    "docs/sparkd.toml.5.md",
    "docs/sparkd-recipe.5.md",
    "docs/troubleshooting.md",
)
FILES: dict[str, Callable[[], str]] = {
    "docs/how-it-works.md": partial(how_it_works, "docs/how-it-works.md"),
    "config/sparkd.toml": reference.default_file,
    **{path: partial(fill, path) for path in MARKED},
    **{str(path.relative_to(CHECKOUT)): partial(command, name, str(path)) for name, path in PAGES.items()},
}

if __name__ == "__main__":
    for name, make in FILES.items():
        (CHECKOUT / name).write_text(make())
