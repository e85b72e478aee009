from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.tree import Tree

from sparkd.host import Host
from sparkd.launch.plan import ContainerSpec, LaunchPlan, Mount, Node, Secret
from sparkd.preflight import needed
from sparkd.preflight.check import Level, Verdict
from sparkd.preflight.needed import Needed, NeededPath
from sparkd.preflight.scripts import ScriptPaths, WantedDropIn

UNIT = "sparkd-head.service"
DROP_IN = WantedDropIn(f"/etc/systemd/system/{UNIT}.d/50-sparkd.conf", "# ours\n[Service]\n", "# ours")


def judged(tree: Tree, *paths: NeededPath, drop_in: WantedDropIn | None = None) -> Verdict:
    check = ScriptPaths(UNIT, paths, drop_in)
    return check.judge(check.probe(Host(tree.root)))


def unit(tree: Tree, *lines: str) -> None:
    tree.file(f"/usr/lib/systemd/system/{UNIT}", "\n".join(("[Service]", *lines)) + "\n")


def program(tree: Tree, path: str = "/usr/bin/sparkd") -> str:
    tree.file(path, "#!/bin/sh\n", mode=0o755)
    return path


def test_a_unit_whose_paths_are_all_there_is_good(tree: Tree) -> None:
    unit(tree, f"ExecStart={program(tree)} run --role head")
    assert judged(tree) == Verdict(Level.OK, "1 paths, all there")


def test_a_ghost_script_blocks_and_is_named_with_the_file_that_asks_for_it(tree: Tree) -> None:
    unit(tree, f"ExecStart={program(tree, '/usr/bin/docker')} exec vllm_ds4 bash /workspace/vllm-head-090.sh")
    verdict = judged(tree)
    assert verdict.level is Level.BLOCK
    assert verdict.reason == (
        f"/workspace/vllm-head-090.sh does not exist (ExecStart in /usr/lib/systemd/system/{UNIT})"
    )


def test_a_drop_in_of_the_administrator_is_looked_at_as_the_unit_is(tree: Tree) -> None:
    unit(tree, f"ExecStart={program(tree)}")
    tree.file(f"/etc/systemd/system/{UNIT}.d/override.conf", "[Service]\nExecStart=\nExecStart=/opt/ghost\n")
    assert judged(tree).reason == f"/opt/ghost does not exist (ExecStart in /etc/systemd/system/{UNIT}.d/override.conf)"


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("ExecStart=/bin/plain", Level.BLOCK),
        ("ExecStart=/bin", Level.BLOCK),
        ("ExecStart=-/opt/ghost", Level.WARN),
        ("ExecStart=ghost", Level.BLOCK),
        ("ExecStart=tool", Level.OK),
        ("ExecStart=/bin/tool --config=/opt/ghost", Level.BLOCK),
        ("ExecStart=/bin/tool --config=relative name=/opt/ghost", Level.OK),
        ("ExecStart=/bin/tool -c 'echo 3 > /opt/ghost'", Level.OK),
        ("ExecStart=/bin/tool -v /bin:/inside:ro", Level.OK),
        ("ExecStart=/bin/tool -v /ghost:/inside", Level.BLOCK),
        ("ExecStopPost=/opt/ghost", Level.BLOCK),
        ("ExecStart=/bin/tool %%", Level.OK),
        ("ExecStart=/bin/tool %t/%p.x", Level.BLOCK),
        ("ExecStart=/bin/tool /x/%H", Level.WARN),
        ("ExecStart=/bin/tool %H", Level.OK),
        ("ExecStart=/bin/tool -HUP $MAINPID", Level.OK),
        ("ExecStart=/bin/tool /home/$NAME", Level.WARN),
        ("ExecStart=/bin/tool /home/$$NAME", Level.BLOCK),
    ],
)
def test_every_absolute_path_in_exec_lines_is_looked_up(tree: Tree, line: str, level: Level) -> None:
    program(tree, "/bin/tool")
    tree.file("/bin/plain", "no program")
    unit(tree, line)
    assert judged(tree).level is level


def test_a_specifier_means_what_systemd_makes_of_it(tree: Tree) -> None:
    unit(tree, f"ExecStart={program(tree)} %t/%n %t/%N %h/x")
    tree.file(f"/run/{UNIT}")
    tree.file("/run/sparkd-head")
    tree.file("/root/x")
    assert judged(tree).level is Level.OK


def test_a_unit_that_is_not_installed_warns(tree: Tree) -> None:
    assert judged(tree).level is Level.WARN


def test_a_masked_unit_has_no_paths(tree: Tree) -> None:
    tree.link(f"/etc/systemd/system/{UNIT}", "/dev/null")
    assert judged(tree, drop_in=DROP_IN).level is Level.OK


@pytest.mark.parametrize("needs", [Needed.FILE, Needed.FOLDER, Needed.PROGRAM, Needed.ANYTHING])
@pytest.mark.parametrize(
    ("path", "good_as"),
    [
        ("/x/file", {Needed.FILE, Needed.ANYTHING}),
        ("/x/program", {Needed.FILE, Needed.PROGRAM, Needed.ANYTHING}),
        ("/x/empty", {Needed.ANYTHING}),
        ("/x/folder", {Needed.FOLDER, Needed.ANYTHING}),
        ("/x/void", {Needed.ANYTHING}),
        ("/x/link", {Needed.FILE, Needed.ANYTHING}),
        ("/x/dangling", set()),
        ("/x/file/below", set()),
        ("/x/ghost", set()),
    ],
)
def test_a_path_must_be_of_the_right_kind(tree: Tree, path: str, good_as: set[Needed], needs: Needed) -> None:
    unit(tree, f"ExecStart={program(tree)}")
    tree.file("/x/file", "text")
    program(tree, "/x/program")
    tree.file("/x/empty")
    tree.file("/x/folder/config.json", "{}")
    tree.folder("/x/void")
    tree.link("/x/link", "/x/file")
    tree.link("/x/dangling", "/x/ghost")
    verdict = judged(tree, NeededPath(path, "a test", needs, "mend it"))
    assert verdict.level is (Level.OK if needs in good_as else Level.BLOCK)


def test_a_folder_in_the_launch_scripts_place_blocks(tree: Tree) -> None:
    unit(tree, f"ExecStart={program(tree)}")
    tree.folder("/run/sparkd/launch.sh")
    assert judged(tree).reason == "/run/sparkd/launch.sh is a folder, not a file"


@pytest.mark.parametrize(
    ("wanted", "found", "reason"),
    [
        pytest.param("# ours\n[Unit]\nWants=a", "# ours\n[Unit]\nWants=a", "", id="as it should be"),
        pytest.param("", None, "", id="none wanted, none there"),
        pytest.param("# ours\n[Unit]\nWants=a", None, "is missing", id="missing"),
        pytest.param(
            "# ours\n[Unit]\nWants=a", "# ours\n# old words\n[Unit]\nWants=a", "", id="the same in other words"
        ),
        pytest.param(
            "# ours\n[Unit]\nWants=a", "# ours\n[Unit]\nWants=b", "is not what the configuration asks for", id="another"
        ),
        pytest.param("", "# ours\nb", "is not what the configuration asks for", id="left over"),
        pytest.param(
            "# ours\n[Unit]\nWants=a",
            "[Unit]\nWants=mine",
            "was not written by sparkd",
            id="somebody's own in its place",
        ),
        pytest.param("", "[Unit]\nWants=mine", "", id="somebody's own, and none wanted"),
    ],
)
def test_the_drop_in_is_what_the_configuration_asks_for(
    tree: Tree, wanted: str, found: str | None, reason: str
) -> None:
    unit(tree, f"ExecStart={program(tree)}")
    if found is not None:
        tree.file(DROP_IN.path, found)
    verdict = judged(tree, drop_in=replace(DROP_IN, text=wanted))
    assert verdict.level is (Level.BLOCK if reason else Level.OK)
    assert reason in verdict.reason
    if "mine" not in (found or "") and reason:
        assert verdict.hint == "sparkd units install"


def test_everything_missing_is_said_at_once(tree: Tree) -> None:
    unit(tree, "ExecStart=/opt/ghost")
    verdict = judged(tree, NeededPath("/srv/models/x", "the model of recipe x", Needed.FOLDER, "put it there"))
    assert "/opt/ghost does not exist" in verdict.reason
    assert "/srv/models/x does not exist (the model of recipe x)" in verdict.reason


PLAN = LaunchPlan(
    recipe="tiny",
    role="head",
    node=Node(0, "127.0.0.1", "127.0.0.1", 1),
    image="i",
    entrypoint=(),
    argv=(),
    env=(),
    secrets=(Secret("HF_TOKEN", "/etc/sparkd/hf"),),
    container=ContainerSpec(
        gpus="all",
        ipc="host",
        network="host",
        privileged=False,
        init=True,
        shm_bytes=None,
        memory_limit_bytes=None,
        ulimits=(),
        devices=("/dev/infiniband",),
        mounts=(Mount("/srv/models", "/models"), Mount("/var/lib/sparkd/cache/x", "/cache"), Mount("/srv/m", "/m")),
    ),
    caches=(),
    script="",
    user_script="/root/start.sh",
    model_path="/srv/m",
    served_name="tiny",
    api_host="127.0.0.1",
    api_port=8000,
    master_port=29501,
    memory_bytes=None,
    gpu_memory_utilization=None,
    shared=(),
    digest="d",
)


def test_a_plan_needs_its_script_model_secrets_mounts_and_devices_but_not_what_sparkd_makes() -> None:
    assert {(one.path, one.needed) for one in needed.of_plan(PLAN)} == {
        ("/root/start.sh", Needed.FILE),
        ("/srv/m", Needed.FOLDER),
        ("/etc/sparkd/hf", Needed.FILE),
        ("/srv/models", Needed.ANYTHING),
        ("/dev/infiniband", Needed.ANYTHING),
    }
