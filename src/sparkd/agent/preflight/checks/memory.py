"""Memory that CPU and GPU share: what the plan takes of it, who has the rest, and whether the model fits its share."""

from functools import partial
from shlex import quote

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.preflight.check import Check, Level, Verdict, block, ok, skipped, unknown, warn
from sparkd.agent.preflight.checks.plan_lint import script_share
from sparkd.agent.preflight.gpu_users import find_gpu_users
from sparkd.base.config import Settings
from sparkd.base.host import Host, cgroups, meminfo
from sparkd.base.host.gpu import DRIVER_NAME, NO_GPU
from sparkd.base.lib.errors import Action
from sparkd.base.lib.text import GIB, size
from sparkd.base.plan.compile_jobs import read_room
from sparkd.base.plan.inputs import MemoryNeed, MemorySample
from sparkd.base.plan.memory_sum import MemorySum, ModelFit, read_sum
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.recipes.additions import MAX_JOBS

REBOOT_COMMAND = "sudo systemctl reboot"
STOP_OTHERS = "stop other work on this node; who has it: sudo sparkd preflight --dry-run --all"
NAMED_BYTES = GIB
"""Users of the GPU that hold less in all are not named for a shortage: a desktop's have some 100 MiB."""


class MemoryFacts(Struct, frozen=True):
    uptime_seconds: float
    total_bytes: int
    free_bytes: int
    available_bytes: int
    process_bytes: int
    """Anonymous and shared memory, and the kernel's own, such as page tables: most is freed when processes end."""
    gpus: tuple[str, ...]
    gpu_total_bytes: int | None
    gpu_error: str
    gpu_users: tuple[str, ...] | None
    """Processes that the driver lists or that have its devices open; None where that is unknown."""
    gpu_held_bytes: int = 0
    """GPU memory of the processes that the driver lists."""
    script_share: float | None = None
    """Share of the GPU's memory that engine.script starts its own engine with; None where the plan's share counts."""
    _ended_users: tuple[str, ...] = ()
    """Processes that the driver lists, and that have ended."""
    _gpu_sizes_known: bool = True
    """Whether the driver says of each process that it lists how much it holds."""
    _unexplained_bytes: int = 0
    """The most that the driver can hold, by `meminfo.read_unexplained_bytes`."""
    _charged_bytes: int | None = 0
    """The kernel's memory for processes, such as buffers of sockets and pipes, by `cgroups.read_charged_bytes`."""
    _charged_unit: str = ""
    """The unit that at least half of it is for; empty where there is none, or it is little."""


class UnifiedMemory(Check[MemoryFacts], frozen=True):
    need: MemoryNeed
    settings: Settings
    uses_gpu: bool = True
    memory_baseline: MemorySample | None = None
    plan_if_any: LaunchPlan | None = None
    """The plan, for engine.script, which may start an engine with a share of its own."""
    id = "unified-memory"
    levels = (Level.WARN, Level.BLOCK, Level.UNKNOWN)

    def probe(self, host: Host) -> MemoryFacts:
        memory = host.meminfo()
        gpu = host.gpu() if self.uses_gpu else NO_GPU
        users, charged_bytes = find_gpu_users(host, gpu), cgroups.read_charged_bytes(host.files)
        return MemoryFacts(
            uptime_seconds=host.uptime_seconds(),
            total_bytes=memory.total_bytes,
            free_bytes=memory.free_bytes,
            available_bytes=memory.available_bytes,
            process_bytes=memory.anonymous_bytes + memory.shared_bytes + memory.other_counted_bytes,
            gpus=gpu.names,
            gpu_total_bytes=gpu.total_bytes,
            gpu_error=gpu.error,
            gpu_users=None if users is None else tuple(user.label for user in users if not user.gone),
            gpu_held_bytes=sum(user.bytes or 0 for user in users or () if not user.gone),
            script_share=script_share(host.files, self.plan_if_any) if self.plan_if_any else None,
            _gpu_sizes_known=all(user.bytes is not None for user in users or () if not user.gone),
            _ended_users=tuple(user.label for user in users or () if user.gone),
            _unexplained_bytes=meminfo.read_unexplained_bytes(host.files, memory),
            _charged_bytes=charged_bytes,
            _charged_unit=_find_charged_unit(host, charged_bytes or 0),
        )

    def judge(self, facts: MemoryFacts) -> Verdict:
        if facts.gpu_error:
            reason = f"the GPU's driver can't be queried: {facts.gpu_error}"
            return unknown(reason, "look at: nvidia-smi; sudo dmesg", awaits=DRIVER_NAME)
        if not self.need.is_known:
            parts = f"{size(facts.free_bytes)} free, {size(facts.process_bytes)} held by processes and the kernel"
            return ok(f"{size(facts.available_bytes)} of {size(facts.total_bytes)} available, {parts}")
        need = self.need
        if facts.script_share is not None:
            need = replace(need, memory_bytes=None, gpu_memory_utilization=facts.script_share)
        engine_bytes = need.engine_bytes(facts.total_bytes, facts.gpu_total_bytes)
        needed_bytes = engine_bytes + need.headroom_bytes
        parts = f"{size(engine_bytes)} and headroom" if engine_bytes else "headroom: the GPU has memory of its own"
        demand = f"{size(needed_bytes)} needed ({parts})"
        if facts.available_bytes < needed_bytes:
            return self._judge_shortage(facts, needed_bytes, f"{size(facts.available_bytes)} available, {demand}")
        if facts.free_bytes < needed_bytes:
            reason = f"{size(facts.available_bytes)} available, but {size(facts.free_bytes)} free; {demand}"
            return warn(reason, "the rest is page cache, which older builds of vLLM do not count")
        own_bytes = facts.gpu_total_bytes
        # Of several GPUs it is not known which one the engine takes.
        if own_bytes and facts.gpu_users and len(facts.gpus) == 1:
            share_bytes, left_bytes = need.gpu_share_bytes(own_bytes), own_bytes - facts.gpu_held_bytes
            if left_bytes < share_bytes:
                reason = f"{size(left_bytes)} of the GPU's {size(own_bytes)} are free, and {size(share_bytes)} needed; "
                return warn(f"{reason}it is used by {', '.join(facts.gpu_users)}", "stop other work on the GPU")
        return ok(f"{size(facts.available_bytes)} available, {demand}")

    def _judge_shortage(self, facts: MemoryFacts, needed_bytes: int, reason: str) -> Verdict:
        """The verdict by what can free the missing memory: a person, time, or a reboot where the driver holds it."""
        shortage_bytes = needed_bytes - facts.available_bytes
        block_shortage = partial(block, shortage_bytes=shortage_bytes)
        if needed_bytes > facts.total_bytes:
            hint = f"this node has {size(facts.total_bytes)} in all: lower gpu_memory_utilization or memory_bytes"
            return block(reason, hint)
        if (holder := _find_holder(facts, shortage_bytes)) is not None:
            who, hint = holder
            return block_shortage(f"{reason}{who}", hint)
        users = ", ".join(facts.gpu_users or ())
        if not self._has_settled(facts):
            # Memory of an engine that has just ended comes back over some seconds. A person may read this in the
            # table of a command, which does not wait.
            hint = f"it may still come back; if it has not in {self.settings.memory.settle_seconds:g} s"
            remedy = f"end {users}; where that frees too little" if users else "reboot this node"
            return block_shortage(reason, f"{hint}, {remedy}: {REBOOT_COMMAND}", awaits="memory")
        if users:
            # No proof, so neither a reboot by sparkd nor an end of its tries (17): the driver's figure leaves out
            # managed memory that a CPU has touched, which /proc/meminfo leaves out as well. Measured on an H200,
            # driver 580.159.04: nothing of 8 GiB. A process that only has the devices open may hold some, too.
            listed = f"the GPU's driver lists {size(_shared_gpu_bytes(facts))} for {users}"
            reason = f"{reason}; {listed}, and nothing explains the rest"
            return block_shortage(reason, f"end {users}; where that frees too little: {REBOOT_COMMAND}")
        if facts._ended_users:  # no proof: a namespace of pids may hide them
            listed = f"the GPU's driver lists {', '.join(facts._ended_users)}"
            return block_shortage(f"{reason}; {listed}", f"reboot this node: {REBOOT_COMMAND}")
        reason = f"{reason}; no process uses the GPU"
        if facts._charged_bytes is None:
            reason = f"{reason}, and nothing counts what sockets and pipes hold (no memory.stat of cgroup v2)"
            return block_shortage(reason, f"end what can be spared; where that frees too little: {REBOOT_COMMAND}")
        reason = f"{reason}, so its driver holds the memory of one that is gone"
        return block_shortage(reason, f"reboot this node: {REBOOT_COMMAND}", needs_person=True, action=Action.REBOOT)

    def _has_settled(self, facts: MemoryFacts) -> bool:
        """Whether no memory has come back for `memory.settle_seconds`."""
        settle_seconds, baseline = self.settings.memory.settle_seconds, self.memory_baseline
        if baseline is None:
            return not settle_seconds
        waited_seconds = facts.uptime_seconds - baseline.uptime_seconds
        return waited_seconds >= settle_seconds and not baseline.is_exceeded_by(facts.available_bytes)


def _find_charged_unit(host: Host, charged_bytes: int) -> str:
    if charged_bytes < NAMED_BYTES:
        return ""
    unit, unit_bytes = cgroups.find_charged(host.files)
    return unit if 2 * unit_bytes >= charged_bytes else ""


def _shared_gpu_bytes(facts: MemoryFacts) -> int:
    """What the driver lists of the memory that CPU and GPU share."""
    return facts.gpu_held_bytes if facts.gpu_total_bytes is None else 0


def _find_holder(facts: MemoryFacts, shortage_bytes: int) -> tuple[str, str] | None:
    """Who has what is missing, for the reason, and a hint; None where the GPU's driver may have it, for nobody."""
    gpu_bytes = _shared_gpu_bytes(facts)
    may_be_processes = facts.process_bytes + gpu_bytes >= shortage_bytes
    may_be_driver = facts._unexplained_bytes >= shortage_bytes and not may_be_processes
    if facts.gpu_users and (not facts._gpu_sizes_known or (gpu_bytes >= NAMED_BYTES and not may_be_driver)):
        return f"; the GPU is used by {', '.join(facts.gpu_users)}", "stop other work on the GPU"
    if not may_be_driver:
        unlisted_bytes = facts._unexplained_bytes + (facts._charged_bytes or 0)
        is_charged = not may_be_processes and unlisted_bytes >= shortage_bytes
        return _describe_charged(facts) if is_charged else ("", STOP_OTHERS)
    if not facts.gpus or facts.gpu_users is None:
        return "", STOP_OTHERS
    return None


def _describe_charged(facts: MemoryFacts) -> tuple[str, str]:
    if (facts._charged_bytes or 0) < NAMED_BYTES:
        return "", STOP_OTHERS
    held = f"; {size(facts._charged_bytes or 0)} are the kernel's for processes, as buffers of sockets and pipes"
    if not (unit := facts._charged_unit):
        return held, "see whose: sudo systemd-cgtop --order=memory"
    return f"{held}, most of it for {unit}", f"see who it is, and stop it if it may go: systemctl status {quote(unit)}"


class ModelMemoryFacts(Struct, frozen=True):
    share_bytes: int = 0
    weights_bytes: int | None = None
    request_bytes: int | None = None
    tokens: int | None = None
    compile_jobs: int | None = None
    """How many compilers at once fit into the memory beside the weights."""
    _sum: MemorySum | None = None
    """The sum; None where engine.script starts the engine, or the plan uses no GPU."""
    _excess: str = ""
    """What is wrong with the plan's own number of compilers; empty where nothing is."""


class ModelMemory(Check[ModelMemoryFacts], frozen=True):
    plan: LaunchPlan
    settings: Settings
    id = "model-memory"
    levels = (Level.WARN, Level.BLOCK)

    def probe(self, host: Host) -> ModelMemoryFacts:
        if self.plan.container.gpus != "all" or self.plan.user_script:
            return ModelMemoryFacts()
        memory = read_sum(self.plan, self.settings, host)
        room = read_room(self.plan, self.settings, host, memory)
        return ModelMemoryFacts(
            share_bytes=memory.share_bytes,
            weights_bytes=memory.weights.expected if memory.weights else None,
            request_bytes=memory.request_bytes,
            tokens=memory.tokens,
            compile_jobs=room.jobs,
            _sum=memory,
            _excess=room.describe_excess(self.plan),
        )

    def judge(self, facts: ModelMemoryFacts) -> Verdict:
        memory = facts._sum
        if memory is None and self.plan.user_script:
            return skipped("not summed: engine.script starts the engine its own way")
        if memory is None:
            return ok("the plan uses no GPU")
        if memory.weights is None or not memory.share_bytes:
            return skipped("not summed: the memory or what is loaded into it is not known")
        if memory.fit is ModelFit.WEIGHTS_TOO_BIG:
            return block(memory.describe(), "serve it on more nodes, or a smaller model: sudo sparkd use --list")
        if memory.fit is ModelFit.REQUEST_TOO_BIG:
            return warn(memory.describe(), "lower max-model-len")
        if facts._excess:
            return warn(facts._excess, f"take {MAX_JOBS} out: sparkd sets it to {facts.compile_jobs} here")
        return ok(memory.describe())
