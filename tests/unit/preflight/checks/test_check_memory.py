"""The plan's demand on the memory that CPU and GPU share."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.plans import configured
from tests.unit.verdicts import expect, never_queried

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.memory import STOP_OTHERS, MemoryFacts, UnifiedMemory
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.docker import AWAY
from sparkd.base.host.gpu import GpuFacts, GpuProcess
from sparkd.base.lib.text import GIB, MIB
from sparkd.base.plan.inputs import MemoryNeed, MemorySample

NEED = MemoryNeed(memory_bytes=98 * GIB, gpu_memory_utilization=None, headroom_bytes=2 * GIB)
GB10 = ("NVIDIA GB10",)
STUCK = MemoryFacts(
    uptime_seconds=1000,
    total_bytes=120 * GIB,
    free_bytes=15 * GIB,
    available_bytes=20 * GIB,
    process_bytes=3 * GIB,
    gpus=GB10,
    gpu_total_bytes=None,
    gpu_error="",
    gpu_users=(),
    _unexplained_bytes=103 * GIB,
)
"""About 100 GiB are gone, and no process has them."""


def spark(tree: Tree, *listed: GpuProcess) -> Host:
    """A machine whose GPU shares its memory, and is used by these processes."""
    return Host(tree.root, gpu=lambda: GpuFacts(GB10, None, listed))


def check(baseline: MemorySample | None = None) -> UnifiedMemory:
    return UnifiedMemory(NEED, Settings(), memory_baseline=baseline)


@pytest.mark.parametrize(
    ("free_gib", "available_gib", "level"),
    [(100, 100, Level.OK), (99, 100, Level.WARN), (99, 99, Level.BLOCK), (0, 0, Level.BLOCK)],
)
def test_available_memory_blocks_and_free_memory_warns(free_gib: int, available_gib: int, level: Level) -> None:
    facts = replace(STUCK, free_bytes=free_gib * GIB, available_bytes=available_gib * GIB)
    assert check().judge(facts).level is level


def test_a_shortage_says_what_was_found_and_needed_and_how_much_fixes_must_free() -> None:
    verdict = check().judge(replace(STUCK, available_bytes=62 * GIB))
    expect(verdict, reason="62.0 GiB available, 100.0 GiB needed", shortage_bytes=38 * GIB)


def test_a_gpus_own_memory_that_others_hold_is_named() -> None:
    """Seen on an H200: with 100 GiB held, the launch failed 36 s later."""
    need = MemoryNeed(memory_bytes=None, gpu_memory_utilization=0.5, headroom_bytes=2 * GIB)
    own = replace(STUCK, free_bytes=20 * GIB, gpu_total_bytes=140 * GIB, gpu_users=("pid 7",), gpu_held_bytes=100 * GIB)
    verdict = UnifiedMemory(need, Settings()).judge(own)
    expect(
        verdict, Level.WARN, text="40.0 GiB of the GPU's 140.0 GiB are free, and 70.0 GiB needed; it is used by pid 7"
    )
    enough = (replace(own, gpu_held_bytes=60 * GIB), replace(own, gpus=("A", "B")), replace(own, gpu_users=()))
    assert [UnifiedMemory(need, Settings()).judge(facts).level for facts in enough] == [Level.OK] * 3


def test_a_script_that_starts_an_engine_of_its_own_counts_with_its_share() -> None:
    idle = replace(STUCK, total_bytes=120 * GIB, free_bytes=115 * GIB, available_bytes=115 * GIB)
    assert check().judge(idle).level is Level.OK
    expect(check().judge(replace(idle, script_share=0.98)), Level.BLOCK, "115.0 GiB available, 119.6 GiB needed")


XORG = "pid 7 (Xorg)"
OLD = MemorySample(uptime_seconds=940, available_bytes=20 * GIB)


def test_memory_that_the_driver_keeps_needs_a_person_once_it_has_settled() -> None:
    expect(
        check(OLD).judge(STUCK),
        Level.BLOCK,
        needs_person=True,
        hint="reboot this node: sudo systemctl reboot",
        required="reboot",
    )


@pytest.mark.parametrize(
    ("baseline", "facts"),
    [
        pytest.param(None, STUCK, id="never looked before"),
        pytest.param(replace(OLD, uptime_seconds=941), STUCK, id="too soon"),
        pytest.param(replace(OLD, available_bytes=19 * GIB), STUCK, id="it comes back"),
        pytest.param(None, replace(STUCK, gpu_users=(XORG,), gpu_held_bytes=43 * MIB), id="a desktop uses the GPU"),
    ],
)
def test_memory_that_may_come_back_is_awaited(baseline: MemorySample | None, facts: MemoryFacts) -> None:
    expect(check(baseline).judge(facts), Level.BLOCK, needs_person=False, awaits="memory")


def test_a_verdict_in_the_table_of_a_command_has_what_to_do_next() -> None:
    """`sparkd preflight` waits for nothing."""
    after = "it may still come back; if it has not in 60 s"
    expect(check().judge(STUCK), Level.BLOCK, hint=f"{after}, reboot this node: sudo systemctl reboot")
    beside = replace(STUCK, gpu_users=(XORG,), gpu_held_bytes=43 * MIB)
    end = f"end {XORG}; where that frees too little: sudo systemctl reboot"
    expect(check().judge(beside), Level.BLOCK, hint=f"{after}, {end}")
    at_once = UnifiedMemory(NEED, configured(memory={"settle_seconds": 0})).judge(STUCK)
    expect(at_once, Level.BLOCK, needs_person=True, hint="reboot this node: sudo systemctl reboot")


def test_memory_that_somebody_takes_does_not_begin_the_time_to_settle_again() -> None:
    taken = OLD.merge(MemorySample(950, 15 * GIB))
    assert taken == replace(OLD, available_bytes=15 * GIB)
    assert check(replace(OLD, available_bytes=25 * GIB)).judge(STUCK).needs_person
    back = MemorySample(960, 16 * GIB)
    assert taken.merge(back) == back, "some comes back, though less than there was at first"
    noise = MemorySample(960, 15 * GIB + 255 * MIB)
    assert taken.merge(noise) == taken


@pytest.mark.parametrize(
    ("users", "held_gib", "process_gib", "words"),
    [
        pytest.param((XORG,), 0.04, 3, "lists 41 MiB for pid 7 (Xorg), and nothing explains the rest", id="a desktop"),
        pytest.param(("pid 8 (dcgm-exporter)",), 0, 3, "lists 0 MiB for pid 8 (dcgm-exporter)", id="not listed"),
        pytest.param(("pid 9 (python)",), 30, 3, "lists 30.0 GiB for pid 9 (python)", id="a part of it"),
    ],
)
def test_beside_users_of_the_gpu_that_do_not_explain_it_nothing_is_proven(
    users: tuple[str, ...], held_gib: float, process_gib: int, words: str
) -> None:
    """The driver's figures lack managed memory that a CPU has touched."""
    held = replace(STUCK, gpu_users=users, gpu_held_bytes=round(held_gib * GIB), process_bytes=process_gib * GIB)
    verdict = check(OLD).judge(held)
    expect(verdict, Level.BLOCK, text=words, needs_person=False, required="inspect", awaits="")
    assert verdict.hint == f"end {users[0]}; where that frees too little: sudo systemctl reboot"


@pytest.mark.parametrize(
    ("held_gib", "process_gib", "known", "hint"),
    [
        pytest.param(80, 3, True, "stop other work on the GPU", id="the GPU's users have it"),
        pytest.param(50, 40, True, "stop other work on the GPU", id="both have it"),
        pytest.param(0, 3, False, "stop other work on the GPU", id="nobody knows how much they have"),
        pytest.param(0.04, 80, True, STOP_OTHERS, id="processes have it, not the desktop's GPU"),
    ],
)
def test_users_of_the_gpu_are_named_where_they_may_have_what_is_missing(
    held_gib: float, process_gib: int, known: bool, hint: str
) -> None:
    held = replace(STUCK, gpu_users=(XORG,), gpu_held_bytes=round(held_gib * GIB), process_bytes=process_gib * GIB)
    verdict = check(OLD).judge(replace(held, _gpu_sizes_known=known))
    expect(verdict, Level.BLOCK, hint=hint, needs_person=False, awaits="")
    assert (f"the GPU is used by {XORG}" in verdict.reason) == hint.endswith("GPU")


def test_what_a_gpu_holds_of_its_own_memory_explains_nothing_of_the_machines() -> None:
    own = replace(STUCK, gpu_total_bytes=140 * GIB, gpu_users=("pid 7 (python)",), gpu_held_bytes=100 * GIB)
    expect(check().judge(own), Level.BLOCK, awaits="memory")


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(replace(STUCK, gpus=(), gpu_users=()), id="no GPU"),
        pytest.param(replace(STUCK, gpu_users=(XORG,)), id="the GPU is used"),
        pytest.param(replace(STUCK, gpu_users=None), id="the GPU's users are unknown"),
        pytest.param(replace(STUCK, process_bytes=80 * GIB), id="processes hold as much as is missing"),
        pytest.param(replace(STUCK, total_bytes=90 * GIB), id="the plan never fits"),
    ],
)
def test_no_reboot_is_proposed_where_it_may_not_help(facts: MemoryFacts) -> None:
    expect(check(OLD).judge(facts), Level.BLOCK, needs_person=False, awaits="")


@pytest.mark.parametrize(
    ("cached_gib", "zfs_gib"), [(95, 0), (0, 95)], ids=["a file that is locked in memory", "the cache of ZFS"]
)
def test_memory_that_a_counter_explains_is_not_held_by_the_driver(tree: Tree, cached_gib: int, zfs_gib: int) -> None:
    """MemAvailable counts neither, and a reboot would help once."""
    tree.meminfo(MemTotal=120, MemFree=15, MemAvailable=20, AnonPages=2, Shmem=1, Cached=cached_gib)
    tree.file("/proc/uptime", "1000.00 2000.00\n")
    tree.file("/proc/spl/kstat/zfs/arcstats", f"name type data\nsize 4 {zfs_gib * GIB}\n")
    expect(check(OLD).run(spark(tree))[1], Level.BLOCK, needs_person=False, hint=STOP_OTHERS)


def test_a_driver_that_does_not_answer_is_unknown_however_much_is_free() -> None:
    facts = replace(STUCK, free_bytes=119 * GIB, available_bytes=119 * GIB, gpu_error="no answer in 5 s")
    expect(check().judge(facts), Level.UNKNOWN, "no answer in 5 s")


@pytest.mark.parametrize(
    ("memory_gib", "utilization", "total_gib", "engine_gib"),
    [(5, 0.9, 100, 5), (None, 0.9, 100, 90), (None, None, 100, 92)],
)
def test_the_need_is_what_the_recipe_says_else_a_share_of_the_shared_memory(
    memory_gib: int | None, utilization: float | None, total_gib: int, engine_gib: int
) -> None:
    need = MemoryNeed(memory_gib * GIB if memory_gib else None, utilization, 2 * GIB)
    assert need.engine_bytes(total_gib * GIB) == engine_gib * GIB
    assert need.all_bytes(total_gib * GIB) == (engine_gib + 2) * GIB


def test_a_gpu_without_memory_of_its_own_shares_the_machines() -> None:
    share = UnifiedMemory(MemoryNeed(None, 0.5, 0), Settings())
    facts = replace(STUCK, free_bytes=60 * GIB, available_bytes=60 * GIB)
    assert share.judge(facts).level is Level.OK
    assert share.judge(replace(facts, available_bytes=59 * GIB)).level is Level.BLOCK


def test_what_a_gpu_has_of_its_own_is_none_of_the_machines() -> None:
    """An H200 of 139.8 GiB in a machine of 125.3 GiB, and vLLM's own share of 0.92."""
    share = UnifiedMemory(MemoryNeed(None, None, 2 * GIB), Settings())
    facts = replace(STUCK, free_bytes=2 * GIB, available_bytes=2 * GIB, gpu_total_bytes=round(139.8 * GIB))
    assert share.judge(facts).level is Level.OK
    assert "2.0 GiB needed (headroom: the GPU has memory of its own)" in share.judge(facts).reason
    assert share.judge(replace(facts, available_bytes=GIB)).level is Level.BLOCK


@pytest.fixture
def machine(tree: Tree) -> Tree:
    tree.meminfo(MemTotal=120, MemFree=15, MemAvailable=20, AnonPages=2, Shmem=1)
    tree.file("/proc/uptime", "1000.00 2000.00\n")
    tree.file("/sys/fs/cgroup/memory.stat", "kernel 4096\nslab 4096\n")
    return tree


def test_probe_reads_the_machine(machine: Tree) -> None:
    assert check().probe(spark(machine)) == STUCK


def test_probe_names_who_the_driver_lists_and_who_has_its_devices_open(machine: Tree) -> None:
    machine.process(7, "python", opened=("/dev/nvidia0",))
    machine.process(9, "Xorg")
    facts, verdict = check(OLD).run(spark(machine, GpuProcess(9, None)))
    assert facts.gpu_users == ("pid 7 (python)", "pid 9 (Xorg)")
    expect(verdict, Level.BLOCK, text="the GPU is used by pid 7 (python), pid 9 (Xorg)")
    facts, verdict = check(OLD).run(spark(machine, GpuProcess(9, 43 * MIB)))
    expect(verdict, Level.BLOCK, text="lists 43 MiB for pid 7 (python), pid 9 (Xorg), and nothing explains the rest")
    assert facts.gpu_held_bytes == 43 * MIB, "who is not listed holds none of it"


@pytest.mark.parametrize("listed_bytes", [90 * GIB, None])
def test_a_process_that_has_ended_is_not_to_be_ended(machine: Tree, listed_bytes: int | None) -> None:
    """As nvidia-smi's "[Not Found]"."""
    verdict = check(OLD).run(spark(machine, GpuProcess(77, listed_bytes)))[1]
    expect(verdict, Level.BLOCK, "the GPU's driver lists pid 77, which has ended", needs_person=False, awaits="")
    assert verdict.hint == "reboot this node: sudo systemctl reboot"


def charge(tree: Tree, group: str, gib: int) -> None:
    """As 41,000 pairs of unix sockets with full buffers."""
    slab = 800 * MIB
    tree.file(f"/sys/fs/cgroup{group}/memory.stat", f"anon 9\nkernel {gib * GIB + slab}\nsock 0\nslab {slab}\n")


def test_buffers_of_a_users_sockets_are_no_memory_of_the_driver(machine: Tree) -> None:
    for group, gib in (("", 30), ("/user.slice/user-64000.slice", 29), ("/system.slice/cron.service", 1)):
        charge(machine, group, gib)
    verdict = check(OLD).run(spark(machine))[1]
    expect(verdict, Level.BLOCK, text="30.0 GiB are the kernel's for processes", needs_person=False)
    assert verdict.hint.endswith("systemctl status user-64000.slice")


def test_a_unit_is_named_only_where_it_has_half_and_the_shortage_is_by_it(machine: Tree) -> None:
    for group, gib in (("", 30), ("/user.slice/user-64000.slice", 9), ("/system.slice/snapd.service", 1)):
        charge(machine, group, gib)
    facts = check(OLD).probe(spark(machine))
    expect(check(OLD).judge(facts), Level.BLOCK, text="sudo systemd-cgtop", needs_person=False)
    by_processes = replace(facts, process_bytes=90 * GIB)
    expect(check(OLD).judge(by_processes), Level.BLOCK, hint=STOP_OTHERS)


def test_where_buffers_are_not_counted_nothing_is_proven(machine: Tree) -> None:
    """As with cgroup v1."""
    (machine.root / "sys/fs/cgroup/memory.stat").unlink()
    verdict = check(OLD).run(spark(machine))[1]
    expect(verdict, Level.BLOCK, "nothing counts what sockets and pipes hold", needs_person=False)


def test_a_process_that_hides_its_files_may_use_the_gpu(machine: Tree) -> None:
    machine.process(7, "python")
    (machine.root / "proc/7/fd").rmdir()
    (machine.root / "proc/7/fd").write_text("")
    assert check().probe(spark(machine)).gpu_users is None


def test_a_plan_without_gpus_does_not_query_the_driver(machine: Tree) -> None:
    host = Host(machine.root, docker=lambda: AWAY, gpu=never_queried)
    assert UnifiedMemory(NEED, Settings(), uses_gpu=False).probe(host).gpus == ()
