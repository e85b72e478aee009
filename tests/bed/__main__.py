"""The bed, for people.

python3 -m tests.bed build                 everything slow, into the cache
python3 -m tests.bed flags                 the tables of vLLM's releases, from their own parsers
python3 -m tests.bed demo                  one node from the .deb in dist/ to a completion
python3 -m tests.bed up [N]                N nodes (1), spark1 and so on, that stay until `down`
python3 -m tests.bed shell NODE            a root shell in the node
python3 -m tests.bed exec NODE COMMAND...  one command in the node
python3 -m tests.bed reboot NODE           orderly
python3 -m tests.bed powercut NODE         the plug pulled, and put in again
python3 -m tests.bed link NODE cut | restore | blackhole | lose PERCENT | clear
                                           its fabric cable; with two nodes, a cut is one at both ends
python3 -m tests.bed status                all beds of this machine
python3 -m tests.bed down                  end it, leave nothing
python3 -m tests.bed reap                  clear away beds whose owner was killed
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from . import base_disk, hand, nodebase, registry, release_tables
from .bed import Bed
from .command import BedError
from .demo import demo, newest_package
from .fabric import Fabric
from .needs import ensure


def build() -> None:
    with Bed() as bed:
        for suite in nodebase.PACKAGES:
            print(base_disk.ensure(bed.space, bed.name, suite))


def enter(name: str, argv: list[str]) -> None:
    """Become the command. A shell gets a terminal that the node knows."""
    shell = ["env", f"TERM={os.environ.get('TERM', 'dumb')}", "script", "--quiet", "--command", "bash -l", "/dev/null"]
    command = hand.node(name).entered(*(argv or shell))
    os.execvp(command[0], command)


def link(fabric: Fabric, words: list[str]) -> None:
    match words:
        case ["cut"]:
            fabric.cut()
        case ["restore"]:
            fabric.restore()
        case ["blackhole"]:
            fabric.blackhole()
        case ["lose", percent] if percent.isdecimal():
            fabric.lose(int(percent))
        case ["clear"]:
            fabric.clear()
        case _:
            raise BedError(f"{' '.join(words)}: a link is cut, restored, blackholed, made to lose PERCENT, or cleared")


def reap() -> None:
    ensure()
    gone = registry.reap()
    if gone:
        with Bed():  # its start clears the disks of the dead from the pool
            pass
    print("\n".join(gone) or "nothing to clear away")


def status() -> None:
    for entry in registry.entries():
        state = "alive" if entry.owner.alive else "dead (reap it)"
        print(f"bed {entry.name}: owner {entry.owner.pid} {state}, nodes: {' '.join(registry.noted_nodes(entry))}")
        if entry.name == hand.NAME and entry.owner.alive:
            for node in hand.nodes():  # words: keep
                state = node.run("systemctl", "is-system-running", check=False).stdout.strip() if node.init else "off"
                print(f"  {node.name} {state} {node.address} console {node.console}")


def main(words: list[str]) -> int:
    match words:
        case ["build"]:
            build()
        case ["flags"]:
            ensure()
            release_tables.write_tables()
        case ["demo"]:
            demo(newest_package(Path("dist")))
        case ["up"] | ["up", _]:
            ensure()
            hand.up(int(words[1]) if len(words) > 1 else 1)
        case ["hold", count]:
            hand.hold(int(count))
        case ["shell", name]:
            enter(name, [])
        case ["exec", name, *argv] if argv:
            enter(name, argv)
        case ["reboot", name]:
            print(hand.node(name).reboot())
        case ["powercut", name]:
            hand.node(name).powercut()
        case ["link", name, *verb]:
            link(hand.node(name).fabric, verb)
        case ["down"]:
            hand.down()
        case ["reap"]:
            reap()
        case ["status"]:
            status()
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BedError as error:
        sys.exit(f"bed: {error}")
