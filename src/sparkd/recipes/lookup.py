"""Where recipes are: the administrator's folder first, then the shipped one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from sparkd import share
from sparkd.errors import ConfigError
from sparkd.nearest import did_you_mean

ADMINISTRATORS = "etc/sparkd/recipes"
SUFFIX = ".yaml"


class Place(Struct, frozen=True):
    name: str
    path: Path


def folders(root: Path = Path("/")) -> tuple[Path, ...]:
    """Folders of recipes, the first that has a name wins."""
    return root / ADMINISTRATORS, share.recipes()


def places(where: Sequence[Path]) -> list[Place]:
    """Every recipe that can be named, by name; of two with one name, the one that is found."""
    found: dict[str, Place] = {}
    for folder in where:
        try:
            files = sorted(folder.iterdir())
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be read: {error.strerror}") from None
        for path in files:
            if path.suffix == SUFFIX:
                found.setdefault(path.stem, Place(path.stem, path))
    return [found[name] for name in sorted(found)]


def find(name: str, where: Sequence[Path]) -> Path:
    """File of the recipe `name`, or the absolute path that `name` is. Raises ConfigError with the nearest name."""
    if name.startswith("/"):
        return Path(name)
    known = {place.name: place.path for place in places(where)}
    if name in known:
        return known[name]
    looked = " and ".join(str(folder) for folder in where) or "no folder"
    raise ConfigError(
        f"there is no recipe {name}{did_you_mean(name, known)} (looked in {looked})",
        "`sparkd recipe list` shows them all",
    )
