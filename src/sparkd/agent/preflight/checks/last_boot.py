"""Last boot: whether earlier boots crashed while the engine loaded or served, rather than ended by a shutdown."""

from __future__ import annotations

from itertools import takewhile

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, block, ok, warn
from sparkd.base.host import Host
from sparkd.base.lib.text import sanitize
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.state import launch_history
from sparkd.base.state.file import ignore_report
from sparkd.base.state.history import describe_change
from sparkd.base.state.known_good import Facts
from sparkd.base.state.launch_history import LOADING, LaunchHistory

TOO_MANY = 3
"""Boots in a row that ended while one plan loaded. Three power cuts in a row, each within such minutes, are rare."""
PHASE_LENGTH = 60


class Launch(Struct, frozen=True):
    """The last launch of a boot."""

    phase: str
    this_plan: bool
    end_seen: bool
    """False: it ended with its machine."""


class LastBootFacts(Struct, frozen=True):
    before: tuple[Launch, ...]
    """The launches of the boots before this one since the last good start, oldest first."""
    changes: str
    """Differences of the last launch from the last good start."""
    end: str = ""
    """How the machine's last boot ended, with the evidence."""


class LastBoot(Check[LastBootFacts], frozen=True):
    digest: str
    unit: str = ""
    id = "last-boot"
    levels = (Level.WARN, Level.BLOCK, Level.UNKNOWN)

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> LastBoot:
        return cls(inputs.plan.counted_as, f"sparkd-{inputs.role}")

    def probe(self, host: Host) -> LastBootFacts:
        known = launch_history.FILE.load(host.files, ignore_report) or LaunchHistory()
        if not known.boots:
            return LastBootFacts((), "")
        boot_id = host.files.value("/proc/sys/kernel/random/boot_id")
        changes = "no good start is on record"
        if known.good:
            good, tried = (Facts(values, {}, {}) for values in (known.good, known.tried))
            changes = f"since the last good start {describe_change(good, tried)}"
        before = tuple(
            Launch(sanitize(boot.phase, PHASE_LENGTH), boot.digest == self.digest, not boot.open)
            for boot in known.boots_before(boot_id)
        )
        end = str(known.machine_end) if known.machine_end and known.machine_end.boot_id == boot_id else ""
        return LastBootFacts(before, changes, end)

    def judge(self, facts: LastBootFacts) -> Verdict:
        if not facts.before:
            return ok("no launch is on record in the boots before this one")
        last = facts.before[-1]
        if last.end_seen:
            return ok("sparkd saw the end of the last launch before this boot")
        ended = f", by what is left of it {facts.end}" if facts.end else ""
        by_this_load = (one.this_plan and one.phase == LOADING and not one.end_seen for one in reversed(facts.before))
        in_a_row = len(tuple(takewhile(bool, by_this_load)))
        if in_a_row < TOO_MANY:
            times = f", {in_a_row} times in a row" if in_a_row > 1 else ""
            reason = f"the last boot with a launch ended without a shutdown while the engine was {last.phase}"
            return warn(reason + times + ended, "a power cut? else look at its end: journalctl --list-boots, -b -1 -e")
        reason = f"the last {in_a_row} boots ended without a shutdown while this plan was loading{ended}; "
        hint = f"fix the cause (journalctl -b -1 -e), then: sudo systemctl start {self.unit}"
        return block(reason + facts.changes, hint, needs_person=True)
