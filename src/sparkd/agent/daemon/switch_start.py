"""The start of a process after `sparkd use`: takes the choice one step further, and judges a start that fails."""

from contextlib import suppress
from datetime import UTC, datetime

from msgspec.structs import replace

from sparkd.agent.actions import Actions
from sparkd.agent.daemon.state_store import find_remedy
from sparkd.base.cluster import membership
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib.endings import StopRequested
from sparkd.base.lib.errors import (
    AwaitedError,
    Cause,
    ConfigError,
    ExitCode,
    NotReadyError,
    OutdatedPlanError,
    SparkdError,
)
from sparkd.base.lib.log import Events
from sparkd.base.lib.times import utc_now
from sparkd.base.state import launch_history
from sparkd.base.state.launch_history import End
from sparkd.base.state.switch import FILE, NO_REASON, NOTICE, Event, Stage, Switch, label, step

RETURNS_HINT = "repair it, and choose it again; what can be chosen: sudo sparkd use --list"


def begin_switch(config: Settings, host: Host, actions: Actions, events: Events) -> tuple[Switch | None, object]:
    """Take the choice that a new process finds one step further. Returns the result, and its stamp.

    A later choice has another stamp.
    """
    stamp, current = stamp_switch(host), None
    with suppress(AwaitedError):  # `resolve_context` raises it too, and its caller waits
        current = membership.current_switch(config, host)
    if current is None:
        return None, stamp
    changed, reason = _step_further(config, host, current)
    if changed == current:
        return current, stamp
    try:
        if not actions.compare_and_swap(FILE, current, changed):
            return begin_switch(config, host, actions, events)  # somebody has chosen again meanwhile
        stamp = stamp_switch(host)
        if FILE.read(host.files) != changed:  # somebody has chosen again since
            stamp = object()  # equals no stamp
    except OSError as error:  # `raise_if_unwritten` ends this process before a launch
        reason, hint = error.strerror or str(error), find_remedy(error)
        events.error("state.write.failed", file=FILE.name, reason=reason, hint=hint)
    if current.stage in (Stage.DRAINING, Stage.TRYING) and (changed is None or changed.stage is Stage.IN_FORCE):
        _report_return(host, actions, events, current, _explain_tries(host, current) if reason == NO_REASON else reason)
    return changed, stamp


def _step_further(config: Settings, host: Host, current: Switch) -> tuple[Switch | None, str]:
    """The choice after its step, and why a plan that can't be made is left."""
    changed: Switch | None = current
    reason = NO_REASON
    if current.expired(datetime.now(UTC)):
        changed, reason = step(current, Event.EXPIRED), f"{NO_REASON} before its time was over"
    changed = step(changed, Event.STARTED) if changed is not None else None
    if changed is not None and changed.stage is Stage.TRYING:
        try:
            membership.make_context(config, host, changed.to)
        except AwaitedError:
            pass
        except ConfigError as error:
            return step(changed, Event.FAILED), error.reason
    return changed, reason


def _explain_tries(host: Host, switch: Switch) -> str:
    """Why no start of a new plan brought a verdict: with the last end since it was chosen, where that is known."""
    with suppress(OSError):
        end = launch_history.read_history(host.files).last_cause
        if end is not None and end.at > switch.chosen_at:
            return f"{NO_REASON} of its own, the last that was recorded: {end.reason}"
    return NO_REASON


def end_start(
    switch: Switch | None, host: Host, actions: Actions, events: Events, error: StopRequested | SparkdError
) -> None:
    """Judge what the end of a start means for the try of a new plan: nothing, for a stop or a new configuration.

    Raises NotReadyError, after which the plan before is launched, where the error is of the configuration.
    """
    is_refused = isinstance(error, ConfigError) and not isinstance(error, AwaitedError)
    is_left = isinstance(error, (StopRequested, OutdatedPlanError))
    if switch is None or switch.stage is not Stage.TRYING or not (is_refused or is_left):
        return
    with suppress(OSError):  # then it counts as one try
        is_taken = actions.compare_and_swap(FILE, switch, step(switch, Event.LEFT if is_left else Event.FAILED))
        if is_taken and isinstance(error, ConfigError):
            _report_return(host, actions, events, switch, error.reason)
            raise NotReadyError(f"{describe_return(switch)}: {error.reason}", error.hint) from None


def _report_return(host: Host, actions: Actions, events: Events, switch: Switch, reason: str) -> None:
    """Report the return to the plan before: in the journal, and as the last cause of the next report."""
    text = f"{describe_return(switch)}: {reason}"
    events.error("switch.plan.returned", reason=text, hint=RETURNS_HINT)
    end = End(text, int(ExitCode.NOT_READY), RETURNS_HINT, "", utc_now(), Cause.SWITCH_FAILED)
    with suppress(OSError):
        history = replace(launch_history.read_history(host.files), last_exit=end)
        actions.write_state(launch_history.FILE.name, launch_history.FILE.encode(history), launch_history.FILE.mode)


def describe_return(switch: Switch) -> str:
    return f"back to {label(switch.before)}, {label(switch.to)} did not come up"


def stamp_switch(host: Host) -> object:
    """A stamp that changes with each choice. It is of a file in /run, which never hangs: each wait looks at it."""
    with suppress(OSError):
        return host.files.stat(NOTICE)
    return None
