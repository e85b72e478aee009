"""What is reported after a round of preflight."""

from sparkd.agent.daemon import kernel_log
from sparkd.agent.daemon.admission import merge_round
from sparkd.base.status.model import FindingReport


def finding(name: str) -> FindingReport:
    return FindingReport(name, "warn", "reason", "hint", "inspect")


def test_a_finding_of_the_kernels_log_stays_and_those_of_the_round_before_go() -> None:
    kernel, use, ports, swap = map(finding, (kernel_log.ID, "use", "ports", "swap"))
    assert merge_round((use, ports, kernel), (use, swap)) == (kernel, use, swap)
