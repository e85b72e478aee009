"""Attends the engine from load to end: the head makes it ready and monitors it, the workers follow the head.

A plan that has proven itself in service is kept as known good.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import NoReturn

from msgspec.structs import replace

from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.hangs import group_is_idle, report_idle, watch_hang
from sparkd.agent.daemon.head_config import look_for_key
from sparkd.agent.daemon.history import expected_load
from sparkd.agent.daemon.own_rank import is_alarmed, is_ended_by_docker
from sparkd.agent.daemon.page_cache import page_cache_watch
from sparkd.agent.daemon.proving import start_smoke_test
from sparkd.agent.daemon.taking_over import keep_rank
from sparkd.agent.daemon.warming import KernelGrowth, WarmthFollower, make_warm, note_warmth
from sparkd.agent.engine import readiness
from sparkd.agent.engine.activity import THROTTLE_HINT, THROTTLE_ID, ActivityMeter, GpuThrottleMonitor
from sparkd.agent.engine.health import HealthMonitor
from sparkd.agent.engine.load_monitor import LoadMonitor, pace_seconds
from sparkd.agent.engine.load_progress import LoadProgress
from sparkd.agent.engine.rank import Running
from sparkd.agent.engine.readiness import ReadinessStage
from sparkd.base.cluster.membership import with_endpoint
from sparkd.base.lib.errors import EngineDeadError, StalledError
from sparkd.base.lib.http_client import HttpError
from sparkd.base.status.figures import ActivityReport, GpuReport
from sparkd.base.status.model import FindingReport, NodeReport, Phase, describe_time_left, format_duration, utc_now
from sparkd.base.status.phases import answers_requests
from sparkd.base.vllm.api import Counters, Endpoint

COUNTERS_SECONDS = 1.0
"""Limit for /metrics, which takes 5 ms."""
FOLLOW_SECONDS = 5.0
"""Longest pause between two looks at the engine's steps: changes of the head and of the rank wake the loop earlier."""
HUNG_SECONDS = 40.0
"""Silence of the head's agent to tolerate while its engine answers: its WatchdogSec=, 30 s, and its last hold, 5 s."""
DOCKER_AWAY_SECONDS = 0.2
"""Pause between two looks for the next dockerd, once the rank's own has gone: it comes 2 s later (seen)."""


def make_ready(agent: Agent, running: Running) -> None:
    """Follow the load until the first completion, then report to systemd."""
    _begin_load(agent)
    monitor, gpu = _make_load_monitor(agent, running), _make_gpu_monitor(agent)

    def show_waiting(awaited: str) -> LoadProgress:
        with_gpu(agent, "", gpu)
        return _follow_load(agent, running, monitor, awaited)

    def show(stage: ReadinessStage) -> LoadProgress:
        return show_waiting(stage.value if stage is not ReadinessStage.HTTP else "")

    settings, is_late = agent.settings.readiness, False

    def works() -> bool:
        """Whether a rank works, which excuses the passed deadline: the others may only wait for it."""
        nonlocal is_late
        is_working = monitor.works or any(peer.report and peer.report.engine.works for peer in agent.monitor.statuses())
        if is_working and not is_late:
            is_late = True
            reason = f"not ready within {settings.timeout_seconds} s, and the load still works: it may take longer"
            hint = f"nothing is to be done; to give it up: sudo systemctl stop sparkd-{agent.context.role}"
            agent.events.warning("engine.readiness.late", reason=reason, hint=hint)
        return is_working

    endpoint, completion_seconds = agent.endpoint(running), settings.completion_timeout_seconds
    readiness.await_ready(agent.loop, endpoint, settings.timeout_seconds, completion_seconds, show, works)
    running.mark_loaded()

    def answer_again(seconds: float) -> None:
        hint = 'readiness.warm = "never" starts it without that'
        readiness.await_ready(agent.loop, endpoint, seconds, completion_seconds, show, lambda: False, hint)

    make_warm(agent, running, lambda: monitor.works, show_waiting, answer_again)
    _mark_ready(agent, running)
    agent.loop.report_ready()
    agent.events.info("engine.readiness.reached", seconds=running.seconds)
    agent.run_aside("prune", partial(_prune_caches, agent, running.rank.image_id))


def _prune_caches(agent: Agent, image_id: str) -> None:
    with suppress(OSError):
        for removal in agent.actions.prune_caches(image_id):
            if removal.error:
                agent.events.warning("cache.removal.failed", path=removal.path, reason=removal.error)
            else:
                agent.events.info("cache.folder.removed", path=removal.path)


def serve(agent: Agent, running: Running) -> NoReturn:
    served, gpu = f"{agent.plan.served_name} on port {agent.plan.api_port}", _make_gpu_monitor(agent)
    agent.reporter.update(engine=with_endpoint(agent.reporter.report.engine, agent.context, agent.host))
    agent.phase.enter(Phase.SERVING, served)
    agent.proving.begin(again=running.taken_over)
    watch_hang(agent, running, gpu)
    watch_page_cache = page_cache_watch(agent, agent.actions.drop_page_cache)
    endpoint, meter = agent.endpoint(running), ActivityMeter()
    report_smoke_test = start_smoke_test(agent, running) if not running.taken_over else lambda: None
    agent.monitor.prove_by(partial(_makes_token, endpoint))

    def on_check(trouble: str, counters: Counters | None) -> None:
        activity = meter.advance(time.monotonic(), counters)
        agent.reporter.update(activity=activity, health=monitor.figures)
        agent.launch_row.note_activity(activity)
        degraded = trouble or agent.monitor.trouble
        message = (degraded or served) + _report_kernels(agent, running)
        agent.phase.enter(Phase.DEGRADED if degraded else Phase.SERVING, with_gpu(agent, message, gpu))
        agent.proving.tick()
        running.follow_segments()
        if is_alarmed(running):
            is_ended_by_docker(agent, running)  # only to note a dockerd that keeps the rank: its end is noticed anyhow
        report_smoke_test()
        watch_page_cache(_is_idle(activity))

    monitor = HealthMonitor(
        agent.loop,
        endpoint,
        lambda: running.log.progress,
        agent.settings.supervise,
        agent.settings.readiness.completion_timeout_seconds,
        on_check,
        partial(agent.host.unanswered_requests, agent.plan.api_port),
        gpu.computes if gpu is not None else bool,
        partial(_is_compiling, agent, running, KernelGrowth(agent)),
        partial(group_is_idle, agent, running),
        lambda: bool(agent.monitor.trouble),
    )
    failure = monitor.run()
    if isinstance(failure, EngineDeadError):
        raise failure
    words = running.log.progress.root_cause(time.monotonic())
    raise StalledError(failure.reason + (f"; the engine said: {words}" if words else ""), "sparkd starts it again")


def follow_head(agent: Agent, running: Running) -> NoReturn:
    """Serve on a worker: its rank has no endpoint, so its phase is the one that the head reports."""
    if not running.ready:
        _begin_load(agent)
    agent.loop.extend_timeout(False)
    gpu, monitor = _make_gpu_monitor(agent), _make_load_monitor(agent, running)
    watch_page_cache = page_cache_watch(agent, agent.actions.drop_page_cache)
    warmth = WarmthFollower(agent)
    pause_seconds = min(FOLLOW_SECONDS, pace_seconds(monitor.limit_seconds) or FOLLOW_SECONDS)
    while True:
        head = agent.monitor.check()[0]
        report = head.report
        look_for_key(agent)
        if report is not None:
            warmth.follow(report.engine, running)
        if report is not None and answers_requests(report):
            _begin_service(agent, running, gpu)
            _report_head(agent, running, head.name, report, gpu)
            report_idle(agent, running, report)
            agent.proving.tick()
            running.follow_segments()
            watch_page_cache(_is_idle(report.activity))
        elif not running.ready:  # a rank that is ready waits: its head's agent is away, or has just come back
            with_gpu(agent, "", gpu)
            _follow_load(agent, running, monitor)
        is_docker_alarmed = is_alarmed(running)
        agent.loop.wait(DOCKER_AWAY_SECONDS if is_docker_alarmed else pause_seconds)
        if is_docker_alarmed and is_ended_by_docker(agent, running):
            raise EngineDeadError("the engine is dead")
        if running.log.progress.worker_died:
            raise EngineDeadError("a process of the rank has died")


def _begin_service(agent: Agent, running: Running, gpu: GpuThrottleMonitor | None) -> None:
    """Enter service on a worker, once."""
    if not running.ready:
        _mark_ready(agent, running)
        keep_rank(agent, running)
    if running.hang is None:
        agent.proving.begin(again=running.taken_over)
        watch_hang(agent, running, gpu)
        if agent.settings.supervise.agent_return_seconds:
            head = Endpoint(agent.plan.node.head_address, agent.plan.api_port, agent.plan.served_name)
            agent.monitor.prove_by(partial(_does_answer, head), HUNG_SECONDS)


async def _does_answer(endpoint: Endpoint, seconds: float) -> bool:
    with suppress(HttpError):
        return await endpoint.health(seconds) == 200
    return False


def _is_idle(activity: ActivityReport | None) -> bool:
    return activity is not None and activity.running == 0 and not activity.waiting


def _report_head(agent: Agent, running: Running, name: str, report: NodeReport, gpu: GpuThrottleMonitor | None) -> None:
    served = f"rank {agent.context.rank} of the engine that {name} serves"
    is_degraded, monitor_trouble = report.phase is Phase.DEGRADED, agent.monitor.trouble
    trouble = f"; it is {'degraded: ' * is_degraded}{report.message}" if is_degraded or report.draining else ""
    trouble = f"; {monitor_trouble}" if monitor_trouble else trouble
    phase = Phase.DEGRADED if is_degraded or monitor_trouble else Phase.SERVING
    agent.phase.enter(phase, with_gpu(agent, served + trouble + _report_kernels(agent, running), gpu))


def _make_gpu_monitor(agent: Agent) -> GpuThrottleMonitor | None:
    return GpuThrottleMonitor(agent.loop.start, agent.events) if agent.plan.container.gpus == "all" else None


def with_gpu(agent: Agent, message: str, gpu: GpuThrottleMonitor | None) -> str:
    """Report the GPU. Returns the message, with what slows the GPU, which still serves: a finding, not a phase."""
    if gpu is None:
        return message
    throttling = gpu.check()
    if (sample := gpu.first) is not None:
        watts = None if sample.power_watts is None else round(sample.power_watts)
        figures = GpuReport(sample.name, sample.sm_mhz, watts, sample.temperature_celsius, sample.utilization_percent)
        agent.reporter.update(gpu=figures)
    agent.reporter.replace_finding(
        THROTTLE_ID, FindingReport(THROTTLE_ID, "warn", throttling, THROTTLE_HINT) if throttling else None
    )
    return f"{message}; {throttling}: {THROTTLE_HINT}" if throttling else message


async def _makes_token(endpoint: Endpoint, seconds: float) -> bool:
    """Whether the engine works: a token comes, or its counters move while the request waits in its queue."""
    try:
        first_counters = await endpoint.counters(COUNTERS_SECONDS)
        with suppress(HttpError):
            if (await endpoint.complete(seconds)).token:
                return True
        last_counters = await endpoint.counters(COUNTERS_SECONDS)
    except HttpError:
        return False
    return first_counters is not None and last_counters is not None and last_counters.work != first_counters.work


def _make_load_monitor(agent: Agent, running: Running) -> LoadMonitor:
    gpus, limit_seconds = agent.plan.container.gpus == "all", agent.settings.readiness.stall_seconds
    return LoadMonitor(agent.host, running.rank.pid, gpus, limit_seconds, agent.loop.start)


def _begin_load(agent: Agent) -> None:
    expected_seconds, expected_by = expected_load(agent)
    engine = agent.reporter.report.engine
    engine = replace(engine, started=utc_now(), expected_seconds=expected_seconds, expected_by=expected_by)
    agent.reporter.update(engine=engine)
    note_warmth(agent)
    agent.phase.enter(Phase.LOADING)


def _mark_ready(agent: Agent, running: Running) -> None:
    running.mark_ready()
    agent.launch_row.note_ready(running)
    agent.reporter.update(engine=replace(agent.reporter.report.engine, idle_seconds=None, works=False))
    running.note_segments()  # last, since this may be interrupted by what ends the run


def _follow_load(agent: Agent, running: Running, monitor: LoadMonitor, waiting_for: str = "") -> LoadProgress:
    """Report the load. Raises NotReadyError (exit 12) where it has stood still for too long."""
    progress = running.log.progress
    running.note_segments()  # so that a stop during the load can clear them
    left_seconds = progress.seconds_left(time.monotonic())
    engine = replace(
        agent.reporter.report.engine,
        phase=progress.step,
        progress=round(progress.done / progress.total, 3) if progress.total else None,
        seconds_left=round(left_seconds) if left_seconds is not None else None,
        kv_cache_tokens=progress.kv_cache_tokens,
        compilers=running.compiler_count,
        kernels_compiled=progress.compiled,
    )
    step = progress.step + (f" {progress.done}/{progress.total}" if progress.total else "")
    rank = f"rank {agent.context.rank} on {agent.reporter.report.node}, {step},"
    load = monitor.check(rank, (step, waiting_for), _list_peers_idle_seconds(agent))
    engine = replace(engine, idle_seconds=round(load.idle_seconds) if load else None, works=monitor.works)
    time_left = describe_time_left(engine, datetime.now(UTC)) if running.loaded_seconds is None else ""
    message = (
        step
        + (f", this step about {format_duration(left_seconds)} more" if left_seconds else "")
        + (f"; the whole load: {time_left}" if time_left else "")
        + (f", KV cache {progress.kv_cache_tokens:,} tokens" if progress.kv_cache_tokens else "")
        + _describe_compilers(running)
        + (f"; waiting for {waiting_for}" if waiting_for else "")
        + (f"; nothing has moved for {load.still_seconds:.0f} s" if load and load.still_seconds else "")
    )
    agent.reporter.update(engine=engine, message=message, memory=agent.phase.memory())
    return progress


def _report_kernels(agent: Agent, running: Running) -> str:
    """Report kernels that are compiled inside requests. Returns a phrase for the message; empty where none are."""
    compilers, compiled = running.compiler_count, running.log.progress.compiled
    engine = replace(agent.reporter.report.engine, compilers=compilers, kernels_compiled=compiled)
    agent.reporter.update(engine=engine)
    return "; a kernel is being compiled, and requests may wait for it" if compilers else ""


def _is_compiling(agent: Agent, running: Running, growth: KernelGrowth) -> bool:
    """Whether a compiler of any rank runs, or new kernels are in this node's caches."""
    peers, grew = agent.monitor.statuses(), growth.detect()
    return grew or running.compiler_count > 0 or any(peer.report and peer.report.engine.compilers for peer in peers)


def _describe_compilers(running: Running) -> str:
    if running.compilers is None or not running.compilers.count:
        return ""
    count, held_count, (done, steps) = running.compilers.count, len(running.compilers.held), running.objects
    progress = f", {done} of {steps}" if steps else ""
    waiting = f", {held_count} more held back until there is memory" if held_count else ""
    return f"; compiling kernels{progress}, {max(1, count - held_count)} at a time{waiting}"


def _list_peers_idle_seconds(agent: Agent) -> tuple[float | None, ...]:
    """Idle seconds of each other node; None for one that works, or does not load."""
    reports = (peer.report for peer in agent.monitor.statuses())
    return tuple(report.engine.idle_seconds if report and report.phase is Phase.LOADING else None for report in reports)
