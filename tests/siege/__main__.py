"""A siege by a seed or a list, as root. See `make siege`."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.bed import Bed, BedError
from tests.bed.demo import newest_package

from .package import PLANTED, planted, renamed
from .runner import Siege, Step, ViolationError, bursts, draw, read, shrink
from .world import World

FOLDER = Path("build/siege")


def besiege(
    steps: list[Step], nodes: int, *, vllm: bool, plant: str = "", until: float = float("inf")
) -> tuple[ViolationError | None, str]:
    """On fresh nodes: the violation, and the tails of all journals. Prints the last lines of them."""
    package = newest_package(Path("dist"))
    if plant:
        package = planted(package, FOLDER, plant)
    with Bed() as bed:
        began = time.monotonic()
        world = World(bed, package, renamed(package, FOLDER), nodes, vllm=vllm)
        world.begin()
        siege = Siege(world)
        print(f"{nodes} nodes serve after {time.monotonic() - began:.0f} s", flush=True)
        began, violation, tails = time.monotonic(), None, ""
        try:
            siege.run(steps, until)
        except ViolationError as error:
            violation, tails = error, world.tails(600)
            *_, last = bursts(error.steps)
            print(f"in the burst {'; '.join(map(str, last))}:\n{world.tails(40)}", flush=True)
        finally:
            world.end()
        took, missed = time.monotonic() - began, dict(siege.missed)
        print(f"{siege.injected.total()} faults in {took:.0f} s; without a victim: {missed or 'none'}", flush=True)
        print(f"{world.outages}; by hand: {world.persons or 'nothing'}")
        print(f"violations: {violation or 'none'}", flush=True)
        return violation, tails


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.siege", description=__doc__)
    parser.add_argument("source", metavar="SEED|LIST", help="a number to draw the faults by, or a file with a list")
    parser.add_argument("count", nargs="?", type=int, default=60, help="of the faults drawn (60)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no burst begins")
    parser.add_argument("--nodes", type=int, default=2, help="2 to 8; 3 GiB of memory each, 6 with vLLM (2)")
    parser.add_argument("--tries", type=int, default=8, help="runs in which a list is made shorter, minutes each (8)")
    parser.add_argument("--plant", choices=PLANTED, default="", help="a fault of sparkd's that has to be found")
    parser.add_argument("--vllm", action="store_true", help="real vLLM, not its stand-in")
    args = parser.parse_args(words)
    FOLDER.mkdir(parents=True, exist_ok=True)
    drawn = args.source.isdecimal()
    name = f"{'seed ' * drawn}{args.source}, {args.nodes} nodes{', vLLM' * args.vllm} {args.plant}".rstrip()
    steps = draw(int(args.source), args.count, args.nodes) if drawn else read(Path(args.source))
    until = time.monotonic() + 60 * args.minutes
    violation, tails = besiege(steps, args.nodes, vllm=args.vllm, plant=args.plant, until=until)
    if violation is None:
        return 0
    (FOLDER / "journals.txt").write_text(f"{name}: {violation}\n{tails}")
    begun = len(violation.steps)
    lines = [*map(str, steps[:begun]), "# the last burst above showed it", *map(str, steps[begun:])]
    (FOLDER / "list").write_text("\n".join(lines) + "\n")
    print(f"VIOLATION, {name}: {violation}\n{FOLDER} has journals.txt, and the whole list", flush=True)
    if not args.tries:
        return 1

    def shows(some: list[Step]) -> bool:
        again, _ = besiege(some, args.nodes, vllm=args.vllm, plant=args.plant)
        return again is not None and again.rule == violation.rule

    with suppress(BedError):
        *_, last = bursts(violation.steps)
        steps = shrink(last if shows(last) else list(violation.steps), shows, args.tries)
    (FOLDER / "short-list").write_text("".join(f"{step}\n" for step in steps))
    print(
        "the shortest list found, for `make siege LIST=build/siege/short-list`, with the same NODES and VLLM:",
        *steps,
        sep="\n  ",
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
