"""Findings with fixes of each kind."""

from sparkd.agent.preflight.check import Finding, Level, Verdict
from sparkd.agent.preflight.fixes import DropPageCache, EndProcess, Fix, RemoveContainer, UnlinkSegment

END = EndProcess(10, 100, "VLLM::Worker_TP", frees_bytes=60)
REMOVE = RemoveContainer("0123456789abcdef" * 4, "sparkd-rank0", frees_bytes=30)
UNLINK = UnlinkSegment("/dev/shm/psm_00000001", 1, 2, frees_bytes=10)
DROP = DropPageCache()
ALL = ("end-process", "remove-container", "unlink-segment", "drop-page-cache", "compact-memory")


def finding(check_id: str, level: Level, *fixes: Fix, clears: bool = False, shortage: int = 0) -> Finding:
    return Finding(
        check_id, Verdict(level, f"{check_id} said", "do it", fixes, clears=clears, shortage_bytes=shortage), {}, 0.01
    )


STRAY = finding("stray-workers", Level.BLOCK, END, REMOVE, clears=True)
CACHE = finding("page-cache", Level.WARN, DROP)
GOOD = finding("script-paths", Level.OK)
GHOST = finding("script-paths", Level.BLOCK)
