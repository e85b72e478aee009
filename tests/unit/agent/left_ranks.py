"""A rank that serves, whose agent has ended."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tree import Tree
from tests.unit.rank_records import rank_record
from tests.unit.verdicts import present

from sparkd.agent.daemon.kept_rank import FILE as KEPT
from sparkd.agent.daemon.kept_rank import KeptRank
from sparkd.base.host import Host
from sparkd.base.state.rank_record import GUARD, RANK_FILE, RankStage, read_rank

GUARD_PID = 4100


def guard_rank(tree: Tree) -> None:
    """As with a guard, which would end the rank where no agent comes back."""
    record = present(read_rank(Host(tree.root)).record)
    tree.process(GUARD_PID, "sparkd-guard")
    tree.file(GUARD, f"0 {record.pid} {record.start_time} 77 88 {GUARD_PID} 100")


def leave_rank(tree: Tree, pid: int, kept: KeptRank) -> None:
    """As an agent that ended while process `pid` served."""
    began, container = int(Path(f"/proc/{pid}/stat").read_text().split()[21]), "c" * 64
    tree.file("/proc/sys/kernel/random/boot_id", "b1\n")
    tree.file("/proc/uptime", "5000.0 1.0\n")
    tree.process(pid, "sleep", start_time=began, cgroup=f"0::/system.slice/docker-{container}.scope")
    served = {"boot_id": "b1", "stage": RankStage.READY, "pid": pid, "start_time": began}
    tree.file(RANK_FILE.path, RANK_FILE.encode(rank_record(**served, container_id=container)))
    tree.file(KEPT.path, KEPT.encode(kept))
    guard_rank(tree)


@contextmanager
def left_rank(tree: Tree, kept: KeptRank) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        leave_rank(tree, process.pid, kept)
        yield process
        process.kill()
