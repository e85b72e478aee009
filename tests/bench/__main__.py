"""Measures what sparkd promises: `python -m tests.bench [--package FILE] [--base REV] [NAME...]`, as root.

Prints a table and what became worse, and writes build/bench.json. Exits 1 where a limit is missed, 2 where something
could not be measured; the figures before it are shown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tests.bed import Bed, BedError
from tests.bed.space import REPOSITORY
from tests.bed.sparkd_node import HEAD, SparkdNode

from . import agent, checks, cluster, commands, compare, forwarding, guard, imports, killed, machine, scan, start, table
from .bench_node import BenchNode
from .figures import Figure

RESULT = REPOSITORY / "build/bench.json"

ON_A_NODE: tuple[tuple[str, Callable[[BenchNode], tuple[Figure, ...]]], ...] = (
    ("start", start.measure),
    ("imports", imports.measure),
    ("commands", commands.idle),
    ("forwarding", forwarding.measure),
    ("agent", agent.measure),
    ("commands-serving", commands.serving),
    ("killed", killed.measure),
)
HERE: tuple[tuple[str, Callable[[], tuple[Figure, ...]]], ...] = (
    ("scan", scan.measure),
    ("checks", checks.measure),
    ("guard", guard.measure),
    ("cluster", cluster.measure),
)
NAMES = tuple(name for name, _ in (*ON_A_NODE, *HERE))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench", description="Measure what sparkd promises. Needs root.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these of: {', '.join(NAMES)}")
    parser.add_argument("--package", type=Path, help="the .deb to measure; else the one in dist/")
    parser.add_argument("--base", metavar="REV", help="measure that commit first, and compare with it")
    args = parser.parse_args()
    if unknown := set(args.names) - set(NAMES):
        parser.error(f"nothing is measured by the name of {', '.join(sorted(unknown))}")
    package = args.package or _package()
    if package is None:
        parser.error("there is no .deb of this machine in dist/: make deb")
    figures: list[Figure] = []
    failed = ""
    before, since = compare.read_kept(), compare.KEPT.name
    try:
        if args.base:
            before, since = compare.measure(args.base, args.names), args.base
        for some in _measure(args.names or NAMES, package):
            figures += some
    except BedError as error:
        failed = str(error)
    about = machine.look(_version(package))
    print(table.as_text(figures, about), end="")
    if failed:
        print(f"bench: {failed}", file=sys.stderr)
        return 2
    RESULT.parent.mkdir(exist_ok=True)
    text = table.as_json(figures, about, datetime.now(UTC).isoformat(timespec="seconds"))
    RESULT.write_text(text + "\n")
    print("\n".join(compare.describe(before, json.loads(text), since)))
    return 0 if all(figure.passed for figure in figures) else 1


def _measure(names: Sequence[str], package: Path) -> Iterator[tuple[Figure, ...]]:
    wanted = [(name, measure) for name, measure in ON_A_NODE if name in names]
    with ExitStack() as stack:
        if wanted:
            node = stack.enter_context(Bed()).node()
            node.boot()
            bench = BenchNode.furnish(SparkdNode(node), package)
        for name, measure in wanted:
            with _announce(name):
                try:
                    yield measure(bench)
                except BedError:
                    print(node.journal(HEAD, "--lines=30"), file=sys.stderr)
                    raise
    for name, measure_here in HERE:
        if name in names:
            with _announce(name):
                yield measure_here()


@contextmanager
def _announce(name: str) -> Iterator[None]:
    """Some take minutes: which it is at, and how long each took, is reported meanwhile."""
    began = time.monotonic()
    print(f"bench: measuring {name}", file=sys.stderr, flush=True)
    yield
    print(f"bench: {name} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _package() -> Path | None:
    """What `make deb` left for this machine."""
    name = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
    found = (REPOSITORY / "dist").glob(f"sparkd_*_{name}.deb")
    return max(found, key=lambda file: file.stat().st_mtime, default=None)


def _version(package: Path) -> str:
    return package.name.split("_")[1]


if __name__ == "__main__":
    sys.exit(main())
