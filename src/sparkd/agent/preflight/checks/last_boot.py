"""Last boot: whether earlier boots crashed while the engine loaded or served, rather than ended by a shutdown."""

from itertools import takewhile

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, block, ok, warn
from sparkd.base.host import Host
from sparkd.base.lib.text import sanitize
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.state.decline import describe_change
from sparkd.base.state.facts import Facts
from sparkd.base.state.launch_history import LOADING, read_history

TOO_MANY = 3
"""Boots in a row that ended while one plan loaded. Three power cuts in a row, each during a load, are rare."""


class LastLaunch(Struct, frozen=True):
    """The last launch of a boot."""

    phase: str
    this_plan: bool
    """Whether it was of the plan that is to be launched."""
    end_seen: bool
    """Whether sparkd saw its end; else it ended with its machine."""


class LastBootFacts(Struct, frozen=True):
    before: tuple[LastLaunch, ...]
    """The last launch of each boot before this one, since the last good start, oldest first."""
    changes: str
    """Differences of the last launch from the last good start."""
    end: str = ""
    """How the machine's last boot ended, with the evidence."""


class LastBoot(Check[LastBootFacts], frozen=True):
    plan: LaunchPlan
    role: str
    id = "last-boot"
    levels = (Level.WARN, Level.BLOCK, Level.UNKNOWN)

    def probe(self, host: Host) -> LastBootFacts:
        history = read_history(host.files)
        if not history.boots:
            return LastBootFacts((), "")
        boot_id = host.files.value("/proc/sys/kernel/random/boot_id")
        changes = "no good start is on record"
        if history.good:
            good, tried = (Facts(values, {}, {}) for values in (history.good, history.tried))
            changes = f"since the last good start {describe_change(good, tried)}"
        launches = tuple(
            LastLaunch(sanitize(boot.phase, 60), boot.digest == self.plan.backoff_key, not boot.open)
            for boot in history.boots_before(boot_id)
        )
        machine_end = str(history.machine_end) if history.machine_end and history.machine_end.boot_id == boot_id else ""
        return LastBootFacts(launches, changes, machine_end)

    def judge(self, facts: LastBootFacts) -> Verdict:
        if not facts.before:
            return ok("no launch is on record in the boots before this one")
        last = facts.before[-1]
        if last.end_seen:
            return ok("sparkd saw the end of the last launch before this boot")
        how_it_ended = f", by what is left of it {facts.end}" if facts.end else ""
        ended_this_load = (
            boot.this_plan and boot.phase == LOADING and not boot.end_seen for boot in facts.before[::-1]
        )
        in_a_row = len(tuple(takewhile(bool, ended_this_load)))
        if in_a_row < TOO_MANY:
            times = f", {in_a_row} times in a row" if in_a_row > 1 else ""
            reason = f"the last boot with a launch ended without a shutdown while the engine was {last.phase}"
            hint = "a power cut? else look at its end: journalctl --list-boots; journalctl -b -1 -e"
            return warn(reason + times + how_it_ended, hint)
        reason = f"the last {in_a_row} boots ended without a shutdown while this plan was loading{how_it_ended}; "
        hint = f"fix the cause (journalctl -b -1 -e), then: sudo systemctl start sparkd-{self.role}"
        return block(reason + facts.changes, hint, needs_person=True)
