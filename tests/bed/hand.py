"""The bed that a person holds: `up` leaves a process behind that owns it, `down` ends that process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from . import registry
from .bed import Bed
from .cache import home, say
from .command import BedError
from .node import Node
from .processes import Identity, wait_for
from .space import Space, environment, tail

NAME = "hand"


def entry() -> registry.Entry:
    found = [entry for entry in registry.entries() if entry.name == NAME and entry.owner.alive]
    if not found:
        raise BedError("no bed is up: python3 -m tests.bed up")
    return found[0]


def nodes() -> list[Node]:
    held = entry()
    if held.keeper is None:
        raise BedError("the bed is only being made: see " + str(log()))
    return [Node(NAME, name, Space(held.keeper), docker) for name, docker in registry.noted_nodes(held).items()]


def node(name: str) -> Node:
    found = {node.name: node for node in nodes()}
    if name not in found:
        raise BedError(f"no node {name}; there are {' '.join(found)}")
    return found[name]


def log() -> Path:
    return home() / "hand.log"


def up(count: int) -> None:
    """Start the owner and return when all its nodes are up."""
    with log().open("w") as output:
        owner = subprocess.Popen(
            [sys.executable, "-m", "tests.bed", "hold", str(count)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            env=environment(),
            text=True,
            start_new_session=True,
        )
    assert owner.stdout is not None
    for line in owner.stdout:
        say(line.strip())
        if line.startswith("up:"):
            return
    raise BedError(f"the bed is not up: {tail(log())}")


def hold(count: int) -> None:
    """Own a bed until SIGTERM."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    with Bed(NAME) as bed:
        made = [bed.node(f"spark{index}") for index in range(1, count + 1)]
        for node in made:
            node.power_on()
        for node in made:
            print(f"{node.name} {node.wait_up()} {node.address} fabric {node.fabric_address}", flush=True)
        print("up: python3 -m tests.bed shell spark1 | status | down", flush=True)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())  # its reader has gone
        while True:
            signal.pause()


def down() -> None:
    owner: Identity = entry().owner
    owner.send(signal.SIGTERM)
    wait_for(lambda: not owner.alive, 60, "the bed to end")
    registry.reap()
