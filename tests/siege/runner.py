"""A siege from a list: bursts of faults that overlap, a calm after each, and the rules in both."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.bed import BedError
from tests.bed.sparkd_node import SparkdNode

from .faults import BY_NAME, FAULTS, edit
from .invariants import Rules
from .world import World

LOOK_SECONDS = 0.5
SETTLED_SECONDS = 5.0
"""So long the same agents and ranks have to serve: the end of one may be noticed a while after the fault."""
GAPS = (0.0, 0.3, 1.0, 2.0, 4.0, 8.0)
MOST_AT_ONCE = 5
OWED = (17, 78)
"""Exit codes after which systemd starts nothing, and a person has to."""


class Step(NamedTuple):
    """`gap`: seconds since the step before. The first one of a burst has `burst`."""

    burst: bool
    gap: float
    node: int
    fault: str
    number: int

    def __str__(self) -> str:
        return f"{'burst' if self.burst else 'and'} {self.gap:g} spark{self.node + 1} {self.fault} {self.number}"

    @classmethod
    def parse(cls, line: str) -> Step:
        word, gap, node, fault, number = line.split()
        return cls(word == "burst", float(gap), int(node[-1]) - 1, BY_NAME[fault].name, int(number))


def draw(seed: int, count: int, nodes: int = 2) -> list[Step]:
    """From these numbers alone."""
    drawn = random.Random(seed)
    steps: list[Step] = []
    while len(steps) < count:
        for place in range(min(drawn.randint(1, MOST_AT_ONCE), count - len(steps))):
            fault = drawn.choice(FAULTS)
            node = 0 if fault.heads_only else drawn.randrange(nodes)
            steps.append(Step(not place, drawn.choice(GAPS), node, fault.name, drawn.choice(fault.numbers)))
    return steps


def read(path: Path) -> list[Step]:
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return [Step.parse(line) for line in lines]


def bursts(steps: Sequence[Step]) -> Iterator[list[Step]]:
    burst: list[Step] = []
    for step in steps:
        if step.burst and burst:
            yield burst
            burst = []
        burst.append(step)
    if burst:
        yield burst


class ViolationError(Exception):
    """The rule's name is what stands before the first colon. `steps`: those that were begun, with the last burst."""

    steps: Sequence[Step] = ()

    @property
    def rule(self) -> str:
        return str(self).partition(":")[0]


class Siege:
    def __init__(self, world: World) -> None:
        self.world, self.rules = world, Rules(world)
        self.injected: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.checking_seconds = 0.0
        self._heals: list[tuple[float, str, Callable[[], object]]] = []

    def run(self, steps: Sequence[Step], until: float = float("inf")) -> None:
        """Raises ViolationError. `until`: monotonic, when no further burst begins."""
        self.rules.note()
        begun: list[Step] = []
        for burst in bursts(steps):
            if time.monotonic() > until:
                return
            began, begun = time.monotonic(), begun + burst
            try:
                self._burst(burst)
                self._calm(burst)
            except ViolationError as error:
                error.steps = begun
                raise
            took = f"{time.monotonic() - began:3.0f} s, {self.checking_seconds:2.0f} of them to check"
            print(f"  {took}: {'; '.join(map(str, burst))}", flush=True)

    def _burst(self, burst: Sequence[Step]) -> None:
        for step in burst:
            self._pass(step.gap)
            fault, member = BY_NAME[step.fault], self.world.cluster.members[step.node]
            act = partial(fault.inject, self.world, member, step.number)
            (self.injected if self._try(act) else self.missed)[step.fault] += 1
            heal = partial(fault.heal, self.world, member, step.number)
            self._heals.append((time.monotonic() + (step.number if fault.lasts else 0), step.fault, heal))
        while self._heals:
            self._pass(LOOK_SECONDS)

    def _pass(self, seconds: float) -> None:
        """Time in which what is due is healed, and the rules hold."""
        end = time.monotonic() + seconds
        while True:
            for one in sorted(self._heals, key=lambda one: one[0]):
                if one[0] <= time.monotonic():
                    self._heals.remove(one)
                    self._try(one[2])
            self._check(self.rules.all_along())
            self.world.note_activity()
            if (left := end - time.monotonic()) <= 0:
                return
            time.sleep(min(left, LOOK_SECONDS))

    def _try(self, act: Callable[[], object]) -> bool:
        """False where there is nothing to do it to."""
        try:
            act()
        except (BedError, ValueError, IndexError, LookupError, OSError):
            return False
        return True

    def _check(self, complaints: Iterator[str]) -> None:
        with suppress(BedError, ProcessLookupError):  # between two boots
            for complaint in complaints:
                raise ViolationError(complaint)

    def _check_calm(self, names: list[str]) -> None:
        """Once more where a look breaks off: in a calm all nodes are there."""
        for again in (True, False):
            try:
                for complaint in self.rules.in_calm(names):
                    raise ViolationError(complaint)
            except (BedError, ProcessLookupError) as error:
                if not again:
                    raise ViolationError(f"look: {error}") from error
            else:
                return

    def _calm(self, burst: Sequence[Step]) -> None:
        """Tokens without a hand; then what must hold in a calm."""
        for member in self.world.cluster.members:
            self._try(partial(self.world.revive, member))
        began, cooled = time.monotonic(), 0.0
        ranks, since = "", began
        while time.monotonic() - since < SETTLED_SECONDS or not ranks:
            if (now := self._serves()) != ranks or not now:
                ranks, since = now, time.monotonic()
            if any(member.phase() == "cooling" for member in self.world.cluster.members):
                cooled += LOOK_SECONDS
            for member in self.world.cluster.members:
                self._help(member)
            if time.monotonic() - began - cooled > self.rules.back_seconds or cooled > self.rules.cooling_seconds:
                raise ViolationError(
                    f"tokens: none after {time.monotonic() - began:.0f} s, {cooled:.0f} s of them cooling"
                )
            self._pass(LOOK_SECONDS)
        served = time.monotonic()
        self._check_calm([step.fault for step in burst])
        self.rules.note()
        self.checking_seconds = time.monotonic() - served

    def _serves(self) -> str:
        """The ranks that do, with their agents; empty where not all of them do."""
        with suppress(BedError, ProcessLookupError, OSError):
            return self.world.serving()
        return ""

    def _help(self, member: SparkdNode) -> None:
        """What a person does where sparkd says that one is needed."""
        if member.show("ActiveState") != "failed":
            return
        code, report = member.exit_status(), member.report()
        journal = member.journal_since(self.rules.cursors[member.node.name])
        # With a file that can't be read no report is written, and that of a boot before is gone.
        refusals = (
            [f"{report.cause} {report.action}: {report.message}"]
            if report and report.action not in ("", "none")
            else []
        )
        refusals += [line for line in journal.splitlines() if "agent.run.refused" in line and "action=none" not in line]
        if code not in OWED or not refusals:
            raise ViolationError(f"tokens: {member.unit} stays down with {code} and requires nobody: {report}")
        self.world.persons.append(f"{member.unit}: {code} {refusals[-1]}")
        if code == 78:
            edit(self.world, member, 0)
        member.node.run("systemctl", "reset-failed", member.unit)
        member.start_soon()


def shrink(steps: list[Step], shows: Callable[[list[Step]], bool], most: int = 8) -> list[Step]:
    """Delta debugging, by at most so many tries; each `shows` runs a list from a fresh start."""
    parts, tries = 2, 0
    while len(steps) > 1 and tries < most:
        size = max(1, len(steps) // parts)
        pieces = [steps[at : at + size] for at in range(0, len(steps), size)]
        for number in range(len(pieces)):
            rest = [step for other, piece in enumerate(pieces) if other != number for step in piece]
            tries += 1
            if rest and shows(rest):
                steps, parts = rest, max(2, parts - 1)
                break
            if tries >= most:
                return steps
        else:
            if size == 1:
                return steps
            parts = min(len(steps), 2 * parts)
    return steps
