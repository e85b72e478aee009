"""The speed of this node's GPU under load, which a program in the recipe's image makes while nothing serves."""

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Thread

from sparkd.agent.actions.container_bodies import program_body
from sparkd.agent.actions.dockerd import Containers
from sparkd.agent.actions.owner_lock import acquire_lock
from sparkd.agent.preflight.check import Finding, skipped, unknown
from sparkd.base.cluster.membership import NodeContext
from sparkd.base.host import Host, docker, docker_image, gpu_access
from sparkd.base.host.docker import LABEL
from sparkd.base.host.gpu import GpuClocks, read_clocks
from sparkd.base.host.owner import NodeOwner
from sparkd.base.lib import read_data, start_thread
from sparkd.base.lib.dockerd.reader import SOCKET, DockerError
from sparkd.base.lib.errors import BlockedError, LaunchError
from sparkd.base.lib.text import GIB, sanitize, size
from sparkd.tools.measure.gpu_verdict import AGAIN, judge, parse_load
from sparkd.tools.measure.interrupts import report_progress

Read = Callable[[], Sequence[GpuClocks]]
NEED_BYTES = 8 * GIB
"""Memory that the container may take."""
HELD_BYTES = GIB
"""Where others hold as much of the GPU's memory, nothing is measured. A desktop holds less."""
BUSY_PERCENT = 20
"""From this load before the measurement, others count as users of the GPU. A desktop's is lower."""


def measure_gpu(node: NodeContext, host: Host, read: Read = read_clocks, deadline_seconds: int = 90) -> list[Finding]:
    """Measure the GPU, as root. Raises LaunchError; BlockedError where the GPU can't be loaded now.

    The deadline allows for 13 s of load, and for the import of torch, which takes up to a minute from a cold disk.
    """
    owner = NodeOwner(os.getpid(), "sparkd preflight --deep", uuid.uuid4().hex)
    with os.fdopen(acquire_lock(host, owner), "rb"):
        gpu = host.gpu()
        if node.plan.container.gpus != "all" or (not gpu.names and not gpu.error):  # an error is refused below
            reason = "the plan uses no GPU" if gpu.names else "this node has no GPU, or no driver of it"
            return [Finding("gpu-compute", skipped(f"nothing to measure: {reason}"), {}, 0.0)]
        users_before = _read_users(host)
        was_busy = any((clocks.utilization_percent or 0) >= BUSY_PERCENT for clocks in read()[:1])
        _refuse_where_not_measurable(gpu.error, users_before, host.meminfo().available_bytes)
        body, containers = _build_container(node, owner.invocation, host), Containers(host.files.real(SOCKET))
        report_progress("loads the GPU for 13 s, once torch has started")
        try:
            with _sample_clocks(read) as samples:
                code, log = containers.run_program(body, f"sparkd-rank{node.rank}", deadline_seconds)
        except LaunchError as error:
            hint = f"sudo dmesg | grep -e NVRM -e Xid; sudo sparkd sweep, {AGAIN}"
            raise LaunchError(f"the GPU was not measured: {error}", hint) from None
        users_after = _read_users(host)
    if (load := parse_load(log)) is None or code:
        last_line = sanitize(log.strip().rpartition("\n")[2], 300) or "no output"
        hint = "has the image torch for CUDA, and docker the GPU? sudo sparkd preflight --dry-run"
        return [Finding("gpu-compute", unknown(f"not measured: exit code {code}: {last_line}", hint), {}, 0.0)]
    during_products = [clocks for at, clocks in samples if load.began <= at <= load.ended]
    return judge(load, gpu.names[0], during_products, _find_other_users(users_before, users_after, was_busy))


def _find_other_users(before: Mapping[str, int], after: Mapping[str, int], was_busy: bool) -> tuple[str, ...]:
    """Who else loads the GPU. A process that held memory while it was idle, such as a desktop, does not."""
    users = tuple(user for user in {**before, **after} if was_busy or user not in before)
    return users or (("a process without a name",) if was_busy else ())


@contextmanager
def _sample_clocks(read: Read) -> Iterator[list[tuple[float, GpuClocks]]]:
    """Give the list to which the first GPU's clocks are added meanwhile, with monotonic times."""
    samples, has_ended = list[tuple[float, GpuClocks]](), Event()

    def sample() -> None:
        while not has_ended.wait(0.5):
            samples.extend((time.monotonic(), clocks) for clocks in read()[:1])

    start_thread(Thread(target=sample, name="gpu-clocks", daemon=True))
    try:
        yield samples
    finally:
        has_ended.set()


def _refuse_where_not_measurable(error: str, users: dict[str, int], available_bytes: int) -> None:
    if error:
        raise BlockedError(f"the GPU's driver can't be queried: {error}", "sparkd preflight --dry-run")
    if (held_bytes := sum(users.values())) >= HELD_BYTES:
        raise BlockedError(f"{size(held_bytes)} of the GPU's memory is held by {', '.join(users)}", f"stop it, {AGAIN}")
    if available_bytes < NEED_BYTES:
        reason = f"{size(available_bytes)} of memory is available, {size(NEED_BYTES)} needed"
        raise BlockedError(reason, "see who holds it: sudo sparkd preflight --dry-run --all")


def _read_users(host: Host) -> dict[str, int]:
    """Bytes of the GPU's memory that each process holds, by its pid and name."""
    processes, bytes_by_name = host.processes(), dict[str, int]()
    for user in host.gpu().processes or ():
        process = processes.get(user.pid)
        bytes_by_name[f"pid {user.pid}{f' ({process.comm})' if process else ''}"] = user.used_bytes or 0
    return bytes_by_name


def _build_container(node: NodeContext, invocation: str, host: Host) -> dict[str, object]:
    """Docker's body for the program's container. Raises BlockedError without docker or the image."""
    plan, ref = node.plan, node.plan.image_to_run
    if not docker.running(host):
        raise BlockedError("docker is not running", f"sudo systemctl start docker, {AGAIN}")
    try:
        image = docker.query(host, lambda reader: docker_image.read_image(reader, ref))
        access = gpu_access.read_access(host)
    except DockerError as error:
        raise BlockedError(f"docker does not answer as it should: {error}", "systemctl status docker") from None
    if image is None:
        raise BlockedError(f"image {ref} is not on this node", docker_image.how_to_get(ref, plan.image_build))
    labels = {f"{LABEL}role": plan.role, f"{LABEL}rank": str(node.rank), f"{LABEL}invocation": invocation}
    return program_body(image.id, read_data("gpu-load.sh").decode(), labels, access)
