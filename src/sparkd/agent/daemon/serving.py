"""Attends the engine from its readiness to its end: the head monitors it, the workers follow the head.

A plan that has proven itself in service is kept as known good.
"""

import time
from contextlib import suppress
from functools import partial
from typing import NoReturn

from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.hangs import group_is_idle, report_idle, watch_hang
from sparkd.agent.daemon.head_config import look_for_key
from sparkd.agent.daemon.kept_rank import keep_rank
from sparkd.agent.daemon.loading import begin_load, follow_load, make_gpu_monitor, make_load_monitor, mark_ready
from sparkd.agent.daemon.own_rank import follow_dockerd, may_have_lost_dockerd
from sparkd.agent.daemon.page_cache import PageCacheWatch
from sparkd.agent.daemon.smoke_test import start_smoke_test
from sparkd.agent.daemon.warming import KernelGrowth, WarmthFollower
from sparkd.agent.engine.activity import ActivityMeter
from sparkd.agent.engine.gpu_throttle import GpuThrottleMonitor, report_gpu
from sparkd.agent.engine.health_monitor import HealthMonitor
from sparkd.agent.engine.load_monitor import pace_seconds
from sparkd.agent.engine.rank import Running
from sparkd.base.cluster.endpoint import find_address, is_local, with_endpoint
from sparkd.base.host import network
from sparkd.base.lib.errors import EngineDeadError, StalledError
from sparkd.base.lib.http_client import HttpError
from sparkd.base.lib.main_loop import never
from sparkd.base.status.figures import ActivityReport, HealthReport
from sparkd.base.status.model import NodeReport, Phase
from sparkd.base.status.phases import answers_requests
from sparkd.base.vllm.api import Endpoint
from sparkd.base.vllm.counters import Counters

COUNTERS_SECONDS = 1.0
"""Limit for /metrics, which takes 5 ms."""
FOLLOW_SECONDS = 5.0
"""Longest pause between two looks at the engine's steps: changes of the head and of the rank wake the loop earlier."""
HUNG_SECONDS = 40.0
"""Silence of the head's agent to tolerate while its engine answers: its WatchdogSec=, 30 s, and its last hold, 5 s."""
DOCKER_AWAY_SECONDS = 0.2
"""Pause between two looks for the next dockerd, once the rank's own has gone: it comes 2 s later (seen)."""


def serve(agent: Agent, running: Running) -> NoReturn:
    """Serve on the head: probe the engine until it is given up. Raises EngineDeadError, StalledError (exit 15)."""
    serving_message = f"{agent.plan.served_name} on port {agent.plan.api_port}"
    gpu = make_gpu_monitor(agent)
    agent.reporter.update(engine=with_endpoint(agent.reporter.report.engine, agent.context, agent.host))
    agent.phase.enter(Phase.SERVING, serving_message)
    agent.loop.report_ready()  # only now: what follows `systemctl start` reads the phase
    agent.proving.begin(again=running.taken_over)
    watch_hang(agent, running, gpu)
    page_cache = PageCacheWatch(agent, agent.actions.drop_page_cache)
    endpoint, meter = agent.endpoint(running), ActivityMeter()
    report_smoke_test = start_smoke_test(agent, running)
    agent.monitor.prove_by(partial(makes_token, endpoint))

    def report_check(degraded: str, counters: Counters | None, figures: HealthReport) -> None:
        activity = meter.advance(time.monotonic(), counters)
        agent.reporter.update(activity=activity, health=figures)
        agent.launch_row.note_activity(activity)
        trouble = degraded or agent.monitor.trouble
        message = (trouble or serving_message) + _report_kernels(agent, running)
        agent.phase.enter(Phase.DEGRADED if trouble else Phase.SERVING, report_gpu(agent.reporter, message, gpu))
        if counters is not None or not degraded:  # an API that nobody reaches proves nothing
            agent.proving.tick()
        keep_rank(agent, running)
        running.follow_segments()
        if may_have_lost_dockerd(running):
            follow_dockerd(agent, running)  # only to note a rank that it has kept: an end is noticed without it
        report_smoke_test()
        page_cache.tick(_is_idle(activity))

    failure = HealthMonitor(
        loop=agent.loop,
        endpoint=endpoint,
        progress=lambda: running.log.progress,
        limits=agent.settings.supervise,
        completion_seconds=agent.settings.readiness.completion_timeout_seconds,
        on_check=report_check,
        unanswered=partial(agent.host.unanswered_requests, agent.plan.api_port),
        computes=gpu.computes if gpu is not None else never,
        compiles=partial(_is_compiling, agent, running, KernelGrowth(agent)),
        idle=partial(group_is_idle, agent, running),
        unreachable=partial(_describe_lost_address, agent),
        troubled=lambda: bool(agent.monitor.trouble),
    ).run()
    if isinstance(failure, EngineDeadError):
        raise failure
    root_cause = running.log.progress.root_cause(time.monotonic())
    reason = failure.reason + (f"; the engine said: {root_cause}" if root_cause else "")
    raise StalledError(reason, "sparkd starts it again")


def follow_head(agent: Agent, running: Running) -> NoReturn:
    """Serve on a worker: its rank has no endpoint, so its phase is the one that the head reports."""
    if not running.ready:
        begin_load(agent)
    agent.loop.extend_timeout(False)
    gpu, monitor = make_gpu_monitor(agent), make_load_monitor(agent, running)
    page_cache = PageCacheWatch(agent, agent.actions.drop_page_cache)
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
            page_cache.tick(_is_idle(report.activity))
        elif not running.ready:  # a rank that is ready waits: its head's agent is away, or has just come back
            report_gpu(agent.reporter, "", gpu)
            follow_load(agent, running, monitor)
        is_dockerd_away = may_have_lost_dockerd(running)
        agent.loop.wait(DOCKER_AWAY_SECONDS if is_dockerd_away else pause_seconds)
        if is_dockerd_away and follow_dockerd(agent, running):
            raise EngineDeadError("the engine is dead")
        if running.log.progress.worker_died:
            raise EngineDeadError("a process of the rank has died")


def _begin_service(agent: Agent, running: Running, gpu: GpuThrottleMonitor | None) -> None:
    """Enter service on a worker, and do again what could not be done."""
    if not running.ready:
        mark_ready(agent, running)
    keep_rank(agent, running)
    is_in_service = running.hang is not None  # since then it is watched for hangs
    if not is_in_service:
        agent.proving.begin(again=running.taken_over)
        watch_hang(agent, running, gpu)
        if agent.settings.supervise.agent_return_seconds and not is_local(agent.plan):
            head = Endpoint(find_address(agent.plan, agent.host)[0], agent.plan.api_port, agent.plan.served_name)
            agent.monitor.prove_by(partial(_does_answer, head), HUNG_SECONDS)


async def _does_answer(endpoint: Endpoint, seconds: float) -> bool:
    with suppress(HttpError):
        return await endpoint.health(seconds) == 200
    return False


def _is_idle(activity: ActivityReport | None) -> bool:
    return activity is not None and activity.running == 0 and not activity.waiting


def _report_head(agent: Agent, running: Running, name: str, report: NodeReport, gpu: GpuThrottleMonitor | None) -> None:
    """Enter the head's phase, with its trouble, unless this node has trouble of its own with another node."""
    is_degraded, trouble = report.phase is Phase.DEGRADED, agent.monitor.trouble
    phase = Phase.DEGRADED if is_degraded or trouble else Phase.SERVING
    if not trouble and is_degraded:
        trouble = f"it is degraded: {report.message}"
    elif not trouble and report.draining:
        trouble = f"it is {report.message}"
    message = f"rank {agent.context.rank} of the engine that {name} serves" + (f"; {trouble}" if trouble else "")
    agent.phase.enter(phase, report_gpu(agent.reporter, message + _report_kernels(agent, running), gpu))


def _describe_lost_address(agent: Agent) -> str:
    """Why the API can't be reached where its own address has gone, as with the LAN: the engine works, and stays."""
    look = partial(network.is_foreign, agent.host.files, agent.plan.api_host)
    is_lost = agent.look(look, COUNTERS_SECONDS, "looking at this node's addresses", False)
    reason = f"the head no longer has {agent.plan.api_host}, on which its API listens"
    remedy = "where DHCP gave another one: change args.host, then sudo systemctl restart sparkd-head"
    return f"{reason}; {remedy}" if is_lost else ""


async def makes_token(endpoint: Endpoint, seconds: float) -> bool:
    """Whether the engine works: a token comes, its counters move while the request waits in its queue, or it sleeps."""
    try:
        first_counters = await endpoint.counters(COUNTERS_SECONDS)
        with suppress(HttpError):
            if (first_counters is not None and first_counters.asleep) or (await endpoint.complete(seconds)).token:
                return True
        last_counters = await endpoint.counters(COUNTERS_SECONDS)
    except HttpError:
        return False
    return first_counters is not None and last_counters is not None and last_counters.work != first_counters.work


def _report_kernels(agent: Agent, running: Running) -> str:
    """Report kernels that are compiled inside requests. Returns a phrase for the message; empty where none are."""
    compilers = running.compilers.count
    agent.reporter.update_engine(compilers=compilers, kernels_compiled=running.log.progress.compiled)
    return "; a kernel is being compiled, and requests may wait for it" if compilers else ""


def _is_compiling(agent: Agent, running: Running, growth: KernelGrowth) -> bool:
    """Whether a compiler of any rank runs, or new kernels are in this node's caches."""
    peers, grew = agent.monitor.statuses(), growth.detect()
    return grew or running.compilers.count > 0 or any(peer.report and peer.report.engine.compilers for peer in peers)
