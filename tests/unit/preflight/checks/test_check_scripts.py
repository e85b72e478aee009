"""Every path that the unit and the plan name is there, and the unit's drop-in is the configured one."""

import re

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.plans import ALONE, HEAD, WORKER, plan
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level, Verdict
from sparkd.agent.preflight.checks.paths import ScriptPaths, paths_of_plan
from sparkd.agent.preflight.needed_paths import NeededPath, Requirement
from sparkd.base.config.units import HEADER, DropIn
from sparkd.base.host import Host
from sparkd.base.plan.model import Node, Secret

UNIT = "sparkd-head.service"
WANTED = f"{HEADER}\n[Unit]\nWants=a"
OWN = "[Unit]\nWants=mine"
DROP_IN = DropIn("sparkd-head.service", f"{HEADER}\n[Service]\n")


def judged(tree: Tree, *paths: NeededPath, drop_in: DropIn | None = None) -> Verdict:
    return ScriptPaths((UNIT,), paths, drop_in).run(Host(tree.root))[1]


def unit(tree: Tree, *lines: str) -> None:
    tree.file(f"/usr/lib/systemd/system/{UNIT}", "\n".join(("[Service]", *lines)) + "\n")


def program(tree: Tree, path: str = "/usr/bin/sparkd") -> str:
    tree.file(path, "#!/bin/sh\n", mode=0o755)
    return path


def test_a_unit_whose_paths_are_all_there_is_good(tree: Tree) -> None:
    unit(tree, f"ExecStart={program(tree)} run --role head")
    assert judged(tree) == Verdict(Level.OK, "1 path, all there")


@pytest.mark.parametrize(
    ("mode", "why"), [(None, "No such file"), (0o644, "is not executable"), (0o775, "others than root may write to")]
)
def test_a_power_command_that_would_not_be_run_is_named_and_ends_no_start(
    tree: Tree, mode: int | None, why: str
) -> None:
    unit(tree, f"ExecStart={program(tree)}")
    path = "/usr/local/sbin/plug"
    check = ScriptPaths((UNIT,), power_command=(path, "cycle"))
    if mode is not None:
        tree.file(path, "#!/bin/sh\n", mode=mode)
    verdict = check.run(Host(tree.root))[1]
    assert verdict.level is Level.WARN
    assert verdict.reason.startswith("supervise.power_command would not be run: ") and why in verdict.reason
    tree.file(path, "#!/bin/sh\n", mode=0o755)
    assert check.run(Host(tree.root))[1].level is Level.OK


def test_a_missing_script_blocks_and_is_named_with_its_unit_file(tree: Tree) -> None:
    unit(tree, f"ExecStart={program(tree, '/usr/bin/docker')} exec vllm_ds4 bash /workspace/vllm-head-090.sh")
    reason = f"/workspace/vllm-head-090.sh does not exist (ExecStart in /usr/lib/systemd/system/{UNIT})"
    expect(judged(tree), Level.BLOCK, reason)


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
        ("ExecStart=%Y/tool", Level.WARN),
        ("ExecStart=tool-%H", Level.WARN),
        ("ExecStart=/bin/tool '/opt/ghost; echo'", Level.WARN),
        (f"ExecStart=/bin/tool '/{'x' * 5000} y'", Level.WARN),
        ("ExecStart=/bin/tool %H", Level.OK),
        ("ExecStart=/bin/tool --key=%d/key", Level.WARN),
        ("ExecStart=/bin/tool ${FOLDER}/key", Level.WARN),
        ("ExecStartPre=-/opt/ghost check\nExecStart=/opt/ghost run", Level.BLOCK),
        ("ExecStartPre=/bin/tool -e /bin/plain\nExecStart=/bin/plain", Level.BLOCK),
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


def test_a_unit_that_is_not_installed_warns_and_a_masked_one_has_no_paths(tree: Tree) -> None:
    assert judged(tree).level is Level.WARN
    tree.link(f"/etc/systemd/system/{UNIT}", "/dev/null")
    assert judged(tree, drop_in=DROP_IN).level is Level.OK


@pytest.mark.parametrize("needs", [Requirement.FILE, Requirement.FOLDER, Requirement.PROGRAM, Requirement.ANYTHING])
@pytest.mark.parametrize(
    ("path", "good_as"),
    [
        ("/x/file", {Requirement.FILE, Requirement.ANYTHING}),
        ("/x/program", {Requirement.FILE, Requirement.PROGRAM, Requirement.ANYTHING}),
        ("/x/empty", {Requirement.ANYTHING}),
        ("/x/folder", {Requirement.FOLDER, Requirement.ANYTHING}),
        ("/x/void", {Requirement.ANYTHING}),
        ("/x/link", {Requirement.FILE, Requirement.ANYTHING}),
        ("/x/dangling", set()),
        ("/x/file/below", set()),
        ("/x/ghost", set()),
    ],
)
def test_a_path_must_be_of_the_right_kind(tree: Tree, path: str, good_as: set[Requirement], needs: Requirement) -> None:
    unit(tree, f"ExecStart={program(tree)}")
    tree.file("/x/file", "text")
    program(tree, "/x/program")
    tree.file("/x/empty")
    tree.file("/x/folder/config.json", "{}")
    tree.folder("/x/void")
    tree.link("/x/link", "/x/file")
    tree.link("/x/dangling", "/x/ghost")
    expect(judged(tree, NeededPath(path, "a test", needs, "fix it")), (Level.OK if needs in good_as else Level.BLOCK))


@pytest.mark.parametrize(
    ("path", "mounts", "below", "hint"),
    [
        ("/srv/my models/x", "", "", "sudo mount '/srv/my models'; if that fails: sudo dmesg"),
        ("/home/x", "", "", "sudo mount '/srv/my models'; if that fails: sudo dmesg"),
        ("/srv/my models/x", "/dev/b /srv/my\\040models ext4 rw 0 0\n", "", "pull it"),
        ("/srv/my models/x", "", "other", "pull it"),
        ("/srv/old/x", "", "", "pull it"),
        ("/mnt/outer/inner/x", "", "", "sudo mount /mnt/outer; if that fails: sudo dmesg"),
        ("/mnt/none/x", "", "", "pull it"),
    ],
)
def test_what_is_missing_on_a_disk_that_is_not_mounted_comes_by_mounting_it(
    tree: Tree, path: str, mounts: str, below: str, hint: str
) -> None:
    """With the hint to pull the model 149 GB would fill the disk below, and be hidden by the mount."""
    tree.file(
        "/etc/fstab",
        "#UUID=1 /srv/old ext4\nUUID=2 / ext4\nUUID=3 /srv/my\\040models/ ext4 nofail 0 2\n"
        "UUID=4 /mnt/outer ext4\nUUID=5 /mnt/outer/inner ext4\nUUID=6 /mnt/none ext4\n",
    )
    tree.file("/proc/1/mounts", f"/dev/a / ext4 rw 0 0\n{mounts}")
    tree.file("/proc/self/mounts", "/dev/a / ext4 rw 0 0\n/dev/a /srv/my\\040models ext4 ro 0 0\n")  # of a sandbox
    tree.folder(f"/srv/my models/{below}")
    tree.folder("/mnt/outer")
    tree.link("/home/x", "/srv/my models/x")
    verdict = judged(tree, NeededPath(path, "the model", Requirement.FOLDER, "pull it"))
    assert verdict.hint == hint
    assert ("nothing is mounted at " in verdict.reason) is (hint != "pull it")


def test_a_folder_in_the_launch_scripts_place_blocks(tree: Tree) -> None:
    unit(tree, f"ExecStart={program(tree)}")
    tree.folder("/run/sparkd/private/launch.sh")
    assert judged(tree).reason == "/run/sparkd/private/launch.sh is a folder, not a file"


def judge_drop_in(tree: Tree, wanted: str, present: str | None) -> Verdict:
    unit(tree, f"ExecStart={program(tree)}")
    if present is not None:
        tree.file(DROP_IN.path, present)
    return judged(tree, drop_in=replace(DROP_IN, text=wanted))


@pytest.mark.parametrize(
    ("wanted", "present"),
    [
        pytest.param(WANTED, WANTED, id="as it should be"),
        pytest.param("", None, id="none wanted, none there"),
        pytest.param(WANTED, f"{HEADER}\n# old words\n[Unit]\nWants=a", id="the same in other words"),
        pytest.param("", OWN, id="somebody's own, and none wanted"),
    ],
)
def test_a_drop_in_that_has_what_is_configured_is_good(tree: Tree, wanted: str, present: str | None) -> None:
    expect(judge_drop_in(tree, wanted, present), Level.OK)


@pytest.mark.parametrize(
    ("wanted", "present", "reason"),
    [
        pytest.param(WANTED, None, "is missing", id="missing"),
        pytest.param(WANTED, f"{WANTED}b", "differs from the configuration", id="another"),
        pytest.param("", f"{HEADER}\nb", "is not needed any more", id="left over"),
    ],
)
def test_any_other_drop_in_of_sparkds_blocks_and_a_command_installs_it(
    tree: Tree, wanted: str, present: str | None, reason: str
) -> None:
    expect(judge_drop_in(tree, wanted, present), Level.BLOCK, reason, hint="sudo sparkd units install")


def test_somebodys_own_drop_in_in_its_place_is_left_to_them(tree: Tree) -> None:
    verdict = judge_drop_in(tree, WANTED, OWN)
    expect(verdict, Level.BLOCK, "was not written by sparkd")
    assert "sparkd units install" not in verdict.hint


def test_all_that_is_missing_is_named_at_once(tree: Tree) -> None:
    unit(tree, "ExecStart=/opt/ghost")
    verdict = judged(tree, NeededPath("/srv/models/x", "the model of recipe x", Requirement.FOLDER, "put it there"))
    assert "/opt/ghost does not exist" in verdict.reason
    assert "/srv/models/x does not exist (the model of recipe x)" in verdict.reason


def test_a_plan_needs_its_script_model_secrets_mounts_and_devices_but_not_what_sparkd_makes() -> None:
    volumes = ["/srv/data:/a:ro", "/var/lib/sparkd/cache/x:/cache:rw", "/srv/models/m:/m:ro"]
    made = plan(container={"devices": ["/dev/infiniband"], "volumes": volumes})
    made = replace(made, secrets=(Secret("HF_TOKEN", "/etc/sparkd/hf"),), user_script="/root/start.sh")
    assert {needed.path: needed.requirement for needed in paths_of_plan(made)} == {
        "/root/start.sh": Requirement.FILE,
        "/srv/models/m": Requirement.FOLDER,
        "/etc/sparkd/hf": Requirement.FILE,
        "/srv/models": Requirement.ANYTHING,
        "/srv/data": Requirement.ANYTHING,
        "/dev/infiniband": Requirement.ANYTHING,
    }
    assert all(needed.path for needed in paths_of_plan(replace(made, user_script="", model_path="")))


@pytest.mark.parametrize(("node", "needed"), [(HEAD, True), (replace(HEAD, hcas=()), False), (ALONE, True)])
def test_a_node_of_a_cluster_without_rdma_needs_no_device_of_it(node: Node, needed: bool) -> None:
    made = plan(node, container={"devices": ["/dev/infiniband", "/dev/x"]})
    paths = [path.path for path in paths_of_plan(made)]
    assert ("/dev/infiniband" in paths) is needed
    assert "/dev/x" in paths
    assert "/dev/infiniband" in made.container.devices, "devices that come later are awaited"


def test_a_colon_is_part_of_a_path_except_in_words_of_docker(tree: Tree) -> None:
    unit(tree, f"ExecStart={program(tree)} -v /srv/a:/inside -v /srv/b:c")
    for path in ("/srv/a/x", "/srv/b:c", "/srv/templates"):
        tree.file(path)
    assert judged(tree).level is Level.OK
    template = NeededPath("/srv/a:x", "--chat-template", Requirement.MOUNT, "mount it", may_fail=True)
    assert judged(tree, template).reason == "/srv/a:x is in no mount (--chat-template)"
    secret = NeededPath("/srv/templates:x", "secret X", Requirement.FILE)
    assert judged(tree, secret).reason == "/srv/templates:x does not exist (secret X)"


@pytest.mark.parametrize("repo", ["org/m", ""])
def test_a_missing_model_is_downloaded_by_its_repository(repo: str) -> None:
    hints = {needed.path: needed.hint for needed in paths_of_plan(plan(model={"path": "m", "repo": repo}))}
    pull = f"sudo sparkd model pull {repo or 'ORGANISATION/NAME'} --to /srv/models/m"
    assert hints["/srv/models/m"] == f"{pull}; or set engine.models_dir"


@pytest.mark.parametrize(
    ("node", "hint"),
    [
        (HEAD, "make it"),
        (WORKER, "scp -r '10.0.0.1:/opt/big file' . && sudo mkdir -p /opt && sudo cp -r ./'big file' /opt"),
        (
            replace(WORKER, head_address="fd00::1"),
            "scp -r '[fd00::1]:/opt/big file' . && sudo mkdir -p /opt && sudo cp -r ./'big file' /opt",
        ),
    ],
)
def test_what_a_worker_lacks_of_the_mounts_is_copied_from_its_head(node: Node, hint: str) -> None:
    made = plan(node, container={"volumes": ["/opt/big file:/t:ro", "/dev/fuse:/f:ro"]})
    hints = {needed.path: needed.hint for needed in paths_of_plan(made)}
    assert re.split(", |; ", hints["/opt/big file"]) == [hint, "or take it out of the recipe"]
    assert hints["/srv/models"] == hints["/dev/fuse"] == "make it, or take it out of the recipe"


@pytest.mark.parametrize(
    "volume", ["/var/run/docker.sock:/s:ro", "/lib/modules:/m:ro", "/root/.cache/huggingface:/c:rw"]
)
def test_what_is_each_machines_own_or_is_written_is_not_copied_from_the_head(volume: str) -> None:
    hints = {needed.path: needed.hint for needed in paths_of_plan(plan(WORKER, container={"volumes": [volume]}))}
    assert hints[volume.partition(":")[0]] == "make it, or take it out of the recipe"


@pytest.mark.parametrize("flag", ["chat-template", "tool-parser-plugin", "reasoning-parser-plugin"])
@pytest.mark.parametrize(
    ("path", "needed"),
    [("/models/m/x", {"/srv/models/m/x"}), ("/t/x", {"/opt/t/x"}), ("/other/x", set()), ("x", {"x"})],
)
def test_a_file_that_a_flag_names_in_a_mount_must_be_there(flag: str, path: str, needed: set[str]) -> None:
    made = plan(args={flag: path}, container={"volumes": ["/opt/t:/t:ro"]})
    assert {use.path for use in paths_of_plan(made)} == {"/srv/models/m", "/srv/models", "/opt/t", *needed}
