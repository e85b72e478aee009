"""What all ranks must share, as this start has read it; and the facts with which a later start is compared."""

from __future__ import annotations

from sparkd.base.host import Host, versions
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.plan.agreement import Agreement
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.state.known_good import LOOKED_AT, Facts, node_values
from sparkd.base.status.publisher import Reporter

BOOT_SECONDS = 2.0
"""For the kernel's command line, swap and settings: milliseconds."""


class Agreed:
    """For the main thread."""

    def __init__(self, host: Host, loop: MainLoop, plan: LaunchPlan, reporter: Reporter) -> None:
        self.agreement = Agreement({}, "")
        """No digest before `keep`."""
        self._host = host
        self._loop = loop
        self._plan = plan
        self._reporter = reporter

    def forget(self) -> None:
        """A start begins: whatever a blocked one has read is read again."""
        self.agreement = Agreement({}, "")

    def keep(self, seen: Agreement) -> None:
        """Raises BlockedError (exit 10) where this start has read something else before."""
        if self.agreement.digest not in ("", seen.digest):
            raise BlockedError("the image, the model or the script has changed meanwhile", "sparkd checks the new one")
        self.agreement = seen

    def facts(self) -> Facts:
        """What a later start is compared with."""
        fingerprinted = bool(self.agreement.digest)
        values = self.agreement.values if fingerprinted else self._plan.shared
        unseen = {} if fingerprinted else dict.fromkeys(LOOKED_AT, "the start ended before this was read")
        known = self._reporter.report.versions
        sysctls = [name for name, _ in self._plan.sysctls]
        try:
            found, boot = self._loop.beside(
                lambda: (known or versions.read_local_versions(self._host), versions.read_boot(self._host, sysctls)),
                BOOT_SECONDS,
                "facts of this boot",
                shielded=True,
            )
        except OSError as error:
            found, boot = known, {}
            unseen.update(dict.fromkeys(("boot", "sysctl"), str(error)))
        return Facts({**dict(values), **node_values(self._plan)}, found, boot, unseen)
