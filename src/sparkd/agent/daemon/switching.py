"""The agent's part in `sparkd use`: leaves for another plan, tries a new one, and goes back from one that fails.

Each step is written before it is taken, so that after a power cut at any moment the next process can continue from the
file. Workers take no part: they run what their head runs.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from msgspec.structs import replace

from sparkd.agent.daemon.context import Context
from sparkd.agent.daemon.switch_start import RETURNS_HINT, describe_return, stamp_switch
from sparkd.base.cluster import membership
from sparkd.base.lib.endings import StopRequested
from sparkd.base.lib.errors import NOT_BY_PLAN, Action, AwaitedError, Cause, ExitCode, NotReadyError, OutdatedPlanError
from sparkd.base.lib.main_loop import Outcome
from sparkd.base.state.launch_history import End
from sparkd.base.state.switch import AWAITED_SECONDS, CONFIGURED, FILE, LATE, Event, Stage, Switch, label, step
from sparkd.base.status.model import Phase
from sparkd.base.status.phases import PHASES

BLOCKED_SECONDS = 120.0
"""How long a new plan may be blocked on any node."""
LOOK_SECONDS = 1.0
"""Pause between two looks at a choice that could not be followed."""
UNANNOUNCED_SECONDS = 60.0
"""Pause between two looks without a notice: a writer may have been killed before its notice, or /run is full."""
EXPIRE_SECONDS = 10.0
"""Pause between two tries to write that the plan's time is over."""


class SwitchRequested(StopRequested):
    """Raised where another plan is chosen, or this one's time is over: the next process launches the other plan."""

    def __init__(self, switch: Switch) -> None:
        self.to = label(switch.chosen)
        super().__init__(f"leaving for {self.to}")
        self.drain_seconds = switch.drain_seconds


class Switching:
    """The choice that decides which plan this process runs. Used by the main thread."""

    def __init__(self, agent: Context, clock: Callable[[], float] = time.monotonic) -> None:
        self.switch: Switch | None = agent.context.switch
        """The choice that this process was started with, with the steps taken since."""
        self._agent = agent
        self._clock = clock
        self._began_at = clock()
        self._stuck_since: float | None = None
        """Set while a new plan is tried and a node is blocked."""
        self._followed_stamp = agent.switch_seen
        """Stamp of the choice that was last followed."""
        self._look: tuple[object, Outcome[tuple[Switch | None, list[str]]]] | None = None
        """A read of the file under way (the choice, and what is wrong with it), after the stamp from before it."""
        self._next_look_at, self._unannounced_look_at = -math.inf, clock() + UNANNOUNCED_SECONDS
        self._next_expiry_at = -math.inf

    def settle(self) -> None:
        """Log which plan was chosen in place of the configured one; remove a choice that is over."""
        agent, switch = self._agent, self.switch
        if switch is not None:
            name = {"plan": agent.plan.digest[:12], "recipe": agent.plan.recipe}
            if switch.stage is Stage.TRYING:
                agent.events.warning("switch.plan.tried", **name, tries=switch.tries, back=label(switch.before))
                if switch.tries == 1:  # a person has just chosen it, whatever failed before
                    agent.store.record(lambda launches: launches.reset(agent.plan.backoff_key))
            elif switch.chosen is not None:
                event = "rollback.plan.applied" if switch.chosen.proven else "switch.plan.applied"
                agent.events.warning(event, **name, hint=switch.chosen.hint)
            return
        with suppress(OSError, AwaitedError):  # the next process tries again
            self._remove_if_over()

    def _remove_if_over(self) -> None:
        agent, faults = self._agent, list[str]()
        current_switch = membership.current_switch
        if agent.store.read(lambda _files, _report: current_switch(agent.context.configured, agent.host)) is not None:
            return  # it was chosen after this process made its plan, and is for the next one
        choice = agent.store.read(lambda files, _report: FILE.load(files, faults.append))
        if (choice is not None or faults) and agent.store.compare_and_swap(FILE, choice, None):
            log, hint = (agent.events.warning, "sudo sparkd use --list") if faults else (agent.events.info, "")
            reason = faults[0] if faults else "the configuration has changed"
            log("rollback.plan.removed", reason=f"{reason}: {CONFIGURED} holds", hint=hint)

    def watch(self) -> None:
        """Look for another choice, in each wait of the main loop.

        Raises SwitchRequested; OutdatedPlanError instead where this node is blocked; NotReadyError where a new plan is
        not launched for too long.
        """
        self._look_for_choice()
        now = self._clock()
        if self.switch is not None and now >= self._next_expiry_at and self.switch.expired(datetime.now(UTC)):
            expired_switch, self._next_expiry_at = self.switch, now + EXPIRE_SECONDS
            if self._take_step(Event.EXPIRED):
                # Without a switch left, what is configured holds: it is left for that, as on the way back.
                raise SwitchRequested(self.switch or replace(expired_switch, stage=Stage.RETURNING))
        if self.tried:
            self._raise_if_stuck()

    def _look_for_choice(self) -> None:
        if self._look is None:
            stamp, now = stamp_switch(self._agent.host), self._clock()
            is_announced = stamp != self._followed_stamp
            if now < (self._next_look_at if is_announced else self._unannounced_look_at):
                return
            self._next_look_at, self._unannounced_look_at = now + LOOK_SECONDS, now + UNANNOUNCED_SECONDS
            self._look = stamp, self._agent.loop.start(self._read_choice)  # the disk may hang
        stamp, look = self._look
        if not look.done():
            return
        self._look = None
        try:
            choice, faults = look.result()
        except OSError as error:  # the file is unreadable, or no thread could be started
            faults = [str(error)]
        else:
            self._follow_choice(choice)
            self._followed_stamp = stamp
        self._agent.store.report_unread(*faults)

    @property
    def looking(self) -> bool:
        """Whether a look is under way: a choice may have been made that is not known yet."""
        return self._look is not None

    def _read_choice(self) -> tuple[Switch | None, list[str]]:
        faults = list[str]()
        return FILE.load(self._agent.host.files, faults.append), faults

    def _follow_choice(self, choice: Switch | None) -> None:
        """Act on the choice in the file: leave for another plan, or take over a changed end of this one.

        Raises SwitchRequested; OutdatedPlanError where this node is blocked, and any other choice was made.
        """
        # The choice may still be that from the start of this process: a full disk may have kept its step unwritten.
        is_new = choice != self._agent.context.switch
        if choice is not None and is_new and choice.stage in (Stage.DRAINING, Stage.RETURNING):
            raise SwitchRequested(choice)
        if choice is not None and self.switch is not None and choice.chosen_at == self.switch.chosen_at:
            is_changed, self.switch = choice != self.switch, choice  # its time may be longer or shorter
            if is_changed:
                self._report_switch()
        elif choice != self.switch and self._agent.reporter.report.phase is Phase.BLOCKED:
            raise OutdatedPlanError("another plan was chosen", "sparkd restarts with it")

    @property
    def tried(self) -> bool:
        """Whether a new plan is tried now."""
        return self.switch is not None and self.switch.stage is Stage.TRYING

    def raise_if_unwritten(self) -> None:
        """Raises OutdatedPlanError before a launch where the step of this process could not be written.

        Without its step the plan would run without a try. Now the disk can be written to: the next process takes it.
        """
        if self.switch is not None and self.switch.stage in (Stage.DRAINING, Stage.RETURNING):
            reason = f"{FILE.path} could not be written as this process began"
            raise OutdatedPlanError(reason, "sparkd restarts with it")

    def _raise_if_stuck(self) -> None:
        """Raises NotReadyError where the launch takes too long. Each step after it has a limit of its own."""
        report, now = self._agent.reporter.report, self._clock()
        if not PHASES[report.phase].ahead:
            return
        phases = (report.phase, *(peer.living.phase for peer in self._agent.monitor.statuses() if peer.living))
        self._stuck_since = (self._stuck_since or now) if Phase.BLOCKED in phases else None
        if now - (self._stuck_since or now) > BLOCKED_SECONDS:
            reason = f"blocked for {BLOCKED_SECONDS:.0f} s: {report.message}"
            raise NotReadyError(reason, "sparkd preflight --dry-run shows what blocks")
        if now - self._began_at > AWAITED_SECONDS:
            reason = f"{LATE}: {report.message}"
            raise NotReadyError(reason, "sparkd status shows what is awaited")

    def put_in_force(self) -> None:
        """Put the new plan in force, since it serves and its answers make sense."""
        agent = self._agent
        if not self._take_step(Event.WORKS):
            return
        agent.events.info("switch.plan.applied", plan=agent.plan.digest[:12], recipe=agent.plan.recipe, hint="")
        self._report_switch()

    def _report_switch(self) -> None:
        reporter, findings = self._agent.reporter, self.switch.findings if self.switch is not None else ()
        other_findings = (finding for finding in reporter.report.findings if finding.id not in ("use", "rollback"))
        reporter.update(findings=(*findings, *other_findings))
        reporter.publish()  # the person who has just changed it reads the report next

    def interrupt(self) -> None:
        """Note that a stop ends a process whose plan is on trial: it stays so, and this try is not counted."""
        if self.tried:
            self._take_step(Event.LEFT)

    def end_try(self, end: End) -> End:
        """Judge what `end` means for the try of a new plan. Returns the end to report.

        That is `end`, or where the try has failed, the end of the switch, which names the plan that is launched next.
        """
        switch = self.switch
        if switch is None or not self.tried:
            return end
        if end.cause == Cause.PLAN_OUTDATED:
            self._take_step(Event.LEFT)
            return end
        if self._is_no_verdict(end):
            return end  # the next start tries once more
        if not self._take_step(Event.FAILED):
            return end
        reason, hint = f"{describe_return(switch)}: {end.reason}", end.hint or RETURNS_HINT
        # The plan before is launched next, unless the machine itself needs something first.
        action = end.action if end.action in (Action.REBOOT, Action.POWER_CYCLE) else Action.NONE
        return replace(end, reason=reason, hint=hint, cause=Cause.SWITCH_FAILED, action=action)

    def _is_no_verdict(self, end: End) -> bool:
        """Whether `end` says nothing of the plan: a node, its power or docker failed, or a node waits for a repair."""
        if end.code != ExitCode.PEER_LOST:
            # A smoke test that failed, or a load that stalled, is a verdict, whatever else is found then.
            return end.cause in NOT_BY_PLAN and end.code not in (ExitCode.NOT_READY, ExitCode.STALLED)
        return end.cause != Cause.PEER_FAILED or any(
            (peer.living and peer.living.phase is Phase.BLOCKED)
            # The next agent there may have begun, for which it is the last cause.
            or (report.cause or (report.last_cause_code if PHASES[report.phase].ahead else "")) in NOT_BY_PLAN
            for peer in self._agent.monitor.statuses()
            if (report := peer.report)
        )

    def _take_step(self, event: Event) -> bool:
        """Take a step. Returns whether it was: not where somebody has chosen again, or it can't be written."""
        own_switch, choice = self.switch, self._agent.store.try_read(FILE.load)
        if own_switch is None or choice is None or choice.chosen_at != own_switch.chosen_at:
            return False
        if event is Event.EXPIRED and not choice.expired(datetime.now(UTC)):
            return False  # it was given more time, as before this agent took the rank over
        changed = step(choice, event)
        if changed == choice or not self._agent.store.compare_and_swap(FILE, choice, changed):
            return False
        self.switch, self._look = changed, None  # a look that began before is outdated
        return True


def waiting_limit(switch: Switch | None) -> float:
    """Seconds after which a process that has not found its place ends. The next one counts one more try."""
    return AWAITED_SECONDS if switch is not None and switch.stage is Stage.TRYING else math.inf
