"""The steps of a start, in the order of `run`: from preflight to a running container."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from sparkd.actions.processes import Rank
from sparkd.agent import hooks
from sparkd.agent.deps import Deps
from sparkd.agent.head_config import check_head
from sparkd.agent.history import begin_launch
from sparkd.agent.page_cache import lower_readahead, release_page_cache
from sparkd.agent.switching import raise_if_unwritten
from sparkd.cluster import auth
from sparkd.cluster.membership import check_inputs, plan_by_tcp
from sparkd.engine.log_lines import LogForwarder
from sparkd.engine.log_reader import LogReader
from sparkd.engine.memory_guard.guard import HINT as MEMORY_HINT
from sparkd.engine.memory_guard.guard import MemoryGuard
from sparkd.engine.rank import Running, container_labels
from sparkd.host import docker, infiniband, meminfo, versions
from sparkd.lib.errors import BlockedError, ExitCode, LaunchError, NeedsPersonError, OutdatedPlanError
from sparkd.lib.main_loop import never
from sparkd.plan import agreement, script
from sparkd.plan.agreement import PLAN_PATH, Agreement
from sparkd.plan.fingerprint import fingerprint as read_fingerprint
from sparkd.preflight.check import Finding
from sparkd.preflight.checks.rdma import BY_RDMA, BY_TCP, Rdma
from sparkd.preflight.gate import THREADS_HINT, Gate, GateIO
from sparkd.preflight.hooks import list_hooks
from sparkd.preflight.inputs import CheckInputs
from sparkd.preflight.registry import build_checks
from sparkd.state.launch_history import BACKOFF_SECONDS
from sparkd.state.rank_record import RankRecord
from sparkd.status.model import FindingReport, Phase

DOCKER_POLL_SECONDS = 0.5
DOCKER_SECONDS = 10.0
FINGERPRINT_SECONDS = 120.0
"""For docker, and for the model's some 200 files, which may be on a file server."""
DEVICES_SECONDS = 10.0


def preflight(agent: Deps) -> bool:
    """Check, fix what may be fixed, check again. Returns whether docker was running.

    Raises BlockedError (10) or NeedsPersonError (17).
    """
    docker_was_up = docker.running(agent.host)
    context = agent.context

    def wait(seconds: float, message: str) -> None:
        agent.reporter.update(message=message)
        agent.loop.wait_until(never, seconds)

    def run_hooks() -> tuple[Finding, ...]:
        return hooks.run_hooks(
            list_hooks(agent.host.files), agent.loop.wait, hooks.hook_environment(context.role, context.rank)
        )

    def show(findings: tuple[Finding, ...]) -> None:
        reports = (FindingReport(f.id, f.verdict.level.value, f.verdict.reason, f.verdict.hint) for f in findings)
        agent.reporter.update(findings=(*chosen, *reports))

    chosen = context.switch.findings if context.switch is not None else ()
    if agent.reporter.report.phase is not Phase.BLOCKED:  # which stays until nothing blocks: a try is no news
        agent.set_phase(Phase.PREFLIGHT)
    io = GateIO(agent.actions.apply, run_hooks, wait, agent.loop, agent.events, show)
    Gate(
        partial(build_checks, check_inputs(context)),
        agent.host,
        agent.settings.preflight,
        io,
        reported=agent.state.reported,
        given_up=agent.state.given_up,
    ).admit()
    return docker_was_up


def wait_backoff(agent: Deps) -> bool:
    """Wait before the next launch of a plan that failed lately. Returns whether it waited.

    Raises NeedsPersonError (exit 17) after too many failures in a row; as `check_head`.
    """
    launches = agent.read_launches()
    seconds = launches.wait_seconds(agent.plan.counted_as)
    last = launches.last_failure(agent.plan.counted_as)
    if seconds is None:
        failed, proven = len(BACKOFF_SECONDS), agent.settings.supervise.proven_seconds
        span = f"{proven / 60:.0f} minutes" if proven >= 120 else f"{proven} s"
        end = launches.last.get(agent.plan.counted_as)
        remedy = MEMORY_HINT if end is not None and end.code == ExitCode.MEMORY_GUARD else "fix the cause"
        agent.record(lambda now: now.reset(agent.plan.counted_as))
        raise NeedsPersonError(
            f"{failed} launches of this plan in a row ended within {span} of service"
            + (f"; the last: {last}" if last else ""),
            f"{remedy}, then: systemctl start sparkd-{agent.context.role}",
        )
    if agent.state.backed_off:
        return False
    if seconds:
        agent.set_phase(Phase.COOLING, f"{seconds} s before the next launch of a plan that failed")
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            agent.reporter.update(message=f"{left:.0f} s before the next launch of a plan that failed")
            agent.loop.wait_until(never, min(1.0, left))
            check_head(agent)
    agent.state.backed_off = True
    return seconds > 0


def await_docker(agent: Deps) -> None:
    """Has no deadline: docker may be started by hand."""
    while not docker.running(agent.host):
        agent.set_phase(Phase.AWAITING_DOCKER, "waiting for dockerd: systemctl start docker")
        agent.loop.wait(DOCKER_POLL_SECONDS)


def fingerprint(agent: Deps) -> None:
    """Read the image, the weights and the script, which all ranks must share like the configuration.

    Raises LaunchError (exit 11); BlockedError (exit 10), also where they changed since the first call.
    """
    interface = agent.plan.node.interface
    try:
        seen, found, hcas, transport = agent.loop.beside(
            lambda: (
                read_agreement(agent),
                versions.read_versions(agent.host),
                infiniband.hcas_of(agent.host.files, interface),
                read_transport(agent),
            ),
            FINGERPRINT_SECONDS,
            "looking at the image and the model",
        )
    except BlockingIOError as error:
        raise BlockedError(f"no look at the image and the model: {error}", THREADS_HINT) from None
    except TimeoutError as error:
        raise BlockedError(str(error), f"what holds {agent.plan.model_path}? look at dmesg") from None
    except LaunchError:
        # This counts as a failed launch too: the next one waits.
        agent.record(lambda launches: launches.begin(agent.plan.counted_as, agent.boot_id))
        raise
    if agent.state.agreement.digest not in ("", seen.digest):
        raise BlockedError("the image, the model or the script has changed meanwhile", "sparkd checks the new one")
    check_hcas(agent, hcas)
    agent.state.agreement = seen
    agent.cluster.publish(PLAN_PATH, agreement.dump_values(seen.values))
    agent.reporter.update(plan_digest=seen.digest, versions=found, transport=transport)


def read_agreement(agent: Deps) -> Agreement:
    """What all ranks must share, as it is now. Raises as `fingerprint`."""
    return read_fingerprint(agent.host, agent.plan, agent.settings.cluster.allow_image_difference)


def read_transport(agent: Deps) -> str:
    """What NCCL can use here. Devices that can't be read are left to NCCL."""
    check = Rdma.from_inputs(CheckInputs(agent.plan, agent.settings))
    try:
        return check.transport(check.probe(agent.host))
    except (OSError, ValueError):
        return ""


def note_late_rdma(agent: Deps) -> None:
    """RDMA devices may come up after `fingerprint`, with the link to a node that boots later.

    Raises OutdatedPlanError where the plan lacks their names.
    """
    if agent.reporter.report.transport != BY_TCP:
        return
    interface = agent.plan.node.interface
    with suppress(OSError):  # also at the deadline
        hcas, transport = agent.loop.beside(
            lambda: (infiniband.hcas_of(agent.host.files, interface), read_transport(agent)),
            DEVICES_SECONDS,
            "looking at the RDMA devices",
        )
        if transport == BY_RDMA:
            check_hcas(agent, hcas)
            agent.reporter.update(transport=transport)


def check_hcas(agent: Deps, now: tuple[str, ...]) -> None:
    """Raises OutdatedPlanError where the plan names the RDMA devices found at its making, and others are found now.

    A port's second device may come up late, or with the other node. Without it the link is half as fast. NCCL pairs the
    devices of two nodes by index, so a node with half of them can't connect.
    """
    before = agent.plan.node.hcas
    if now and before != now and not agent.settings.fabric.hcas and agent.plan.names_hcas:
        then = f"were {','.join(before)}" if before else "there were none"
        reason = f"the fabric's RDMA devices are {','.join(now)} now, and {then} when this run began"
        raise OutdatedPlanError(reason, "sparkd restarts with them")


def launch(agent: Deps) -> Running:
    """Start this node's rank. Raises LaunchError (exit 11), ConfigError (exit 78) for a bad key file."""
    agent.loop.wait(0)  # a stop that was requested during preflight starts no container
    agent.loop.extend_timeout(True)  # a stop during a slow docker call must not end in a kill
    agent.set_phase(Phase.LAUNCHING, f"starting a container of {agent.plan.image}")
    facts = {**agent.reporter.report.versions, **agent.state.agreement.values}
    if not agent.record(lambda launches: launches.record_launch(agent.plan.counted_as, agent.boot_id, facts)):
        raise BlockedError(
            "the count of failed launches can't be written, and bounds crash loops", "df -h /var/lib/sparkd"
        )
    raise_if_unwritten(agent)
    begin_launch(agent)
    lower_readahead(agent)
    epoch, transport = agent.reporter.report.epoch, agent.reporter.report.transport
    ray_token = ""
    if agent.plan.on_ray:
        ray_token = script.ray_token(auth.read_keys(agent.host.files, agent.settings.cluster.key_file)[0], epoch)
    plan = plan_by_tcp(agent.context) if transport == BY_TCP else agent.plan
    record = RankRecord(agent.rank_id, agent.incarnation, agent.boot_id, agent.plan.digest, epoch, transport)
    agent.actions.write_rank(record)
    labels = container_labels(agent.plan, agent.incarnation, agent.rank_id, epoch)
    try:
        rank = agent.actions.launch(plan, labels, ray_token)
    except LaunchError:
        with suppress(OSError):
            agent.actions.forget_rank()
        raise
    open_log = partial(docker.follow_log, agent.host, rank.container_id)
    forwarder = LogForwarder(agent.redact, agent.plan.api_host)
    log = LogReader(open_log, forwarder, agent.journal.put, agent.events, agent.loop.wake)
    running = Running(rank, log, time.monotonic(), record, agent.write_rank)
    agent.state.running = running
    running.note(
        container_id=rank.container_id,
        started_at=rank.started_at,
        pid=rank.pid,
        start_time=rank.start_time,
        oom_kills=meminfo.oom_kills(agent.host.files),
    )
    return running


def watch(agent: Deps, running: Running) -> None:
    """Start the threads that watch the rank. Raises OSError, with some of them started."""
    rank, running.guard = running.rank, guard_memory(agent, running.rank)
    running.log.start()
    with suppress(TimeoutError, BlockingIOError):
        look = partial(docker.pid_without_live_restore, agent.host)
        running.note(dockerd_pid=agent.loop.beside(look, DOCKER_SECONDS, "docker's live-restore"))
    running.tenants = running.read_tenants(agent.host, agent.loop)
    running.note(held_bytes=None if running.tenants is None else running.tenants.held_bytes)
    release_page_cache(agent, running)
    engine = replace(agent.reporter.report.engine, container_id=rank.container_id, image=rank.image_id)
    agent.reporter.update(engine=engine)
    agent.events.info(
        "engine.container.started", name=rank.name, container=rank.container_id[:12], image=agent.plan.image
    )


def guard_memory(agent: Deps, rank: Rank) -> MemoryGuard | None:
    """Start the memory guard; None where memory is not watched."""
    floor_mib = agent.settings.memory.floor_mib
    if not floor_mib:
        return None
    guard = MemoryGuard(floor_mib << 20, rank.pidfd, agent.events, agent.loop.wake)
    guard.start()
    return guard
