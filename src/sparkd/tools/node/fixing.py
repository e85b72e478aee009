"""Changes by preflight that a person requests: the allowed fixes, or the end of a process that a finding offers."""

import os
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from msgspec.structs import replace

from sparkd.agent.actions import Actions
from sparkd.agent.actions.processes import end_process
from sparkd.agent.daemon import hooks
from sparkd.agent.preflight.check import Finding
from sparkd.agent.preflight.fixes import FixState
from sparkd.agent.preflight.gate import Gate, GateIO
from sparkd.agent.preflight.hooks import list_hooks
from sparkd.agent.preflight.runner import build_checks
from sparkd.base.cluster.membership import NodeContext, check_inputs
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.owner import NodeOwner
from sparkd.base.lib.errors import AS_ROOT, BlockedError, UsageError
from sparkd.base.lib.log import events
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.systemd import Notifier
from sparkd.base.status.model import Phase, read_living_report
from sparkd.tools.node.render import PreflightReport


def _acquire_node(host: Host, loop: MainLoop) -> Actions:
    """Become the owner of the node.

    Raises UsageError for other users than root, BlockedError (10), which names the owner, where the node has one.
    """
    if os.geteuid() != 0:
        raise UsageError("only root may change this node", f"{AS_ROOT}, or only look: sparkd preflight --dry-run")
    return Actions.acquire(host, loop, NodeOwner(os.getpid(), "sparkd preflight", uuid.uuid4().hex))


def end_named(pid: int, examine: Callable[[], PreflightReport], host: Host) -> PreflightReport:
    """End a process with its descendants, where a finding of `examine` offers that. Raises as `_acquire_node`.

    A blocked agent may own the node meanwhile: it launches nothing as long as that finding blocks.
    """
    preflight = examine()
    offers = (offer for finding in preflight.findings for offer in finding.verdict.offers)
    offer = next((offer for offer in offers if offer[0].pid == pid), None)  # the process, then its descendants
    with MainLoop(Notifier(), {}) as loop, ExitStack() as stack:
        try:
            stack.callback(_acquire_node(host, loop).release)
        except BlockedError as error:
            phase = preflight.owner.phase if preflight.owner is not None else ""
            if offer is not None and phase != Phase.BLOCKED.value:
                kill = f"beside it: sudo kill {' '.join(str(fix.pid) for fix in offer)}"  # no stop of its engine
                raise BlockedError(error.reason, kill if phase else error.hint) from None
        if offer is None:
            hint = "a hint names what may be ended like that: sparkd preflight --dry-run"
            raise UsageError(f"no finding offers to end pid {pid}", hint)
        if os.getpid() in (fix.pid for fix in offer):
            raise UsageError(f"this command descends from pid {pid}, and would end itself", "run it elsewhere")
        ended = [(fix, end_process(fix)) for fix in offer]
    states = tuple(FixState(fix, outcome.state, outcome.note) for fix, outcome in ended)
    return replace(examine(), changes_nothing=False, fixes=states, hooks=(), before=preflight.findings)


def fix_node(node: NodeContext, config: Settings, host: Host) -> PreflightReport:
    """Apply the allowed fixes, if together they clear every blocking finding. Raises as `_acquire_node`."""
    loop = MainLoop(Notifier(), {})

    def run_hooks() -> tuple[Finding, ...]:
        return hooks.run_hooks(list_hooks(host.files), loop.wait, hooks.hook_environment(node.role, node.rank))

    def wait(seconds: float, _for: str) -> None:
        loop.wait(seconds)

    # Events are for the journal; a person reads the table.
    no_events = events(lambda _priority, _line: None, Redaction())
    policy = config.preflight.model_copy(update={"wait_seconds": 0})  # a person can repeat the command instead
    try:
        actions = _acquire_node(host, loop)
    except BlockedError as error:
        look = "to look only: sudo sparkd preflight --dry-run"  # a running agent fixes by itself
        raise BlockedError(error.reason, look if read_living_report(host.files) else error.hint) from None
    try:
        io = GateIO(actions.apply, run_hooks, wait, loop, no_events, show=lambda _findings: None)
        outcome = Gate(partial(build_checks, check_inputs(node)), host, policy, io).fix_and_recheck()
    finally:
        actions.release()
        loop.close()
    return PreflightReport(
        node=host.name(),
        role=node.role,
        changes_nothing=False,
        findings=outcome.findings,
        fixes=outcome.fixes,
        before=outcome.before,
    )
