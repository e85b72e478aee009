"""`sparkd image build` on a real docker: what it makes, checks and names, and what stays where it fails or is cut."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bed import Node, engine_image, images, readme
from tests.bed.conftest import MakeNode
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import SERVING_SECONDS, SparkdNode
from tests.unit.commands import INTERRUPTIBLE
from tests.unit.git_repositories import URL, make_repositories, served_from

from sparkd.agent.actions.images import image_name
from sparkd.base.host.image_origin import BUILT, BuiltFrom

BASE, MADE = "sparkd-test/base:1", "localhost/made:1"
FOLDER = "/etc/sparkd/recipes"
MAKE_BASE = """
set -e
mkdir -p /root/base/bin /root/base/tmp
cp /bin/busybox /bin/bash /root/base/bin/
chroot /root/base /bin/busybox --install -s /bin
cp /bin/bash /root/base/bin/bash
for one in $(ldd /bin/bash | grep -o '/[^ ]*'); do install -D "$one" "/root/base$one"; done
tar -C /root/base -c . | docker import -c 'ENV PATH=/bin' - "$0"
"""
COPY_GIT = """
core=$(git --exec-path)
cp -L --parents /bin/git "$core/git" "$core/git-upload-pack" "$core/git-submodule" "$core"/git-sh-* \\
  $(ldd "$core/git" | grep -o '/[^ ]*') "$0"
"""
"""This machine's: a node has none."""
STEPS: list[object] = [
    {"env": {"GREETING": "hello $PATH"}},
    {"copy": "made.files", "to": "/opt/made"},
    {"run": 'cd /opt/made\n./run.sh > result\necho "$GREETING" >> result'},
]
ASSERTS: list[object] = ["test -s /opt/made/result", {"file": "/opt/made/result", "pattern": "hello /bin"}]


@pytest.fixture(scope="module", params=["overlay2", pytest.param("containerd", marks=pytest.mark.whole)])
def installed(
    make_node: MakeNode, package: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Node:
    node = make_node("trixie", package)
    if request.param == "containerd":
        settings = json.loads(node.read("/etc/docker/daemon.json"))
        del settings["storage-driver"]
        node.write("/etc/docker/daemon.json", json.dumps({**settings, "features": {"containerd-snapshotter": True}}))
        node.run("systemctl", "restart", "docker")
        images.load(node)
    readme.prepare(node, package)
    base = tmp_path_factory.mktemp("git") / "base"
    make_repositories(base / "repositories")
    subprocess.run(["sh", "-c", COPY_GIT, base], check=True)
    node.put(base, "/root/base")
    node.run("sh", "-c", MAKE_BASE, BASE)
    node.run("mkdir", "-p", f"{FOLDER}/made.files")
    node.write(f"{FOLDER}/made.files/run.sh", "#!/bin/sh\necho made; ls\n")
    node.run("chmod", "755", f"{FOLDER}/made.files/run.sh")
    return node


def build(node: Node, steps: list[object], *words: str, asserts: list[object] | None = None) -> tuple[int, str]:
    write(node, steps, ASSERTS if asserts is None else asserts)
    done = node.run("sparkd", "image", "build", "made", "--yes", *words, check=False, timeout=300)
    return done.returncode, done.stdout + done.stderr


def write(node: Node, steps: list[object], asserts: list[object]) -> None:
    image = {"ref": MADE, "build": {"from": BASE, "steps": steps}, "assert": asserts}
    recipe = {"schema": 1, "name": "made", "model": {"path": "tiny"}, "image": image}
    node.write(f"{FOLDER}/made.yaml", json.dumps(recipe))


def image_id(node: Node, ref: str = MADE) -> str:
    """Empty where it is not there."""
    return node.run("docker", "image", "inspect", "--format", "{{.Id}}", ref, check=False).stdout.strip()


def containers(node: Node) -> str:
    return node.run("docker", "container", "ls", "--all", "--quiet").stdout


@pytest.fixture
def made(installed: Node) -> str:
    """The id of an image with the name."""
    code, output = build(installed, [*STEPS])
    assert code == 0, output
    return image_id(installed)


def test_an_image_is_built_checked_named_and_kept(installed: Node, made: str) -> None:
    result = installed.run("docker", "run", "--rm", "--network", "none", MADE, "cat", "/opt/made/result").stdout
    assert result == "made\nresult\nrun.sh\nhello /bin\n"
    assert image_id(installed, image_name(made)) == made, "docker image prune leaves it"
    assert containers(installed) == ""
    label = installed.run("docker", "image", "inspect", "--format", f'{{{{index .Config.Labels "{BUILT}"}}}}', MADE)
    built = BuiltFrom(*json.loads(label.stdout).values())
    assert (built.base, built.base_id) == (BASE, image_id(installed, BASE))
    shown = installed.run("sparkd", "recipe", "show", "made").stdout
    assert f'image.built[0]: "from {BASE} (' in shown
    assert 'image.built[2]: "copy made.files to /opt/made"' in shown


def test_the_same_again_is_the_same_image_and_a_changed_step_is_said(installed: Node, made: str) -> None:
    code, output = build(installed, [*STEPS])
    assert (code, image_id(installed)) == (0, made)
    assert "other than" not in output
    code, output = build(installed, [*STEPS, {"run": "touch /more"}])
    assert code == 0
    assert "step 4: run touch /more; before: nothing" in output
    assert f"sudo docker image rm {image_name(made)}" in output
    assert image_id(installed) != made
    assert image_id(installed, made) == made, "the one that had the name stays"


SECRET = "hf_abcdefghijklmnopqrstuvwxyz0123"
NOISE = f"""\
for i in $(seq 90); do echo line $i; done
echo 'Step 1/9 : FROM \x1b[2J'
echo token={SECRET}
false
touch /not-reached"""


def test_a_failing_step_shows_its_last_lines_and_nothing_gets_the_name(installed: Node, made: str) -> None:
    code, output = build(installed, [*STEPS, {"run": NOISE}])
    assert code == 10
    assert "sparkd: step 4 (run for i in $(seq 90);" in output
    assert "returned a non-zero code: 1" in output
    assert "line 90" in output
    assert "line 60\n" not in output
    assert "\x1b" not in output
    assert SECRET not in output.partition("line 90")[2]
    assert (image_id(installed), containers(installed)) == (made, "")


FILL = "fallocate -l 1000M /most\ncat /dev/zero >/rest"


def free_bytes(node: Node) -> int:
    return int(node.run("stat", "--file-system", "--format", "%f", "/").stdout) * 4096


@pytest.fixture
def nearly_full(installed: Node, made: str) -> Iterator[str]:
    """The disk has little more than a build must find there, and `made` was built before."""
    room = free_bytes(installed) - (1150 << 20)
    installed.run("fallocate", "--length", str(room), "/root/full")
    yield made
    installed.run("rm", "-f", "/root/full")


@pytest.mark.parametrize(
    ("fill", "failed"),
    [
        pytest.param(FILL, "returned a non-zero code: 1", id="the step's program"),
        pytest.param(f"{FILL} || true", "", id="docker, after a program that ignores it"),
    ],
)
def test_a_disk_that_becomes_full_in_a_step_is_named_and_the_next_build_works(
    installed: Node, nearly_full: str, fill: str, failed: str
) -> None:
    images, free = all_images(installed), free_bytes(installed)
    code, output = build(installed, [*STEPS, {"run": fill}, {"run": "touch /more"}])
    assert code == 10
    assert "step 4 (run fallocate -l 1000M /most cat /dev/zero >/rest" in output
    assert failed in output
    assert re.search(r"no space left on /, .*: 1\.1 GiB was free .*\(1\.1 GiB is free now\)", output), output
    assert "sudo docker system df" in output
    assert (image_id(installed), all_images(installed), containers(installed)) == (nearly_full, images, "")
    assert abs(free - free_bytes(installed)) < 64 << 20, "no layer is left behind"
    installed.run("rm", "/root/full")
    code, output = build(installed, [*STEPS, {"run": "fallocate -l 1200M /most"}, {"run": "touch /more"}])
    assert (code, image_id(installed) != nearly_full) == (0, True), output


def all_images(node: Node) -> list[str]:
    """Layers of builds, too."""
    return sorted(node.run("docker", "image", "ls", "--all", "--quiet").stdout.split())


def test_an_image_that_fails_its_asserts_gets_no_name(installed: Node, made: str) -> None:
    code, output = build(installed, [*STEPS, {"run": "rm /opt/made/result"}])
    assert code == 10
    assert "is not what the recipe needs" in output
    assert (image_id(installed), containers(installed)) == (made, "")


def test_a_build_that_is_cut_leaves_the_name_and_no_container(installed: Node, made: str) -> None:
    write(installed, [*STEPS, {"run": "sleep 600"}], [])
    words = installed.entered(*INTERRUPTIBLE, "sparkd", "image", "build", "made", "--yes")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as building:
        wait_for(lambda: containers(installed), 120, "the step's container")
        (pid,) = installed.pids("sparkd image build made")
        installed.kill(pid, signal.SIGINT)
        output, _ = building.communicate(timeout=60)
    assert building.returncode == 130, output
    assert output.endswith("sudo sparkd image build made   # to resume\n")
    wait_for(lambda: not containers(installed), 60, "docker to remove the step's container")
    assert image_id(installed) == made


def test_without_a_yes_or_its_base_nothing_is_built(installed: Node, made: str) -> None:
    write(installed, [*STEPS, {"run": "touch /other"}], [])
    done = installed.run("sparkd", "image", "build", "made", check=False)
    assert (done.returncode, image_id(installed)) == (2, made)
    assert "run touch /other" in done.stdout, "what would be done is shown"
    assert "sudo sparkd image build made --yes" in done.stderr
    installed.run("docker", "tag", BASE, "sparkd-test/hidden:1")
    installed.run("docker", "image", "rm", BASE)
    code, output = build(installed, [*STEPS])
    assert (code, image_id(installed)) == (10, made)
    assert f"sudo docker pull {BASE}" in output
    installed.run("docker", "tag", "sparkd-test/hidden:1", BASE)


def test_a_repository_is_checked_out_with_its_submodule_and_a_lost_commit_is_named(installed: Node) -> None:
    outer, lost = f"{URL}outer", "0" * 40
    commit = installed.run("docker", "run", "--rm", BASE, "git", "-C", "/repositories/outer", "rev-parse", "HEAD~")
    env = {"env": served_from("/repositories")}
    wanted = {"git": outer, "commit": commit.stdout.strip(), "to": "/opt/outer"}
    asserts: list[object] = [
        {"file": f"/opt/outer/{name}", "pattern": text} for name, text in (("file", "wanted"), ("inner/file", "below"))
    ]
    code, output = build(installed, [env, wanted], asserts=asserts)
    assert code == 0, output
    code, output = build(installed, [env, {**wanted, "commit": lost}], asserts=asserts)
    assert code == 10
    assert f"sparkd: {outer} does not give commit {lost}: where its branch was rebased the commit is gone" in output


def test_a_step_has_no_network_of_the_nodes_and_no_right_of_a_privileged_one(installed: Node) -> None:
    look = "grep CapEff /proc/self/status > /look; ls /sys/class/net >> /look; env | grep -i proxy >> /look || true"
    code, output = build(installed, [{"run": look}], asserts=[])
    assert code == 0, output
    found = installed.run("docker", "run", "--rm", MADE, "cat", "/look").stdout
    assert "CapEff:\t00000000a80425fb" in found, "docker's default"
    assert "fabric" not in found


def test_on_a_terminal_it_awaits_a_yes_and_names_each_step_as_it_begins(installed: Node, made: str) -> None:
    write(installed, [*STEPS, {"run": "echo 'Step 9/6 : FROM x'; touch /other"}], ASSERTS)
    command = "TERM=xterm script --quiet --return --command 'sparkd image build made' /dev/null"
    shown = installed.sh(command, input="no\n").stdout
    assert "build it? [y/N]" in shown
    assert "nothing is built" in shown
    assert image_id(installed) == made
    shown = installed.sh(command, input="y\n", timeout=300).stdout
    assert re.findall(r"step (\d) of 4: ", shown) == ["1", "2", "3", "4"]
    assert image_id(installed) != made


PUBLISHED = f"""\
recipe_version: "2"
model: someone/tiny
model_revision: 0f3a1c2
container: {engine_image.NAME}
mods: [mods/changes, mods/copies, mods/adds]
defaults: {{port: 8000, served_model_name: tiny-chat}}
executor_config: {{gpus: none, privileged: false}}
env: {{VLLM_CPU_KVCACHE_SPACE: 1}}
command: |
  export OMP_NUM_THREADS=1
  vllm serve {{model}} --port {{port}} --host 0.0.0.0 --dtype float32 --max-model-len 512 \\
    --enforce-eager --gpu-memory-utilization 0.5 --chat-template fixed.jinja
"""
"""As sparkrun's users publish one: two mods change the image, in this order, and one only copies a template."""
MODS = {
    "changes/run.sh": "#!/bin/bash\nset -e\ncat files/changed.txt > /opt/changed\n",
    "changes/files/changed.txt": "by its mod\n",
    "adds/run.sh": '#!/bin/bash\nset -e\ngrep -q mod /opt/changed\necho "in $WORKSPACE_DIR" >> /opt/changed\n',
    "copies/run.sh": "#!/bin/bash\nset -e\ncp chat.jinja $WORKSPACE_DIR/fixed.jinja\n",
    "copies/chat.jinja": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
}


def import_published(node: Node, recipe: str, mods: dict[str, str]) -> tuple[list[str], str]:
    """The printed steps, and what is on stderr."""
    node.write("/root/published/recipes/Chat Tiny.yaml", recipe)
    for path, text in mods.items():
        node.write(f"/root/published/mods/{path}", text)
    shown = node.sh(f"sparkd recipe import '/root/published/recipes/Chat Tiny.yaml' --write {FOLDER} --force")
    return re.findall(r"^  \d+\. (.*)$", shown.stdout, re.MULTILINE), shown.stderr


def confirm(node: Node, step: str) -> str:
    """What a build shows on a terminal whose person says yes."""
    words = shlex.join(["script", "--quiet", "--return", "--command", step, "/dev/null"])
    return node.sh(f"TERM=xterm {words}", input="y\n", check=False, timeout=300).stdout


BUILDS = "sudo sparkd image build "


def test_a_published_recipe_with_mods_serves_by_the_commands_that_its_import_printed(installed: Node) -> None:
    steps, left_out = import_published(installed, PUBLISHED, MODS)
    print("\n".join(steps))
    spark = SparkdNode(installed)
    try:
        for step in steps:
            if step.startswith(BUILDS):
                shown = confirm(installed, step)
                assert re.findall(r"step (\d) of 4: (\w+)", shown) == [
                    ("1", "copy"), ("2", "run"), ("3", "copy"), ("4", "run")
                ], shown  # fmt: skip
            elif not step.startswith(readme.NOT_RUN):
                installed.sh(step, timeout=SERVING_SECONDS)
        request = {"model": "tiny-chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        answer = installed.post(8000, "/v1/chat/completions", request, 30)
        assert answer.status == 200, answer.body
        assert json.loads(answer.body)["usage"]["completion_tokens"] >= 1
        changed = installed.run("docker", "exec", "sparkd-rank0", "cat", "/opt/changed").stdout
        assert changed == "by its mod\nin /\n", "each mod once, in order"
        assert installed.run("test", "-e", "/opt/changed", check=False).returncode, "nothing of a mod runs on the node"
        assert [step.startswith(BUILDS) for step in steps].count(True) == 1
        assert not any("docker" in step for step in steps), "the image below is here"
        assert left_out == ""
        assert (
            'image.built[2]: "run export WORKSPACE_DIR='
            in installed.run("sparkd", "recipe", "show", "chat-tiny").stdout
        )
    finally:
        spark.stop()
        installed.sh(f"rm -r /root/published {FOLDER}/chat-tiny* /etc/sparkd/conf.d")


@pytest.mark.parametrize(
    ("base", "script", "needles"),
    [
        (engine_image.NAME, "touch /opt/here\necho patching\nexit 3\n", ["patching", "sparkd: step 4 (run export "]),
        # By this name it would be built with CUDA's torch, and the tests' image has the CPU's.
        ("vllm-node-own", "touch /opt/here\n", ["is not what the recipe needs", "torch is built without CUDA"]),
    ],
)
def test_a_mod_that_fails_or_an_image_that_is_not_right_leaves_nothing_behind(
    installed: Node, base: str, script: str, needles: list[str]
) -> None:
    installed.run("docker", "tag", engine_image.NAME, base)
    names = installed.run("docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}").stdout
    failing = {**MODS, "adds/run.sh": f"#!/bin/bash\n{script}"}
    try:
        steps, _ = import_published(installed, PUBLISHED.replace(engine_image.NAME, base), failing)
        (step,) = [step for step in steps if step.startswith(BUILDS)]
        done = installed.sh(f"{step} --yes", check=False, timeout=300)
        assert done.returncode == 10
        assert all(needle in done.stdout + done.stderr for needle in needles), done.stderr
        now = installed.run("docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}").stdout
        assert set(now.split()) - {"<none>:<none>"} == set(names.split()) - {"<none>:<none>"}
        assert containers(installed) == ""
        assert installed.run("test", "-e", "/opt/here", check=False).returncode, "nothing of a mod runs on the node"
    finally:
        installed.sh(f"rm -r /root/published {FOLDER}/chat-tiny*")
