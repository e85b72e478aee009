"""The container as the recipe describes it: options, caches, secrets, and a script of the user's own."""

import json
from pathlib import Path

import pytest
from tests.bed.conftest import MakeNode
from tests.bed.engine_image import NAME
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import CONFIGURATION, HEAD, RANK, SparkdNode, complete

KEY = 's3cret "key\\ of $HOME and `id`'
OWN_SCRIPT = """\
echo "own script: $# words, first $1, flag ${*: -1}"
env | grep -c VLLM_API_KEY
exec "$@"
"""
RECIPE = """\
schema: 1
name: everything
extends: tiny-cpu
image:
  assert:
    - python3 -c 'import torch; assert torch.version.cuda is None'
    - {file: /proc/self/status, pattern: "CapEff:.0000000000000000"}
    - test "$(echo /sys/class/net/*)" = /sys/class/net/lo && test ! -e /models && test ! -e /extra
    - "! touch /etc/x /root/x && cp /bin/true ~/x && ~/x"
container:
  privileged: true
  shm_bytes: 268435456
  ulimits:
    memlock: {soft: -1, hard: -1}
    stack: {soft: 67108864, hard: 67108864}
  devices: [/dev/full]
  volumes: ["/srv/extra:/extra:ro"]
caches:
  vllm: /root/.cache/vllm
  cuda: /root/.nv/ComputeCache
env:
  AWKWARD: |
    two lines, 'quotes', "double", $HOME `id` {"json": [1, 2]} \\
"""
OF_USER = """\
schema: 1
name: of-user
extends: tiny-cpu
image: {ref: "sparkd-test/vllm-cpu:of-user"}
"""
STRANGER = """\
cd /dev/shm
echo held > psm_aaaa0001
echo kept > psm_aaaa0002
exec 9< psm_aaaa0001
setsid sleep 4321 > /dev/null 2>&1 &
"""
"""A person of the rank's uid, with segments of an engine's kind of name: one open, one kept without a process."""


@pytest.fixture(scope="module")
def serving(make_node: MakeNode, package: Path) -> SparkdNode:
    """A node that serves a recipe with every option."""
    spark = SparkdNode(make_node("trixie", package))
    spark.node.write("/etc/sparkd/recipes/everything.yaml", RECIPE)
    spark.node.write("/srv/scripts/own.sh", OWN_SCRIPT)
    spark.node.write("/srv/extra/note", "hello")
    spark.node.write("/etc/sparkd/api.key", KEY.replace(" ", "_") + "\n")
    spark.node.run("chmod", "600", "/etc/sparkd/api.key")
    secrets = '[engine.secrets]\nVLLM_API_KEY = "/etc/sparkd/api.key"\n'
    spark.configure('[engine]\nrecipe = "everything"\nscript = "/srv/scripts/own.sh"\n' + secrets)
    spark.start()
    return spark


def inspected(spark: SparkdNode) -> dict[str, dict[str, object]]:
    (found,) = json.loads(spark.node.run("docker", "inspect", "sparkd-rank0").stdout)
    assert isinstance(found, dict)
    return found


def test_the_container_has_the_options_of_the_recipe(serving: SparkdNode) -> None:
    host = inspected(serving)["HostConfig"]
    assert host["Privileged"] is True
    assert host["NetworkMode"] == "host"
    assert host["IpcMode"] == "host"
    assert host["Init"] is True
    assert host["ShmSize"] == 268435456
    assert host["RestartPolicy"] == {"Name": "no", "MaximumRetryCount": 0}
    assert host["LogConfig"] == {"Type": "local", "Config": {"max-file": "5", "max-size": "20m"}}
    limits = {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in host["Ulimits"]}  # type: ignore[attr-defined]
    assert limits == {"nofile": (1048576, 1048576), "memlock": (-1, -1), "stack": (67108864, 67108864)}
    assert [device["PathOnHost"] for device in host["Devices"]] == ["/dev/full"]  # type: ignore[attr-defined]


def test_mounts_are_read_only_except_caches_of_this_image(serving: SparkdNode) -> None:
    image = str(inspected(serving)["Image"]).removeprefix("sha256:")
    row = r"{{range .Mounts}}{{.Source}} {{.Destination}} {{if .RW}}rw{{else}}ro{{end}}{{println}}{{end}}"
    mounts = serving.node.run("docker", "inspect", "--format", row, "sparkd-rank0").stdout.splitlines()
    assert "/srv/models /models ro" in mounts
    assert "/srv/extra /extra ro" in mounts
    assert "/run/sparkd/private/launch.sh /run/sparkd-launch.sh ro" in mounts
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat")
    serving.node.run("docker", "exec", "--user=65534", "sparkd-rank0", "cat", "/run/sparkd-launch.sh")
    assert "Permission denied" in serving.node.run(*nobody, "/run/sparkd/private/launch.sh", check=False).stderr
    serving.node.run(*nobody, "/run/sparkd/report.json", "/run/sparkd/owner.json")
    assert serving.node.run("stat", "--format=%a", f"/var/lib/sparkd/cache/{image}").stdout.strip() == "700"
    assert f"/var/lib/sparkd/cache/{image}/vllm /root/.cache/vllm rw" in mounts
    assert f"/var/lib/sparkd/cache/{image}/cuda /root/.nv/ComputeCache rw" in mounts, "a folder that the image lacks"
    assert len([one for one in mounts if "/var/lib/sparkd/cache/" in one]) == 2, "tiny-cpu leaves the others out"


def test_the_image_was_checked_without_network_mounts_and_capabilities(serving: SparkdNode) -> None:
    (line,) = [line for line in serving.node.journal(HEAD).splitlines() if line.startswith("engine.image.checked")]
    assert "fault=" not in line, line
    print(line)
    (result,) = json.loads(serving.node.read("/var/lib/sparkd/launch-history.json"))["asserts"].values()
    assert result["fault"] == ""
    checks = json.loads(serving.node.run("sparkd", "preflight", "--dry-run", "--json", check=False).stdout)["checks"]
    assert [check["level"] for check in checks if check["id"] == "image"] == ["ok"]


def test_labels_say_whose_it_is(serving: SparkdNode) -> None:
    labels = inspected(serving)["Config"]["Labels"]
    assert isinstance(labels, dict)
    invocation = serving.show("InvocationID")
    assert labels["io.sparkd.invocation"] == invocation
    assert labels["io.sparkd.rank-id"] == labels["io.sparkd.epoch"] != invocation
    assert (labels["io.sparkd.role"], labels["io.sparkd.rank"]) == ("head", "0")
    assert labels["io.sparkd.plan"] == json.loads(serving.node.run("sparkd", "plan", "--json").stdout)["digest"]


def test_the_users_own_script_is_run_with_the_plans_command(serving: SparkdNode) -> None:
    journal = serving.node.journal(HEAD)
    assert "engine| own script:" in journal
    assert "first vllm, flag --enforce-eager" in journal


def test_values_that_a_shell_would_mangle_arrive(serving: SparkdNode) -> None:
    pid = serving.pid("vllm serve|/usr/local/bin/vllm")
    environment = serving.node.read(f"/proc/{pid}/environ").split("\0")
    assert 'AWKWARD=two lines, \'quotes\', "double", $HOME `id` {"json": [1, 2]} \\\n' in environment


def test_a_key_works_and_is_never_shown(serving: SparkdNode) -> None:
    key = KEY.replace(" ", "_")
    assert not complete(serving.node), "the endpoint wants its key"
    answer = serving.node.http(8000, "/v1/models", headers={"Authorization": f"Bearer {key}"})
    assert answer.status == 200
    shown = "\n".join(
        (
            serving.node.journal(HEAD),
            json.dumps(inspected(serving)),
            serving.node.run("sparkd", "plan").stdout,
            serving.node.run("sparkd", "plan", "--json").stdout,
            serving.node.run("sparkd", "config", "show").stdout,
            serving.node.sh("cat /run/sparkd/report.json /run/sparkd/private/launch.sh /var/lib/sparkd/*.json").stdout,
            serving.node.run("systemctl", "status", HEAD).stdout,
        )
    )
    assert key not in shown
    assert "s3cret" not in shown


def test_a_wrong_key_is_said_at_once(serving: SparkdNode) -> None:
    """The engine is started with a key of its own script's, which sparkd does not know."""
    cursor = serving.cursor()
    serving.node.write("/srv/scripts/own.sh", 'export VLLM_API_KEY=another\nexec "$@"\n')
    serving.configure('[engine]\nrecipe = "tiny-cpu"\nscript = "/srv/scripts/own.sh"\n')
    serving.node.run("systemctl", "restart", HEAD, check=False, timeout=180)
    assert "the endpoint refuses sparkd's key" in serving.journal_since(cursor)
    serving.stop()
    serving.configure(CONFIGURATION)
    wait_for(lambda: serving.show("ActiveState") in ("inactive", "failed"), 30, "the unit to stop")


@pytest.mark.whole
def test_what_a_killed_rank_of_a_persons_uid_leaves_goes_at_the_next_start_and_theirs_stays(
    serving: SparkdNode,
) -> None:
    serving.stop()
    node = serving.node
    user = "--change 'USER 1000:1000' --change 'ENV HOME=/tmp USER=person'"
    node.sh(f"docker create --name base {NAME} && docker commit {user} base sparkd-test/vllm-cpu:of-user")
    node.run("docker", "rm", "base")
    node.write("/etc/sparkd/recipes/of-user.yaml", OF_USER)
    serving.configure('[engine]\nrecipe = "of-user"\n')
    node.run("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "sh", "-c", STRANGER)
    node.run("touch", "-d", "10 minutes ago", "/dev/shm/psm_aaaa0002")
    theirs = segments(serving)
    assert [name for name, _ in sorted(theirs)] == ["psm_aaaa0001", "psm_aaaa0002"]
    serving.start()
    agent, rank = serving.main_pid(), node.pids(RANK)
    owners = node.sh("stat --format=%u " + " ".join(f"/proc/{pid}" for pid in rank)).stdout.split()
    made = segments(serving) - theirs
    print(sorted(made), owners)
    assert set(owners) == {"1000"}
    assert made
    assert set(node.sh("cd /dev/shm && stat --format=%u *").stdout.split()) == {"1000"}

    node.run("kill", "-KILL", *map(str, (agent, *rank)), check=False)  # one may end by the end of another
    wait_for(lambda: serving.main_pid() not in (0, agent), 60, "systemd to start sparkd again")
    serving.await_serving()
    assert segments(serving) & (made | theirs) == theirs
    serving.stop()
    assert segments(serving) == theirs
    assert node.pids("^sleep 4321$")


def segments(spark: SparkdNode) -> set[tuple[str, str]]:
    """Name and inode of each."""
    lines = spark.node.sh("find /dev/shm -type f -printf '%f %i\\n'").stdout.splitlines()
    return {(name, inode) for name, inode in map(str.split, lines)}
