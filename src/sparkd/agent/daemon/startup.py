"""The steps of a start, in the order of `run`: from preflight to a running container."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from sparkd.agent.daemon.context import Agent, beside_or_blocked
from sparkd.agent.daemon.own_rank import start_threads, take_rank
from sparkd.agent.daemon.page_cache import start_load_memory_thread
from sparkd.agent.daemon.rdma import check_hcas, read_rdma
from sparkd.agent.daemon.readahead import lower_readahead
from sparkd.agent.daemon.shutdown import end_rank
from sparkd.agent.engine.rank import Running
from sparkd.agent.preflight.checks.rdma import BY_TCP
from sparkd.agent.preflight.gate import THREADS_HINT
from sparkd.base.cluster import auth
from sparkd.base.cluster.membership import plan_to_launch
from sparkd.base.host import docker, docker_config, meminfo, versions
from sparkd.base.host.docker import LABEL
from sparkd.base.host.shm import Identity
from sparkd.base.lib.endings import Stage
from sparkd.base.lib.errors import AwaitedError, BlockedError, LaunchError
from sparkd.base.plan import agreement, script
from sparkd.base.plan.agreement import PLAN_PATH, Agreement
from sparkd.base.plan.compile_jobs import read_room
from sparkd.base.plan.fingerprint import fingerprint_plan
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.state import launch_history
from sparkd.base.state.history import count_out_of_memory_loads
from sparkd.base.state.rank_record import RANK_FILE, RankRecord, left_segments
from sparkd.base.status.model import Phase

LOOK_SECONDS = 10.0
"""Limit for a look at dockerd's process and files, or at a chosen plan: milliseconds, on a disk that does not hang."""
COUNT_SECONDS = 2.0
"""Limit for the kernel's count of kills, and for a look at the segments that ranks have left."""
ROOM_SECONDS = 5.0
"""Limit for reading the headers of the model's files, which preflight has read before, and for the driver."""
FINGERPRINT_SECONDS = 120.0
"""Limit for docker, and for the some 200 files of the model, which may be on a file server."""


def await_docker(agent: Agent) -> None:
    """Wait for dockerd, without a deadline: it may be started by hand."""
    look = partial(docker.running, agent.host)
    while not agent.look(look, LOOK_SECONDS, "looking at dockerd", False):
        reason, remedy = "waiting for dockerd", "sudo systemctl start docker"
        find_pid_file = partial(docker_config.find_other_pid_file, agent.host)
        if pid_file := agent.look(find_pid_file, LOOK_SECONDS, "looking for another dockerd", ""):
            reason, remedy = docker_config.describe_other_pid_file(pid_file)
        agent.phase.enter(Phase.AWAITING_DOCKER, f"{reason}: {remedy}", hint=remedy)
        agent.loop.wait(0.5)


def fingerprint(agent: Agent) -> None:
    """Read the image, the weights and the script, which all ranks must share like the configuration.

    Raises LaunchError (exit 11); BlockedError (exit 10), also where they changed since the first call.
    """

    def look() -> tuple[Agreement, Mapping[str, str], tuple[str, ...], str]:
        return read_agreement(agent), versions.read_versions(agent.host), *read_rdma(agent)

    what, hint = "looking at the image and the model", f"what holds {agent.plan.model_path}? look at: sudo dmesg"
    try:
        agreed, software, hcas, transport = beside_or_blocked(agent.loop, look, FINGERPRINT_SECONDS, what, hint)
    except LaunchError:
        # This counts as a failed launch too: the next one waits.
        agent.store.record(lambda launches: launches.begin(agent.plan.backoff_key, agent.boot_id))
        raise
    agent.agreed.keep(agreed)
    check_hcas(agent, hcas)
    agent.cluster.publish(PLAN_PATH, agreement.dump_values(agreed.values))
    agent.reporter.update(plan_digest=agreed.digest, versions=software, transport=transport)


def read_agreement(agent: Agent) -> Agreement:
    """What all ranks must share, as it is now. Raises as `fingerprint_plan`."""
    return fingerprint_plan(agent.host, agent.plan, agent.settings.cluster.allow_image_difference)


def require_count(agent: Agent) -> None:
    """Raises BlockedError where a launch could not be counted, before another node starts its rank for this one's."""
    _raise_if_uncounted(agent, agent.store.write(launch_history.FILE, agent.store.require_launches()))
    agent.switching.raise_if_unwritten()


def _raise_if_uncounted(agent: Agent, is_written: bool) -> None:
    if not is_written:
        reason, hint = agent.store.last_failure
        raise BlockedError(f"the count of failed launches can't be written, and bounds crash loops: {reason}", hint)


def launch(agent: Agent) -> Running:
    """Start this node's rank. Raises LaunchError (exit 11), ConfigError (exit 78) for a bad key file."""
    agent.loop.wait(0)  # a stop that was requested during preflight starts no container, nor does another plan's choice
    agent.loop.wait_until(lambda: not agent.switching.looking, LOOK_SECONDS)
    agent.loop.extend_timeout(True)  # a stop during a slow docker call must not end in a kill
    agent.phase.enter(Phase.LAUNCHING, f"starting a container of {agent.plan.image}")
    facts = {**agent.reporter.report.versions, **agent.agreed.agreement.values}
    _raise_if_uncounted(
        agent, agent.store.record(lambda launches: launches.record_launch(agent.plan.backoff_key, agent.boot_id, facts))
    )
    agent.switching.raise_if_unwritten()
    agent.launch_row.begin()
    lower_readahead(agent)
    epoch, transport = agent.reporter.report.epoch, agent.reporter.report.transport
    ray_token = _make_ray_token(agent, epoch) if agent.plan.on_ray else ""
    plan = plan_to_launch(agent.context, _read_compile_jobs(agent), by_tcp=transport == BY_TCP)
    record = _begin_record(agent, epoch, transport)
    labels = container_labels(agent.plan, agent.owner.invocation, agent.rank_id, epoch)
    try:
        rank = agent.actions.launch(plan, labels, ray_token)
    except LaunchError:
        with suppress(OSError):
            agent.actions.forget_rank()
        raise
    running = take_rank(agent, rank, record)
    running.note(container_id=rank.container_id, started_at=rank.started_at, pid=rank.pid, start_time=rank.start_time)
    return running


def _make_ray_token(agent: Agent, epoch: str) -> str:
    """The token of the epoch's Ray cluster. Raises BlockedError where the key file may be readable later."""
    read = partial(auth.read_keys, agent.host.files, agent.settings.cluster.key_file)
    try:
        return script.ray_token(agent.loop.beside(read, 10.0, "the key file", shielded=True)[0], epoch)
    except AwaitedError as error:
        raise BlockedError(error.reason, error.hint) from None


def _begin_record(agent: Agent, epoch: str, transport: str) -> RankRecord:
    """Write the rank's record before it is launched. Returns it with the kernel's count of OOM kills, if readable."""
    identity = (agent.rank_id, agent.owner.invocation, agent.boot_id)
    look = partial(left_segments, agent.host)
    segments: dict[str, Identity] = agent.look(look, COUNT_SECONDS, "segments of ranks before", {}, shielded=True)
    record = RankRecord(*identity, agent.plan.digest, epoch, transport, segments=segments, role=agent.context.role)
    agent.actions.write_private(RANK_FILE.path, RANK_FILE.encode(record))
    count = partial(meminfo.read_oom_kill_count, agent.host.files)
    return replace(record, oom_kills=agent.look(count, COUNT_SECONDS, "the kernel's kills", None, shielded=True))


def container_labels(plan: LaunchPlan, invocation: str, rank_id: str = "", epoch: str = "") -> dict[str, str]:
    """Labels that mark a container as sparkd's, and name its rank. A container for another purpose has no `rank_id`.

    All are set, also empty ones: docker takes from the image what is not.
    """
    values = {
        "role": plan.role,
        "rank": str(plan.node.rank),
        "epoch": epoch,
        "invocation": invocation,
        "plan": plan.digest,
        "rank-id": rank_id,
    }
    return {LABEL + key: value for key, value in values.items()}


def _read_compile_jobs(agent: Agent) -> int:
    """How many compilers may run at once; 1 where that can't be read."""
    read = partial(read_room, agent.plan, agent.settings, agent.host)
    out_of_memory_loads = count_out_of_memory_loads(agent.launch_row.past.launches, agent.agreed.agreement.digest)
    try:
        room = agent.loop.beside(read, ROOM_SECONDS, "reading the model's sizes", shielded=True)
        jobs = max(1, room.jobs >> out_of_memory_loads)
        if out_of_memory_loads and jobs < room.jobs:
            reason = f"loads before this one that ended for want of memory: {out_of_memory_loads}"
            hint = "nothing is to be done: a load that serves ends it"
            agent.events.info("engine.compilers.halved", jobs=jobs, fit=room.jobs, reason=reason, hint=hint)
        return jobs
    except (OSError, ValueError) as error:
        hint = "kernels are compiled one at a time in this run; nothing is to be done where they are in the cache"
        agent.events.warning("engine.compilers.uncounted", reason=str(error), hint=hint)
        return 1


def watch(agent: Agent, running: Running) -> None:
    """Watch the rank, or end it. Raises BlockedError (exit 10) where there are no threads for that, and OSError."""
    try:
        _start_watching(agent, running)
    except OSError as error:
        agent.loop.endings.enter(Stage.END)  # its end is no cause for an error now
        end_rank(agent, running)
        agent.rank.drop()
        agent.loop.endings.enter(Stage.RUN)
        agent.loop.endings.forget()
        if isinstance(error, BlockingIOError):
            raise BlockedError(f"no thread to watch the rank: {error}", THREADS_HINT) from None
        raise


def _start_watching(agent: Agent, running: Running) -> None:
    rank = running.rank
    start_threads(agent, running)
    with suppress(TimeoutError, BlockingIOError):
        look = partial(docker.pid_without_live_restore, agent.host)
        running.note(dockerd_pid=agent.loop.beside(look, LOOK_SECONDS, "docker's live-restore"))
    running.note_tenants()
    start_load_memory_thread(agent, running)
    agent.reporter.update_engine(container_id=rank.container_id, image=rank.image_id)
    if rank.removed_kernels:
        reason = "broken files of kernels, as after a power cut"
        hint = "nothing is to be done: they are compiled again"
        agent.events.warning("cache.kernels.cleared", count=rank.removed_kernels, reason=reason, hint=hint)
    short_id = rank.container_id[:12]
    agent.events.info("engine.container.started", name=rank.name, container=short_id, image=agent.plan.image)
