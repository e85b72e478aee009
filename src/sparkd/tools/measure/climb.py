"""The steps of `sparkd tune-recipe`, each recorded in a file before and after it is taken.

Each is a switch to a plan that ends at a time, so the agent goes back by itself even if this command or the node dies.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.actions import files
from sparkd.base.cluster import membership
from sparkd.base.cluster.membership import NodeContext
from sparkd.base.config import Settings, load_settings
from sparkd.base.host import Host
from sparkd.base.lib.errors import NOT_BY_PLAN, BlockedError, Cause, ConfigError, EngineEndedError, NotReadyError
from sparkd.base.lib.text import GIB, sanitize, size
from sparkd.base.lib.times import utc_now
from sparkd.base.state.file import StateFile
from sparkd.base.state.switch import LATE, MOST_BACK, NO_REASON, TRIES, Chosen, Stage, Switch, label
from sparkd.base.status.model import read_living_report
from sparkd.tools.measure.interrupts import hold_signals
from sparkd.tools.measure.knobs import Knob, Value, set_values
from sparkd.tools.measure.ladder import BASE_STEP, MeasuredStep, Position, Step, find_position
from sparkd.tools.measure.measuring import run_warm
from sparkd.tools.measure.soak import Sample, read_sample
from sparkd.tools.measure.trial import (
    StillCompilingError,
    check_bench,
    ready_seconds,
    short_bench,
    smoke_twice,
    trial_limit_seconds,
)
from sparkd.tools.node import switching
from sparkd.tools.node.command_lock import usage_error
from sparkd.tools.node.served import open_endpoint
from sparkd.tools.node.switch_progress import GONE_SECONDS, await_end, await_service, follow

DRAIN_SECONDS = 60
"""Time that running requests have left when a step begins."""
KNOB_CHECKS = ("plan-lint", "unified-memory")
"""Checks whose outcome a knob decides: a finding of theirs makes a bad step, any other one stops the command."""
FAULT_LENGTH = 300
"""Most characters of a fault that are kept of a step."""
BY_LOAD = (Cause.PEER_LOST, Cause.PEER_SILENT, Cause.MEMORY_TAKEN)
"""Causes of an engine's end to which a step's load may have led: its try counts."""
FOREIGN_CAUSES = {*NOT_BY_PLAN, *BY_LOAD, Cause.PEER_STOPPED, Cause.STOP_REQUESTED, Cause.KILLED_FROM_OUTSIDE}
"""Causes of an engine's end that say nothing of the recipe, and a kill, which a person is to explain."""
RESUME_HINT = "when that is over, the same command continues from here"
EDITED_HINT = "take the edit back, and the same command continues from here; with it, all may begin from the start"


class NoVerdictError(BlockedError):
    """A step was ended by no known fault of its own, perhaps by its load: the try counts."""


class Tuning(Struct, frozen=True):
    """State of a ladder, kept in a file until the ladder has ended."""

    name: str
    """Name of the recipe to write, and of each step's."""
    base: str
    """Fingerprint of the first recipe and the section `engine`."""
    knobs: tuple[Knob, ...]
    at_once: int
    measured: tuple[MeasuredStep, ...] = ()
    tried: Step | None = None
    """The step under way."""
    tries: int = 0
    """How many processes have begun that step: each died or ended without a verdict, or takes it now."""


FILE = StateFile(Tuning, "tune-recipe.json")


class Climb:
    """Takes the steps of a ladder. A context manager: at its end the node returns to the plan before."""

    def __init__(
        self,
        tuning: Tuning,
        base: Chosen,
        config: Settings,
        host: Host,
        show: Callable[[str], None],
        gone_seconds: float = GONE_SECONDS,
    ) -> None:
        """Raises BlockedError where the node is about to change its plan."""
        self.tuning, self._base, self._config, self._host, self._show = tuning, base, config, host, show
        self._gone_seconds = gone_seconds
        self._fingerprint = membership.fingerprint_config(config, host)
        """Fingerprint of the configuration that the switches replace."""
        self._was_in_force = False
        """Whether the last step's plan came into force. From then on a missing file means that somebody else chose."""
        self._plans_before, self._switch = find_start(switching.read_choice(host), self._fingerprint, self._is_step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Go back from a step, never from what somebody else has chosen. Raises UsageError."""
        with hold_signals():  # a second Ctrl-C would leave the step in force
            chosen = switching.go_back(self._host, self._is_step)
        self._show(f"this node runs, or is on the way to: {label(chosen)}; sparkd status")

    def _is_step(self, switch: Switch) -> bool:
        """Whether it is a step of this ladder: only those have its recipe's name and end at a time."""
        return switch.to is not None and bool(switch.to.until) and switch.to.recipe.name == self.tuning.name

    def run(self) -> Position:
        """Take all steps, and return where the ladder ends.

        Raises SparkdError where it is stopped: the figures are kept, and the next run continues from there.
        """
        while (position := find_position(self.tuning.knobs, self.tuning.measured)).step is not None:
            step = position.step
            earlier_tries = self.tuning.tries if self.tuning.tried == step else 0
            self.save(replace(self.tuning, tried=step, tries=earlier_tries + 1))
            self._show(f"step {len(self.tuning.measured) + 1}: {step}")
            try:
                if earlier_tries < TRIES:
                    measured = self._take(step, position.values)
                else:
                    measured = MeasuredStep(*step, fault=f"begun {TRIES} times, it ended without a verdict")
            except NoVerdictError:  # the try counts
                raise
            except BaseException:
                self.save(replace(self.tuning, tried=None, tries=0))
                raise
            self.save(replace(self.tuning, measured=(*self.tuning.measured, measured), tried=None, tries=0))
            self._show(f"{step}: {measured.describe()}")
        return position

    def _take(self, step: Step, values: Mapping[str, Value]) -> MeasuredStep:
        """Put the plan of a step in force and measure it. Raises as `_put_in_force` and `_measure`."""
        fault = self._put_in_force(values, is_base=step == BASE_STEP)
        return MeasuredStep(*step, fault=fault[:FAULT_LENGTH]) if fault else self._measure(step)

    def _put_in_force(self, values: Mapping[str, Value], *, is_base: bool) -> str:
        """Switch to a plan with the values, and return "" once it is in force, or the fault for which it is not.

        Raises BlockedError where the fault is not the recipe's.
        """
        if is_base and self._is_running_already():
            return ""  # no load is needed
        until = switching.time_after(trial_limit_seconds(self._config, DRAIN_SECONDS))
        engine = self._base.engine.model_copy(update={"recipe": self.tuning.name})
        chosen = Chosen(set_values(self._base.recipe, self.tuning.name, values), engine, until=until)
        try:
            node = membership.make_context(self._config, self._host, chosen)
        except ConfigError as error:
            return sanitize(error.reason, FAULT_LENGTH)
        return self._check_findings(node, is_base=is_base) or self._switch_to(chosen)

    def _is_running_already(self) -> bool:
        """Whether the plan in force is that of the recipe as it is."""
        base = membership.make_context(self._config, self._host, self._base)
        current = membership.resolve_context(self._config, None, self._host)
        is_switching = current.switch is not None and current.switch.stage is not Stage.IN_FORCE
        return current.plan.digest == base.plan.digest and not is_switching

    def _check_findings(self, node: NodeContext, *, is_base: bool) -> str:
        """Check whether the plan can start: the knobs' fault, or "". Raises BlockedError for any other finding."""
        findings = switching.findings_of(node, self._host, self._config)
        knob_findings = [finding for finding in findings if finding.id in KNOB_CHECKS]
        other_findings = [finding for finding in findings if finding.id not in KNOB_CHECKS]
        if is_base:
            switching.refuse_blocked(node, other_findings, self._config, self._host)
        elif other_findings:
            # Other nodes are not queried: no rung needs more of them than the recipe, and their agents may be starting.
            raise BlockedError("\n".join(switching.explain_findings(other_findings)))
        return sanitize("; ".join(switching.explain_findings(knob_findings)), FAULT_LENGTH)

    def _switch_to(self, chosen: Chosen) -> str:
        """Switch to the plan. Returns and raises as `_put_in_force`."""
        previous = self._refuse_other_choice()
        self._was_in_force = False
        self._switch = switch = Switch(
            replaces=self._fingerprint,
            stage=Stage.DRAINING,
            to=chosen,
            back=self._plans_before,
            drain_seconds=DRAIN_SECONDS,
            chosen_at=utc_now(),
        )
        switching.write_switch(previous, switch, self._host)
        fault = self._follow(switch)
        self._was_in_force = not fault
        self._refuse_other_choice()
        return fault

    def _follow(self, switch: Switch) -> str:
        """Wait until the plan is in force, and return "", or the fault for which it did not come up.

        Raises BlockedError where it has no verdict, or what is configured has changed: the agent then drops each step.
        """
        try:
            fault = follow(switch, self._host, self._show, self._gone_seconds)
        except NotReadyError as error:
            raise BlockedError(error.reason, f"sudo systemctl start sparkd-head; {RESUME_HINT}") from None
        if NO_REASON in fault or LATE in fault:
            is_tried = NO_REASON in fault and self.tuning.tried != BASE_STEP
            raise (NoVerdictError if is_tried else BlockedError)(f"the step has no verdict: {fault}", RESUME_HINT)
        if fault:
            try:
                configured = load_settings(os.environ, Path(self._host.files.root))
                fingerprint = membership.fingerprint_config(configured, self._host)
            except ConfigError as error:
                raise BlockedError(f"{error.reason}; the step: {fault}", error.hint or RESUME_HINT) from None
            if fingerprint != self._fingerprint:
                raise BlockedError(f"the configuration has changed meanwhile: {fault}", EDITED_HINT)
        return fault

    def _refuse_other_choice(self) -> Switch | None:
        """The switch in the file. Raises BlockedError where somebody else has chosen since the last step."""
        choice, switch = switching.read_choice(self._host), self._switch
        if switch is None:
            return choice
        is_replaced = choice.chosen_at != switch.chosen_at if choice is not None else self._was_in_force
        if is_replaced:
            raise BlockedError(f"somebody has chosen {label(choice.chosen if choice else None)} meanwhile", RESUME_HINT)
        return choice

    def _measure(self, step: Step) -> MeasuredStep:
        """Measure the plan in force. Raises BlockedError where the engine was ended by no known fault of the recipe."""
        began = utc_now()
        try:
            measured = self.smoke_and_bench(step)
        except (EngineEndedError, NotReadyError) as error:  # a bench only has requests that failed
            end = await_end(self._host, lambda last: last.at > began, self._gone_seconds)
            if end is not None and end.cause in FOREIGN_CAUSES:
                error_type = NoVerdictError if end.cause in BY_LOAD and step != BASE_STEP else BlockedError
                raise error_type(f"the engine was ended: {end.reason}", RESUME_HINT) from None
            if end is None and read_living_report(self._host.files) is None:
                raise BlockedError(error.reason, f"sudo systemctl start sparkd-head; {RESUME_HINT}") from None
            measured = MeasuredStep(*step, fault=sanitize(error.reason, FAULT_LENGTH))
        self._refuse_other_choice()
        return measured

    def smoke_and_bench(self, step: Step) -> MeasuredStep:
        """Smoke, then bench.

        Raises BlockedError without an agent, EngineEndedError, NotReadyError, KeyboardInterrupt.
        """
        serves = await_service(self._host, ready_seconds(self._config), self._gone_seconds)
        if serves is None:
            raise BlockedError("no agent runs any more", f"sudo systemctl start sparkd-head; {RESUME_HINT}")
        if not serves:
            return MeasuredStep(*step, fault="it does not serve")
        if faults := smoke_twice():
            return MeasuredStep(*step, fault=sanitize(f"smoke: {'; '.join(faults)}", FAULT_LENGTH))
        with open_endpoint(self.tuning.at_once) as served:
            benchmark = run_warm(served, short_bench(self.tuning.at_once))
        try:
            rate = check_bench(benchmark)
        except StillCompilingError as error:  # says nothing of the step, which would count as bad for good
            hint = "the same command continues from here, with the kernels that the step has now"
            raise BlockedError(error.reason, hint) from None
        first = benchmark.levels[0].first_token_seconds
        return MeasuredStep(
            *step,
            rate=rate,
            first_token_seconds=first.median if first else None,
            kv_cache_tokens=served.report.engine.kv_cache_tokens,
            fault=find_shortage(read_sample(self._host), self._config.memory.floor_mib << 20),
        )

    def save(self, tuning: Tuning | None) -> None:
        """Write the state to its file. None removes it, so that the next ladder begins from the start.

        Raises UsageError.
        """
        with usage_error(f"{FILE.path} can't be changed", "df -h /var/lib/sparkd"):
            files.compare_and_swap(self._host.files, FILE, FILE.read(self._host.files), tuning)
        self.tuning = tuning or self.tuning


def find_start(
    choice: Switch | None, fingerprint: str, is_step: Callable[[Switch], bool]
) -> tuple[tuple[Chosen, ...], Switch | None]:
    """The plans to go back to, and the step that an earlier process left where that was killed. Pure.

    `choice`: the switch in the file; `fingerprint`: of what is configured. Raises BlockedError where the node is about
    to change its plan.
    """
    if choice is None or choice.replaces != fingerprint:
        return (), None
    if is_step(choice):
        return choice.back, choice
    if choice.stage is not Stage.IN_FORCE:
        raise BlockedError(f"this node is on the way to {label(choice.chosen)}", "sparkd status")
    return choice.plans[:MOST_BACK], None


def find_shortage(sample: Sample | None, floor_bytes: int) -> str:
    """The shortage of memory on any node; empty where there is none. Pure."""
    needed_bytes = floor_bytes + GIB
    for name, free_bytes in (sample.available_bytes if sample is not None else {"this node": None}).items():
        if free_bytes is None:
            return f"the memory of {sanitize(name)} is not known"
        if free_bytes < needed_bytes:
            available = f"{size(free_bytes)} of memory left on {sanitize(name)}"
            return f"{available}, {size(needed_bytes)} needed (memory.floor_mib and 1 GiB)"
    return ""
