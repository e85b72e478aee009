"""The steps of a life, each with the agent in hand. The story they make is told in `life`."""

from __future__ import annotations

import time

from msgspec.structs import replace

from sparkd import hooks, load
from sparkd.admission import Policy, Ways, admit
from sparkd.agent import Agent
from sparkd.engine.forward import Forwarder
from sparkd.errors import BlockedError, ExitCode, LaunchError, NeedsPersonError
from sparkd.guard.guard import HINT as MEMORY_HINT
from sparkd.guard.guard import Guard
from sparkd.host import cluster_key, docker, fabric, oom, versions
from sparkd.launch import ledger, ray
from sparkd.launch.ledger import Failure
from sparkd.launch.start import Running, start
from sparkd.launch.survey import survey as look_at_shared
from sparkd.preflight import hook_list
from sparkd.preflight.check import Finding
from sparkd.report.node_report import FindingReport, Phase

DOCKER_POLL_SECONDS = 0.5
SURVEY_SECONDS = 120.0
"""For docker and the folder of the model, some 200 files, which may lie on a file server."""


def examine(agent: Agent) -> bool:
    """Preflight: look, mend what may be mended, look again; whether docker could be seen all the while.

    Raises BlockedError (10) or NeedsPersonError (17).
    """
    docker_was_up = docker.running(agent.host)
    wanted, context = agent.settings.preflight, agent.context

    def run_hooks() -> tuple[Finding, ...]:
        programs = hook_list.listed(agent.host.files)
        return hooks.run(programs, agent.pulse, hooks.environment(context.role, context.rank))

    def show(findings: tuple[Finding, ...]) -> None:
        reports = (FindingReport(f.id, f.verdict.level.value, f.verdict.reason, f.verdict.hint) for f in findings)
        agent.reporter.update(findings=(*rolled_back, *reports))

    rolled_back = () if context.rollback is None else (context.rollback.finding,)
    agent.phase(Phase.PREFLIGHT)
    policy = Policy(wanted.skip, wanted.downgrade, wanted.allow_fixes, wanted.wait_seconds)
    admit(
        context.checks,
        agent.host,
        agent.hands,
        policy,
        Ways(run_hooks, agent.wait, agent.pulse.beside, agent.events, show),
    )
    return docker_was_up


def await_docker(agent: Agent) -> None:
    """Wait for as long as it takes."""
    while not docker.running(agent.host):
        agent.phase(Phase.AWAITING_DOCKER, "waiting for dockerd: systemctl start docker")
        agent.pulse.wait(DOCKER_POLL_SECONDS)


def survey(agent: Agent) -> None:
    """Look at what all ranks must share beyond the configuration: the image, the weights, the script.

    Raises LaunchError (exit 11), BlockedError (exit 10), the latter also where it is not as it was before.
    """
    allow, interface = agent.settings.cluster.allow_image_difference, agent.plan.node.interface
    try:
        seen, found, hcas = agent.pulse.beside(
            lambda: (
                look_at_shared(agent.host, agent.plan, allow),
                versions.read(agent.host),
                fabric.hcas_of(agent.host.files, interface),
            ),
            SURVEY_SECONDS,
            "looking at the image and the model",
        )
    except TimeoutError as error:
        raise BlockedError(str(error), f"what holds {agent.plan.model_path}? look at dmesg") from None
    except LaunchError:
        # A launch that failed as early as can be: the next one cools like any other.
        agent.remember(agent.launches().opened(agent.plan.counted_as, agent.boot_id))
        raise
    if agent.agreement.digest not in ("", seen.digest):
        raise BlockedError("the image, the model or the script has changed meanwhile", "sparkd begins anew with it")
    as_planned(agent, hcas)
    agent.agreement = seen
    agent.offer(seen)
    agent.reporter.update(plan_digest=agent.agreement.digest, versions=found)


def as_planned(agent: Agent, hcas: tuple[str, ...]) -> None:
    """Raises BlockedError where the launch names RDMA devices that were found, and others are found by now.

    The twin of a port comes up after its first, or with the node at the other end: without it the link is half as
    fast, and NCCL pairs the devices of two nodes by their places, so that one node with half of them has no way.
    """
    before = agent.plan.node.hcas
    was, now = ",".join(before), ",".join(hcas)
    if before and hcas and before != hcas and not agent.settings.fabric.hcas and was in agent.plan.script:
        reason = f"the fabric's RDMA devices are {now} now, and were {was} when this life began"
        raise BlockedError(reason, "sparkd begins anew with them")


def cool(agent: Agent) -> bool:
    """Hold a plan back that failed lately; whether it was.

    Raises NeedsPersonError (exit 17) after too many failures in a row.
    """
    launches = agent.launches()
    seconds = launches.wait_seconds(agent.plan.counted_as)
    last = launches.last.get(agent.plan.counted_as)
    if seconds is None:
        failed, span = len(ledger.COOLING_SECONDS), _span(agent.settings.supervise.proven_seconds)
        agent.remember(launches.forgiven(agent.plan.counted_as))
        raise NeedsPersonError(
            f"{failed} launches of this plan in a row ended within {span} of service"
            + (f"; the last: {last}" if last is not None else ""),
            f"{_remedy(last)}, then: systemctl start sparkd-{agent.context.role}",
        )
    if seconds:
        agent.phase(Phase.COOLING, f"{seconds} s before the next launch of a plan that failed")
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            agent.wait(min(1.0, left), f"{left:.0f} s before the next launch of a plan that failed")
    return seconds > 0


def _span(seconds: int) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds} s"


def _remedy(last: Failure | None) -> str:
    """What a person may do about launches that fail again and again."""
    return MEMORY_HINT if last is not None and last.code == ExitCode.MEMORY_GUARD else "mend the cause"


def launch(agent: Agent) -> Running:
    """Start this node's rank."""
    agent.pulse.wait(0)  # whoever asked to stop during the preflight gets no container
    agent.pulse.extending = True  # a stop while docker takes its time must not end in a kill
    agent.phase(Phase.LAUNCHING, f"starting a container of {agent.plan.image}")
    if not agent.remember(agent.launches().opened(agent.plan.counted_as, agent.boot_id)):
        raise BlockedError(
            "the count of failed launches can't be written, and bounds crash loops", "df -h /var/lib/sparkd"
        )
    made_of = {**agent.reporter.report.versions, **agent.agreement.values}
    agent.record(lambda boots: boots.opened(agent.boot_id, agent.plan.counted_as, made_of))
    load.prepare(agent)
    forwarder = Forwarder(agent.redact, agent.plan.api_host)
    epoch = agent.reporter.report.epoch
    running = start(
        agent.hands,
        agent.plan,
        epoch,
        agent.host,
        forwarder,
        agent.journal.put,
        agent.events,
        agent.pulse.ring,
        _ray_token(agent, epoch),
    )
    rank = running.rank
    guard_memory(agent, running)
    load.accompany(agent, running)
    running.oom_kills = oom.kills(agent.host.files)
    engine = replace(agent.reporter.report.engine, container_id=rank.container_id, image=rank.image_id)
    agent.reporter.update(engine=engine)
    agent.events.info(
        "launch.container.started", name=rank.name, container=rank.container_id[:12], image=agent.plan.image
    )
    return running


def _ray_token(agent: Agent, epoch: str) -> str:
    """Empty where Ray joins no nodes. Raises ConfigError (exit 78) for a bad key file."""
    if not agent.plan.on_ray:
        return ""
    return ray.token(cluster_key.read(agent.host.files, agent.settings.cluster.key_file)[0], epoch)


def guard_memory(agent: Agent, running: Running) -> None:
    """Watch memory from now on. What the guard says ends the life at once, ahead of what the other nodes say.

    The rank's own end may take its driver seconds: in that time another node's end would be held for the cause.
    """
    floor_mib = agent.settings.memory.floor_mib
    if not floor_mib:
        return
    running.guard = guard = Guard(floor_mib << 20, running.rank.pidfd, agent.events, agent.pulse.ring)
    before = agent.pulse.guard

    def look() -> None:
        if (error := guard.killed) is not None:
            raise error
        before()

    agent.pulse.guard = look
    guard.stand()
