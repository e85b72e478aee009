"""What all ranks must share, as this start has read it, and how it differs from the last good start."""

from msgspec import Struct

from sparkd.agent.daemon.context import Agent
from sparkd.base.host import Host, versions
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.text import sanitize
from sparkd.base.plan.agreement import Agreement
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.state.facts import READ_FROM_NODE, Facts, excerpt_values, find_differences, group_files, node_values
from sparkd.base.state.known_good import read_known_good
from sparkd.base.status.publisher import Reporter

BOOT_SECONDS = 2.0
"""Limit for reading the kernel's command line, swap and settings, which takes milliseconds."""
MOST_LINES = 12
"""Most differences from the last good start that are logged."""


class Agreed(Struct):
    """What this start has read. Used by the main thread."""

    host: Host
    loop: MainLoop
    plan: LaunchPlan
    reporter: Reporter
    agreement: Agreement = Agreement({}, "")
    """Its digest is empty before `keep`."""

    def forget(self) -> None:
        """Begin a start: what a blocked one has read is read again."""
        self.agreement = Agreement({}, "")

    def keep(self, agreement: Agreement) -> None:
        """Keep what was read. Raises BlockedError (exit 10) where this start has read something else before."""
        if self.agreement.digest not in ("", agreement.digest):
            raise BlockedError("the image, the model or the script has changed meanwhile", "sparkd checks the new one")
        self.agreement = agreement

    def facts(self) -> Facts:
        """The facts that a later start is compared with."""
        fingerprinted = bool(self.agreement.digest)
        values = self.agreement.values if fingerprinted else self.plan.shared
        unread = {} if fingerprinted else dict.fromkeys(READ_FROM_NODE, "the start ended before this was read")
        known_software = self.reporter.report.versions
        sysctls = [name for name, _ in self.plan.sysctls]
        try:
            software, boot = self.loop.beside(
                lambda: (
                    known_software or versions.read_local_versions(self.host),
                    versions.read_boot(self.host, sysctls),
                ),
                BOOT_SECONDS,
                "facts of this boot",
                shielded=True,
            )
        except OSError as error:
            software, boot = known_software, {}
            unread.update(dict.fromkeys(("boot", "sysctl"), str(error)))
        return Facts({**dict(values), **node_values(self.plan)}, software, boot, unread)


def log_differences(agent: Agent) -> None:
    """Log what differs in a failed start from the last known good one."""
    if not (known_good := agent.store.try_read(read_known_good)):
        return
    differences = group_files(find_differences(known_good[0].facts, agent.agreed.facts()))
    # The head chooses for a worker that follows it.
    diff_hint = "sudo sparkd diff" if agent.follower else "sudo sparkd diff; to go back to it: sudo sparkd rollback"
    for difference in differences[:MOST_LINES]:
        old_value, new_value = excerpt_values(difference)
        name, hint = sanitize(difference.name, 80), diff_hint if difference is differences[-1] else ""
        agent.events.warning("known_good.value.changed", name=name, then=old_value, now=new_value, hint=hint)
    if len(differences) > MOST_LINES:
        agent.events.warning("known_good.values.omitted", count=len(differences) - MOST_LINES, hint=diff_hint)
    if not differences:
        hint = "configuration unchanged since the last good start; see the engine log above"
        agent.events.warning("known_good.values.unchanged", since=known_good[0].until, hint=hint)
