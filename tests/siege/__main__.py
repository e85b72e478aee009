"""A siege by a seed or a list, as root. See `make siege`."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.bed import Bed, BedError
from tests.bed.demo import newest_package

from .package import renamed
from .runner import Siege, Step, ViolationError, bursts, draw, read, shrink
from .world import World

FOLDER = Path("build/siege")


def besiege(
    steps: list[Step], nodes: int, *, vllm: bool, until: float = float("inf")
) -> tuple[ViolationError | None, str]:
    """On fresh nodes: the violation, and all journals' tails."""
    package = newest_package(Path("dist"))
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
            violation, tails = error, tail(world)
        finally:
            world.end()
        outages = world.outages
        took, missed = time.monotonic() - began, dict(siege.missed)
        print(f"{siege.injected.total()} faults in {took:.0f} s; without a victim: {missed or 'none'}", flush=True)
        print(f"{outages.count} outages, {outages.seconds:.0f} s without tokens; by hand: {world.persons or 'nothing'}")
        print(f"violations: {violation or 'none'}", flush=True)
        return violation, tails


def tail(world: World) -> str:
    lines = []
    for member in world.cluster.members:
        with suppress(BedError, OSError):
            units = member.node.run("journalctl", "--no-pager", "--lines=600", "--unit=sparkd-*").stdout
            system = member.node.run("journalctl", "--no-pager", "--lines=300").stdout
            lines.append(f"== {member.node.name}, sparkd\n{units}\n== {member.node.name}\n{system}")
    return "\n".join(lines)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.siege", description=__doc__)
    parser.add_argument("source", metavar="SEED|LIST", help="a number to draw the faults by, or a file with a list")
    parser.add_argument("count", nargs="?", type=int, default=60, help="of the faults drawn (60)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no burst begins")
    parser.add_argument("--nodes", type=int, default=2, help="2 to 8; 3 GiB of memory each, 6 with vLLM (2)")
    parser.add_argument("--vllm", action="store_true", help="real vLLM, not its stand-in")
    args = parser.parse_args(words)
    FOLDER.mkdir(parents=True, exist_ok=True)
    drawn = args.source.isdecimal()
    name = f"{'seed ' * drawn}{args.source}, {args.nodes} nodes{', vLLM' * args.vllm}"
    steps = draw(int(args.source), args.count, args.nodes) if drawn else read(Path(args.source))
    until = time.monotonic() + 60 * args.minutes
    violation, tails = besiege(steps, args.nodes, vllm=args.vllm, until=until)
    if violation is None:
        return 0
    (FOLDER / "journals.txt").write_text(f"{name}: {violation}\n{tails}")
    (FOLDER / "list").write_text("".join(f"{step}\n" for step in steps))
    print(f"VIOLATION, {name}: {violation}\n{tails[-3000:]}\nshrinking; the whole list is {FOLDER}/list", flush=True)

    def shows(some: list[Step]) -> bool:
        again, _ = besiege(some, args.nodes, vllm=args.vllm)
        return again is not None and again.rule == violation.rule

    with suppress(BedError):
        *_, last = bursts(violation.steps)
        steps = shrink(last if shows(last) else list(violation.steps), shows)
    (FOLDER / "short-list").write_text("".join(f"{step}\n" for step in steps))
    print(
        "the shortest list that shows it, for `make siege LIST=build/siege/short-list`, with the same NODES and VLLM:",
        *steps,
        sep="\n  ",
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
