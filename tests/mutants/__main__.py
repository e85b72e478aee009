"""Whether the unit tests notice small faults in the source: python -m tests.mutants SEED COUNT [PACKAGE...], as root.

COUNT mutants are drawn a package, such as base/lib; without PACKAGE, of each. The unit tests of a mutant's module run
until one fails, or takes longer than it ever may. Where that test passes without the mutant, the mutant is killed. One
that survives is a rule that no test holds, or a change without effect.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.count.source import read_modules
from tests.mutants.draw import SOURCE, Mutant, draw
from tests.mutants.workshop import KILLED, SURVIVED, UNCLEAR, Workshop, choose_tests

ROOT = Path(__file__).parents[2]


def try_package(workshop: Workshop, package: str, mutants: Iterable[Mutant]) -> None:
    """Print how many of the mutants are killed, and each other one."""
    started = time.monotonic()
    verdicts = Counter[str]()
    others = []
    for mutant in mutants:
        verdict, failed = workshop.judge(mutant, choose_tests(ROOT, mutant.module, package))
        verdicts[verdict] += 1
        if verdict != KILLED:
            others.append(f"  {verdict}: {mutant} {failed}".rstrip())
    counts = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in (KILLED, SURVIVED, UNCLEAR))
    print(f"{package}: {counts} ({time.monotonic() - started:.0f} s)", *others, sep="\n", flush=True)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition(":")[0])
    parser.add_argument("seed", metavar="SEED", type=int)
    parser.add_argument("count", metavar="COUNT", type=int, help="how many mutants a package")
    parser.add_argument("packages", metavar="PACKAGE", nargs="*", help="such as base/lib; without one, each")
    options = parser.parse_args(argv)
    if os.geteuid():
        print("mutants: namespaces need root", file=sys.stderr)
        return 2
    modules = read_modules(ROOT / SOURCE)
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        workshop = Workshop(ROOT, Path(scratch))
        for package in options.packages or sorted({module.package for module in modules} - {""}):
            try_package(workshop, package, draw(modules, package, options.seed, options.count))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
