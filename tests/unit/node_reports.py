"""The reports of two nodes, as a table, a page of metrics and an HTTP answer show them."""

import math
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from sparkd.base.status.figures import ActivityReport, EngineReport, GpuReport
from sparkd.base.status.model import Contact, FindingReport, MemoryReport, NodeReport, PeerStatus, Phase

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
GIB = 1 << 30


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


ALONE = NodeReport(
    node="spark1",
    role="head",
    rank=0,
    phase=Phase.SERVING,
    since=ago(200),
    epoch="e",
    incarnation="e",
    version="0.1.0",
    plan_digest="d" * 64,
    message="tiny on port 8000",
    last_cause="the engine ended (exit 13)",
    findings=(
        FindingReport("page-cache", "warn", "4 GiB of page cache", ""),
        FindingReport("stray-workers", "ok", "none", ""),
    ),
    engine=EngineReport(container_id="c" * 64),
    memory=MemoryReport(total_bytes=120 * GIB, available_bytes=round(11.5 * GIB)),
)
WORKER = replace(
    ALONE,
    node="spark2",
    role="worker",
    rank=1,
    address="10.0.0.2",
    phase=Phase.LOADING,
    since=ago(12),
    message="loading weights 3/7",
    last_cause="",
    findings=(FindingReport("memory", "block", "9 GiB available, 96 GiB needed", "stop other work"),),
    engine=EngineReport(phase="loading weights", progress=0.43),
)
PEER = PeerStatus("10.0.0.2", 1, Contact.ANSWERS, ago(60), WORKER)
HEAD_REPORT = replace(ALONE, address="10.0.0.1", peers=(PEER,))

BUSY = ActivityReport(3, 1, 310.0, 42.12, 0.41, 0.87, 0.71)
GPU = GpuReport("NVIDIA GB10", 2405, 61, 71, 96)
USED = MemoryReport(128 << 30, 32 << 30, (50,) * 30 + (75,) * 30)
BIG = 10**400
"""More than any figure may be."""
WILD = ActivityReport(BIG, -BIG, math.inf, -math.inf, math.nan, math.nan, -7.0)
LOADING = EngineReport(
    phase="loading weights", progress=0.31, started=ago(120), expected_seconds=480.0, expected_by="last load"
)
