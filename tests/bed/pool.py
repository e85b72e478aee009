"""The pool: an XFS in a sparse file, where the copy of a node's whole disk takes milliseconds (reflink).

It is mounted in each bed's own mount namespace only. Run as a module inside a space: `pool mount`.
"""

import sys
from pathlib import Path

from . import cache, loops
from .command import run

AT = Path("/run/bed/pool")
BASES, RUNS = AT / "bases", AT / "runs"
SIZE = "48G"  # sparse: takes what is in it


def mount() -> None:
    image = cache.home() / "pool.xfs"
    with cache.lock("pool"):
        if not image.exists():
            fresh = image.with_suffix(".new")
            run("truncate", "--size", SIZE, fresh)
            run("mkfs.xfs", "-q", "-f", "-m", "reflink=1", fresh)
            fresh.replace(image)
        loops.mount(image, AT, ["discard"])
    for folder in (BASES, RUNS):
        folder.mkdir(exist_ok=True)


def clone(source: Path, target: Path) -> None:
    """Shares the blocks until either is written to; never seen half done."""
    partial = target.with_name(target.name + ".partial")
    run("cp", "--reflink=always", source, partial)
    partial.replace(target)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["mount"]:
            mount()
        case ["clone", source, target]:
            clone(Path(source), Path(target))
        case words:
            sys.exit(f"pool: {words}?")
