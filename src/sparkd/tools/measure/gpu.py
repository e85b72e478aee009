"""The speed of this node's GPU under load, which a program in the recipe's image makes while nothing serves."""

import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from threading import Event, Thread
from typing import NamedTuple

import msgspec
from msgspec import Struct

from sparkd.agent.actions.container_bodies import program_body
from sparkd.agent.actions.dockerd import Containers
from sparkd.agent.actions.owner_lock import acquire_lock
from sparkd.agent.preflight.check import Finding, Verdict, block, ok, skipped, unknown, warn
from sparkd.agent.preflight.checks.gpu import GB10, POWER_CYCLE
from sparkd.base.cluster.membership import NodeContext
from sparkd.base.host import Host, docker, docker_image, gpu_access
from sparkd.base.host.docker import LABEL
from sparkd.base.host.gpu import GpuClocks, read_clocks
from sparkd.base.host.owner import NodeOwner
from sparkd.base.lib import prepared, read_data, start_thread
from sparkd.base.lib.dockerd.reader import SOCKET, DockerError
from sparkd.base.lib.errors import Action, BlockedError, LaunchError
from sparkd.base.lib.text import GIB, sanitize, size
from sparkd.tools.measure.interrupts import report_progress

Read = Callable[[], Sequence[GpuClocks]]
AGAIN = "then again: sudo sparkd preflight --deep"
NEED_BYTES, HELD_BYTES, BUSY_PERCENT = 8 * GIB, GIB, 20
"""Memory that the container may take; memory that others may hold, and their load: both are above a desktop's."""


class Scale(NamedTuple):
    """Limits for a figure of a GB10: below `latched` its clock is latched, below `low` it is slow."""

    latched: float
    low: float
    owners: str
    """What owners measured."""


MHZ = Scale(1200, 2000, "2,200 to 2,400 MHz at 80 to 92 W")
TFLOPS = Scale(55, 70, "75 to 92 TFLOPS, and 36 with a latched clock")
"""Figures under products of bf16 matrices. A latched clock is 500 to 850 MHz (Blackwellboy/model-serving-minefield#55,
eugr/spark-vllm-docker#334), a limit of 2,100 MHz is somebody's choice (NVIDIA/open-gpu-kernel-modules#1358)."""


class Load(Struct, frozen=True):
    """The program's result."""

    began: float
    ended: float
    """Monotonic times of its products of matrices."""
    tflops: float
    copy_gbps: float
    """GB/s that its copies read and write together."""


def measure_gpu(node: NodeContext, host: Host, read: Read = read_clocks, deadline_seconds: int = 90) -> list[Finding]:
    """Measure the GPU, as root. Raises LaunchError; BlockedError where the GPU can't be loaded now.

    The deadline allows for 13 s of load, and for the import of torch, which takes up to a minute from a cold disk.
    """
    owner = NodeOwner(os.getpid(), "sparkd preflight --deep", uuid.uuid4().hex)
    with os.fdopen(acquire_lock(host, owner), "rb"):
        gpu = host.gpu()
        if node.plan.container.gpus != "all" or (not gpu.names and not gpu.error):
            reason = "the plan uses no GPU" if gpu.names else "this node has no GPU, or no driver of it"
            return [Finding("gpu-compute", skipped(f"nothing to measure: {reason}"), {}, 0.0)]
        users_before = _read_users(host)
        was_busy = any((clocks.utilization_percent or 0) >= BUSY_PERCENT for clocks in read()[:1])
        _refuse_where_busy(gpu.error, users_before, host.meminfo().available_bytes)
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


def _refuse_where_busy(error: str, users: dict[str, int], available_bytes: int) -> None:
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


def parse_load(log: str) -> Load | None:
    """The program's result, from its last line; None where that is no result, or no GPU can have such figures."""
    try:
        load = msgspec.json.decode(log.strip().rpartition("\n")[2], type=prepared(Load))
    except ValueError:
        return None
    return load if all(0 < figure < 1e6 for figure in (load.tflops, load.copy_gbps, load.ended - load.began)) else None


class Conditions(NamedTuple):
    """What may explain a low figure."""

    mhz: float | None
    held_by: list[str]
    """Reasons for a lower clock in at least half of the samples."""
    other_users: tuple[str, ...]
    """Processes that load the GPU, too."""


def judge(load: Load, name: str, samples: Sequence[GpuClocks], other_users: tuple[str, ...]) -> list[Finding]:
    """The findings on clocks, compute and other users of the GPU. Only a GB10's figures are compared. Pure.

    `samples`: clocks during the products; `other_users`: as in `Conditions`.
    """
    mhz = _median([clocks.sm_mhz for clocks in samples if clocks.sm_mhz is not None])
    watts = _median([clocks.power_watts for clocks in samples if clocks.power_watts is not None])
    reasons = Counter(reason for clocks in samples for reason in clocks.held_by)
    held_by = [reason for reason, count in reasons.items() if 2 * count >= len(samples)]
    conditions = Conditions(mhz, held_by, other_users)
    held_text = f", held down by {' and '.join(held_by)}" if held_by else ""
    clocks_text = f"{_format(mhz)} MHz and {_format(watts)} W under load{held_text}"
    compute_text = f"{load.tflops:,.1f} TFLOPS in bf16, {load.copy_gbps:,.0f} GB/s read and written by copies"
    facts = {"name": name, "sm_mhz": mhz, "power_watts": watts, "held_by": held_by, "others": list(other_users)}
    findings = list[Finding]()
    compared = (("gpu-clocks", clocks_text, mhz, MHZ), ("gpu-compute", compute_text, load.tflops, TFLOPS))
    for id_, figures_text, figure, scale in compared:
        verdict = ok(f"{figures_text}; compared with nothing: owners' figures are of {GB10}, and this is {name}")
        if GB10 in name:
            verdict = _compare(figures_text, figure, scale, conditions)
        findings.append(Finding(id_, verdict, facts | msgspec.structs.asdict(load), 0.0))
    users_verdict = warn(f"others load the GPU, and lower the figures: {', '.join(other_users)}", f"stop them, {AGAIN}")
    return [*findings, Finding("gpu-users", users_verdict if other_users else ok("nobody else loads the GPU"), {}, 0.0)]


def _median(figures: Sequence[float]) -> float | None:
    return median(figures) if figures else None


def _format(figure: float | None) -> str:
    return "unknown" if figure is None else f"{figure:,.0f}"


def _compare(figures_text: str, figure: float | None, scale: Scale, conditions: Conditions) -> Verdict:
    """The verdict on a figure. Another load or heat explains any low one, and a power cycle ends neither."""
    reason = f"{figures_text}; owners measured {scale.owners}"
    if figure is None:
        return unknown(reason, "the driver reports none: nvidia-smi; sudo dmesg | grep -e NVRM -e Xid")
    if figure >= scale.low:
        return ok(reason)
    if conditions.other_users:
        return warn(reason, f"stop what else loads the GPU, {AGAIN}")
    if any("heat" in held for held in conditions.held_by):
        return warn(reason, f"free the node's air vents, let it cool, {AGAIN}")
    if figure >= scale.latched:
        return warn(reason, f"is its clock limited (nvidia-smi -lgc)? Else {POWER_CYCLE}, {AGAIN}")
    if conditions.mhz is not None and conditions.mhz >= MHZ.low:
        return warn(reason, f"the clock is right: has the image a torch for this GPU? Else another image, {AGAIN}")
    return block(reason, f"{POWER_CYCLE}, {AGAIN}", needs_person=True, action=Action.POWER_CYCLE)
