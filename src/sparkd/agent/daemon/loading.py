"""Attends the engine from its launch until it is ready: the head by the first completion, a worker by its log."""

import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from msgspec.structs import replace

from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.history import expected_load
from sparkd.agent.daemon.warming import make_warm, note_warmth
from sparkd.agent.engine import readiness
from sparkd.agent.engine.gpu_throttle import GpuThrottleMonitor, report_gpu
from sparkd.agent.engine.load_monitor import LoadMonitor
from sparkd.agent.engine.load_progress import LoadProgress
from sparkd.agent.engine.rank import Running
from sparkd.agent.engine.readiness import ReadinessStage
from sparkd.base.lib.times import format_duration, utc_now
from sparkd.base.status.figure_texts import describe_time_left
from sparkd.base.status.model import Phase


def make_ready(agent: Agent, running: Running) -> None:
    """Follow the load until the first completion, and until the kernels are warm."""
    begin_load(agent)
    monitor, gpu = make_load_monitor(agent, running), make_gpu_monitor(agent)

    def show_waiting(awaited: str) -> LoadProgress:
        report_gpu(agent.reporter, "", gpu)
        return follow_load(agent, running, monitor, awaited)

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
    mark_ready(agent, running)
    agent.events.info("engine.readiness.reached", seconds=running.seconds)
    agent.run_aside("prune", partial(_prune_caches, agent, running.rank.image_id))


def _prune_caches(agent: Agent, image_id: str) -> None:
    with suppress(OSError):
        for path, error in agent.actions.prune_caches(image_id):
            if error:
                agent.events.warning("cache.removal.failed", path=path, reason=error)
            else:
                agent.events.info("cache.folder.removed", path=path)


def make_load_monitor(agent: Agent, running: Running) -> LoadMonitor:
    gpus, limit_seconds = agent.plan.container.gpus == "all", agent.settings.readiness.stall_seconds
    return LoadMonitor(agent.host, running.rank.pid, gpus, limit_seconds, agent.loop.start)


def make_gpu_monitor(agent: Agent) -> GpuThrottleMonitor | None:
    return GpuThrottleMonitor(agent.loop.start, agent.events) if agent.plan.container.gpus == "all" else None


def begin_load(agent: Agent) -> None:
    expected_seconds, expected_by = expected_load(agent)
    agent.reporter.update_engine(started=utc_now(), expected_seconds=expected_seconds, expected_by=expected_by)
    note_warmth(agent)
    agent.phase.enter(Phase.LOADING)


def mark_ready(agent: Agent, running: Running) -> None:
    running.mark_ready()
    agent.launch_row.note_ready(running)
    agent.reporter.update_engine(idle_seconds=None, works=False)
    running.note_segments()  # last, since this may be interrupted by what ends the run


def follow_load(agent: Agent, running: Running, monitor: LoadMonitor, waiting_for: str = "") -> LoadProgress:
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
        compilers=running.compilers.count,
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
        + _describe_compilers(agent, running)
        + (f"; waiting for {waiting_for}" if waiting_for else "")
        + (f"; nothing has moved for {load.still_seconds:.0f} s" if load and load.still_seconds else "")
    )
    agent.reporter.update(engine=engine, message=message, memory=agent.phase.memory())
    return progress


def _describe_compilers(agent: Agent, running: Running) -> str:
    if not (count := running.compilers.count):
        return ""
    done, steps = running.count_objects(cache.name for cache in agent.plan.caches)
    held_count = len(running.compilers.held)
    progress = f", {done} of {steps}" if steps else ""
    waiting = f", {held_count} more held back until there is memory" if held_count else ""
    return f"; compiling kernels{progress}, {max(1, count - held_count)} at a time{waiting}"


def _list_peers_idle_seconds(agent: Agent) -> tuple[float | None, ...]:
    """Idle seconds of each other node; None for one that works, or does not load."""
    reports = (peer.report for peer in agent.monitor.statuses())
    return tuple(report.engine.idle_seconds if report and report.phase is Phase.LOADING else None for report in reports)
