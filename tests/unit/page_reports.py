"""Reports of pairs of nodes for the page: one that serves, one that loads, a broken, a recorded, and a hostile one."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Raw
from msgspec.structs import replace

from sparkd.agent.status.page_history import Disk, PageHistory
from sparkd.base.host.journal import Line
from sparkd.base.state.facts import Facts
from sparkd.base.state.history import Bench, Launch, Row, Smoke
from sparkd.base.state.launch_history import End
from sparkd.base.status.figures import ActivityReport, EngineReport, GpuReport, HealthReport
from sparkd.base.status.model import (
    Contact,
    FindingReport,
    MemoryReport,
    NodeReport,
    PeerStatus,
    Phase,
    RestartReport,
    parse,
)

GIB = 1 << 30
VERSIONS = {"sparkd": "0.2.0", "driver": "580.95.05", "kernel": "6.14.0-1013-nvidia", "docker": "28.3.3"}
USED = (
    34,
    34,
    35,
    35,
    35,
    36,
    38,
    42,
    47,
    53,
    58,
    63,
    67,
    70,
    72,
    74,
    75,
    76,
    77,
    78,
    *(79,) * 16,
    *(80,) * 20,
    82,
    81,
    80,
    80,
)


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def pair(head: NodeReport, worker: NodeReport, contact: Contact = Contact.ANSWERS, reason: str = "") -> NodeReport:
    return replace(head, peers=(PeerStatus("10.0.0.2", 1, contact, ago(40), worker, reason),))


def node(rank: int, phase: Phase, seconds: float, **changes: object) -> NodeReport:
    first = NodeReport(
        node=f"spark{rank + 1}",
        role="worker" if rank else "head",
        rank=rank,
        phase=phase,
        since=ago(seconds),
        epoch="e" * 32,
        incarnation="i" * 32,
        version="0.2.0",
        address=f"10.0.0.{rank + 1}",
        plan_digest="3f9c1d20a7be" + "0" * 52,
        transport="rdma",
        versions=VERSIONS,
        memory=MemoryReport(round(119.7 * GIB), round((22.4 + rank) * GIB), USED, 512 << 20, "watching"),
        gpu=GpuReport("NVIDIA GB10", 2410 + 8 * rank, 61 - rank, 66 + rank, 94 - rank),
    )
    return replace(first, **changes)


def serving() -> NodeReport:
    activity = ActivityReport(6, 1, 1840.0, 96.4, 0.41, 0.62, 0.71, 0.83)
    head = node(
        0,
        Phase.SERVING,
        6 * 3600 + 2400,
        message="deepseek-v4-flash on port 8000",
        engine=EngineReport(
            container_id="c" * 64,
            kv_cache_tokens=524288,
            url="http://192.168.1.20:8000/v1",
            model="deepseek-v4-flash",
            keyed=True,
        ),
        activity=activity,
        health=HealthReport(0.0, 0.412, time.time() - 40, 8, 1),
        smoke_passed=True,
        launches=12,
        ends={"stop-requested": 8, "peer-lost": 2, "memory-guard": 1},
        phase_seconds={"preflight": 6.5, "loading": 431.0},
        findings=(FindingReport("page-cache", "warn", "4 GiB of page cache", ""),),
        restarts=(RestartReport("peer-lost", 1, ago(7 * 3600), "node spark2 (10.0.0.2) was lost: silent for 20 s"),),
        last_cause="node spark2 (10.0.0.2) was lost: silent for 20 s (exit 14)",
    )
    return pair(head, node(1, Phase.SERVING, 6 * 3600 + 2400, message="rank 1 of deepseek-v4-flash"))


def loading() -> NodeReport:
    engine = EngineReport(
        container_id="c" * 64,
        phase="loading weights",
        progress=0.43,
        seconds_left=151,
        started=ago(130),
        expected_seconds=520,
        expected_by="last load",
    )
    message = "loading weights 20/46, this step about 2 min more; the whole load: about 6 min left (last load)"
    used = MemoryReport(round(119.7 * GIB), round(70.1 * GIB), USED[:14])
    head = node(0, Phase.LOADING, 128, message=message, engine=engine, memory=used, gpu=None)
    return pair(head, node(1, Phase.LOADING, 129, engine=replace(engine, progress=0.39), memory=used, gpu=None))


def broken() -> NodeReport:
    head = node(0, Phase.AWAITING_PEERS, 610, message="waiting for rank 1: blocked", gpu=None)
    finding = FindingReport(
        "unified-memory",
        "block",
        "62.0 GiB available, 96.0 GiB needed; pid 4711 (python3) of alice has 41.2 GiB",
        "stop it if it may go: sudo sparkd preflight --fix 4711",
    )
    worker = node(
        1,
        Phase.BLOCKED,
        605,
        message="unified-memory: 62.0 GiB available, 96.0 GiB needed",
        findings=(finding,),
        gpu=None,
        last_cause="the memory guard killed the engine: 480 MiB available (exit 16)",
        last_hint="lower gpu_memory_utilization",
    )
    return pair(head, worker)


def booted() -> NodeReport:
    """Written by the head of a pair that was booted in the bed, with an engine on the CPU; the kernel is another."""
    report = parse(Path(__file__).with_name("booted_pair.json").read_text())
    assert report is not None
    return report


EVIL = (
    "</main></script><script>window.evil=1</script><img src=x onerror='evil=1'>\"' onload=\"window.evil=1 \ud800\u202e"
)


def hostile() -> NodeReport:
    report = node(
        0,
        Phase.DEGRADED,
        5,
        node=EVIL,
        role=EVIL,
        version=EVIL,
        address=EVIL,
        since=EVIL,
        message=EVIL,
        last_cause=EVIL,
        last_hint=EVIL,
        plan_digest=EVIL,
        transport=EVIL,
        versions={EVIL: EVIL},
        findings=(FindingReport(EVIL, EVIL, EVIL, EVIL), FindingReport(EVIL, "block", EVIL * 20, "x" * 900)),
        engine=EngineReport(EVIL, EVIL, EVIL, float("nan"), -1e300, 1 << 62, -1, EVIL, url=EVIL, model=EVIL),
        memory=MemoryReport(0, -5, (-(1 << 60), 1 << 60, 0) * 40, -1, EVIL, -(1 << 60)),
        health=HealthReport(float("nan"), float("inf"), -1e300, -1, 1 << 62),
        launches=-1,
        ends={EVIL: 1 << 62},
        phase_seconds={EVIL: float("inf"), "degraded": -1.0},
        cause=EVIL,
        activity=ActivityReport(-1, 1 << 62, float("nan"), float("inf"), -4.0, 9e99, float("nan"), float("inf")),
        gpu=GpuReport(EVIL, -1, 1 << 62, -300, 1 << 60),
        restarts=(RestartReport(EVIL, 1 << 62, EVIL, EVIL),),
    )
    peers = (
        PeerStatus(EVIL, 1, Contact.ANSWERS, EVIL, report, EVIL),
        PeerStatus(EVIL, 2, Contact.SILENT, EVIL, report, EVIL),
    )
    return replace(report, peers=peers)


def row(at: float, load: float | None, end: float | None, cause: str = "") -> Launch:
    """A launch, by seconds before now."""
    ended = None if end is None else End("it ended", at=ago(end), cause=cause)
    return Launch(f"l{at}", ago(at), 0, "p", "deepseek-v4-flash", Facts({}, {}, {}), load_seconds=load, end=ended)


def line(seconds: float, text: str) -> Line:
    return Line(round((time.time() - seconds) * 1e6), "i=1", 4, text)


def disk() -> Disk:
    levels = (
        b'{"levels":[{"concurrency":1,"output_tokens_per_second":{"median":38.2},"first_token_seconds":{"median":0.41}}'
    )
    levels += b',{"concurrency":4,"output_tokens_per_second":{"median":96.4},'
    levels += b'"first_token_seconds":{"median":0.62}},{"concurrency":8}]}'
    rows: tuple[Row, ...] = (
        row(20 * 3600, 470, 7 * 3600, "peer-lost"),
        row(7 * 3600 - 60, 520, None),
        Smoke("s", ago(6.8 * 3600), "l", "deepseek-v4-flash", 0),
        Bench("b", ago(5.5 * 3600), "l", "deepseek-v4-flash", Raw(levels)),
    )
    lost = line(7 * 3600, 'agent.run.failed reason="node spark2 (10.0.0.2) was lost: silent for 20 s" exit=14')
    return Disk(rows, (line(900, 'gpu.throttle.detected reason="the GPU is slow: 702 MHz"'), lost))


def kept(report: NodeReport, found: Disk | None = None) -> PageHistory:
    """An hour in which the figures rose and fell, with a gap of some minutes."""
    made = PageHistory(lambda: disk() if found is None else found)
    for sample in range(366):
        wave = 0.5 + (sample * 37 % 100) / 200 + sample / 720
        activity = report.activity and replace(
            report.activity,
            running=int(6 * wave),
            output_tokens_per_second=report.activity.output_tokens_per_second * wave,
            first_token_seconds=None if report.activity.first_token_seconds is None else 0.83 / wave,
        )
        free = report.memory and replace(report.memory, available_bytes=int(report.memory.available_bytes * wave))
        made.sample(replace(report, activity=None if 200 < sample < 240 else activity, memory=free))
    return made


def unreachable() -> NodeReport:
    """A head that serves, and whose worker is silent."""
    head = replace(serving(), phase=Phase.DEGRADED, message="node spark2 (10.0.0.2) is silent for 9 s", last_hint="old")
    return replace(head, peers=(replace(head.peers[0], contact=Contact.SILENT, said="no answer in 5 s"),))


def idle() -> NodeReport:
    """One node that has just begun."""
    return replace(node(0, Phase.PREFLIGHT, 4, address="", transport="", gpu=None, memory=None), message="memory")
