"""A node with many faults: a dry run changes nothing, preflight by hand fixes all that may be fixed."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from tests.bed import engine_image, readme
from tests.bed.conftest import MakeNode
from tests.bed.images import BUSYBOX
from tests.bed.processes import wait_for
from tests.bed.readme import Walk
from tests.bed.sparkd_node import SparkdNode
from tests.bed.strays import STRAY, STRAY_NAME

ORPHAN = """
import ctypes, os, signal, socket, time
if os.fork():
    os._exit(0)
os.setsid()  # it leads its own group
ctypes.CDLL(None).prctl(15, b"VLLM::EngineCor", 0, 0, 0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = socket.create_server(("", 29501))
time.sleep(3600)
"""
SERVE = """#!/usr/bin/python3
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
engine = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'VLLM::EngineCor', 0, 0, 0); time.sleep(3600)"
subprocess.run([sys.executable, "-c", engine])
"""
"""Somebody's engine, deaf to SIGTERM as one that starts."""
STRANGER_SECONDS = 240
"""Ten times what it takes on two cores with little beside it; 122 were seen at a load of 15."""


@pytest.fixture(scope="module")
def first_hour(make_node: MakeNode, package: Path, signing_key: str) -> Walk:
    """README's first steps on a fresh node, by its text alone."""
    return readme.walk(make_node("trixie"), package, signing_key)


@pytest.fixture(scope="module")
def installed(first_hour: Walk) -> SparkdNode:
    spark = SparkdNode(first_hour.node)
    spark.stop()
    spark.node.run("systemctl", "disable", spark.unit)
    spark.forget_failures()
    spark.configure()
    return spark


@pytest.fixture
def faulty(installed: SparkdNode) -> SparkdNode:
    """Strays, orphaned segments, a container of an agent that is gone, and work of others that must not be touched."""
    node = installed.node
    node.write("/root/stray.py", STRAY)
    node.write("/root/orphan.py", ORPHAN)
    node.sh("setsid python3 /root/stray.py >/dev/null 2>&1; python3 /root/orphan.py >/dev/null 2>&1")
    node.sh("echo orphan > /dev/shm/psm_0000dead; echo mine > /dev/shm/psm_notvllm; echo x > /dev/shm/precious")
    node.sh("touch -d '10 minutes ago' /dev/shm/psm_0000dead /dev/shm/psm_notvllm /dev/shm/precious")
    labels = ("--label", "io.sparkd.role=head", "--label", f"io.sparkd.invocation={'0' * 32}")
    node.run("docker", "run", "--detach", "--name", "sparkd-rank0", *labels, BUSYBOX, "sleep", "3600")
    node.run("docker", "run", "--detach", "--name", "theirs", BUSYBOX, "sleep", "3600")
    wait_for(lambda: len(node.pids("^VLLM::")) == 2, 10, "the strays")
    return installed


@pytest.fixture(autouse=True)
def healed(installed: SparkdNode) -> None:
    """Each test begins with a node that has nothing of the last one."""
    for pid in installed.node.pids("^VLLM::|local/bin/vllm"):
        installed.node.kill(pid, 9)
    installed.node.sh("rm -f /dev/shm/*; docker rm --force sparkd-rank0 theirs >/dev/null 2>&1 || true")


def preflight(spark: SparkdNode, *options: str) -> tuple[int, dict[str, dict[str, object]]]:
    done = spark.node.run("sparkd", "preflight", "--json", *options, check=False)
    assert done.stdout, done.stderr
    return done.returncode, {check["id"]: check for check in json.loads(done.stdout)["checks"]}


def everything(spark: SparkdNode) -> str:
    """All that a look must leave as it is."""
    node = spark.node
    return "\n".join(
        (
            " ".join(str(pid) for pid in node.pids("VLLM|sleep|dockerd|python3 ")),
            node.run("docker", "ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.State}} {{.Names}}").stdout,
            node.sh("find /etc /var/lib/sparkd /run/sparkd /dev/shm -xdev -printf '%p %i %s %T@ %m\\n' | sort").stdout,
            node.sh("grep -r . /proc/sys/vm 2>/dev/null | sort || true").stdout,
        )
    )


def test_the_first_hour_of_the_readme_ends_with_a_completion(first_hour: Walk) -> None:
    planned, written = (first_hour.done(f"sudo sparkd init --{word}") for word in ("plan", "yes"))
    for shown in (planned.stdout, written.stdout):
        assert "recipe    my-model: tiny and its image are here" in shown
        assert "/etc/sparkd/conf.d/10-init.toml: engine.recipe = my-model" in shown
        assert shown.splitlines()[-1] == "next      sudo systemctl enable --now sparkd-head"
    assert first_hour.done("sudo systemctl enable --now sparkd-head").returncode == 0
    answer = json.loads(first_hour.done("curl http://127.0.0.1").stdout)
    assert answer["usage"]["completion_tokens"] >= 1
    assert answer["model"] == "my-model"
    assert "serving" in first_hour.done("sparkd status").stdout
    beside = first_hour.done("sparkd preflight")
    lines = beside.stdout.splitlines()
    assert beside.returncode == 0, "beside the serving agent the next start is judged"
    assert re.fullmatch(r"pid \d+ \(sparkd run --role head\): serving since .* without its sparkd-rank0", lines[0])
    assert first_hour.failed == []


def test_by_the_clock_a_stranger_goes_from_the_repository_to_a_token_of_the_printed_url(first_hour: Walk) -> None:
    (*way, (_, last)), beside = first_hour.commands[:-1], first_hour.seconds[-1][1]
    seconds = sum(seconds for _, seconds in first_hour.seconds) - beside
    print(f"{first_hour.table}\n{seconds:6.1f} s  without the last one")
    assert way[0][0] == "sudo sh install.sh"
    assert "127.0.0.1" not in first_hour.commands[-2][0], "what is printed is for other machines, too"
    assert json.loads(last.stdout)["usage"]["completion_tokens"] >= 1
    assert seconds < STRANGER_SECONDS


def test_a_dry_run_names_every_fault_and_changes_nothing(faulty: SparkdNode) -> None:
    before = everything(faulty)
    code, checks = preflight(faulty, "--dry-run")
    assert everything(faulty) == before
    assert code == 10
    strays = checks["stray-workers"]
    (stray,) = faulty.node.pids(f"^{STRAY_NAME}")
    assert strays["level"] == "block"
    targets = {(fix["kind"], fix["target"], fix["state"]) for fix in strays["fixes"]}  # type: ignore[attr-defined]
    (orphan,) = faulty.node.pids("^VLLM::EngineCor")
    assert ("end-process", f"pid {stray} ({STRAY_NAME})", "would apply") in targets
    assert ("end-process", f"pid {orphan} (VLLM::EngineCor)", "would apply") in targets
    assert any(kind == "remove-container" and "sparkd-rank0" in target for kind, target, _ in targets)
    segments = {fix["target"] for fix in checks["shared-memory"]["fixes"]}  # type: ignore[attr-defined]
    assert segments == {"/dev/shm/psm_0000dead"}


def test_preflight_by_hand_fixes_only_the_fixable_faults(faulty: SparkdNode) -> None:
    (stray,) = faulty.node.pids(f"^{STRAY_NAME}")
    code, checks = preflight(faulty)
    assert code == 0, checks
    assert faulty.node.pids("^VLLM::") == []
    assert faulty.node.run("docker", "ps", "--all", "--format", "{{.Names}}").stdout.split() == ["theirs"]
    kept = set(faulty.node.sh("ls /dev/shm").stdout.split())
    assert {"psm_notvllm", "precious"} <= kept
    assert "psm_0000dead" not in kept
    assert f"pid {stray}" in json.dumps(checks), "the findings name what was cleaned"


def test_a_living_engine_of_somebody_else_blocks_and_is_left_alone(installed: SparkdNode) -> None:
    installed.node.write("/usr/local/bin/vllm", SERVE)
    installed.node.run("chmod", "755", "/usr/local/bin/vllm")
    once = "--property=TimeoutStopSec=1"
    installed.node.run("systemd-run", "--unit=yesterdays", once, "/usr/local/bin/vllm", "serve", "/models/x")
    try:
        wait_for(lambda: installed.node.pids("^VLLM::EngineCor"), 10, "the engine")
        code, checks = preflight(installed)
        assert code == 10
        assert checks["stray-workers"]["level"] == "block"
        assert checks["stray-workers"]["fixes"] == []
        assert installed.show("MainPID", "yesterdays") in str(checks["stray-workers"]["reason"])
        assert str(checks["stray-workers"]["hint"]).startswith(
            "stop it first: sudo systemctl stop yesterdays.service; "
        )
        assert installed.show("ActiveState", "yesterdays") == "active"
    finally:
        installed.node.run("systemctl", "stop", "yesterdays")


def test_a_blocked_agent_serves_once_a_person_has_used_the_hint(installed: SparkdNode) -> None:
    """The engine is deaf to SIGTERM, and was started by hand: no unit or container ends it."""
    node = installed.node
    node.write("/usr/local/bin/vllm", SERVE)
    node.sh("chmod 755 /usr/local/bin/vllm; setsid /usr/local/bin/vllm serve /models/x >/dev/null 2>&1 &")
    wait_for(lambda: node.pids("^VLLM::EngineCor"), 10, "the engine")
    (theirs,) = node.pids("local/bin/vllm serve")
    installed.start_soon()
    try:
        wait_for(lambda: installed.phase() == "blocked", 20, "the agent to be blocked")
        hint = f"sparkd preflight --fix {theirs}"
        assert f"(stop it first: sudo {hint})" in installed.status_text(), installed.status_text()
        (dockerd,) = node.pids("^dockerd|/dockerd")
        refused = node.run("sparkd", "preflight", "--fix", str(dockerd), check=False)
        assert (refused.returncode, node.pids("^dockerd|/dockerd")) == (2, [dockerd]), refused.stderr
        done = node.run(*hint.split(), check=False)
        assert f"applied: end-process pid {theirs} (vllm) (ended by SIGKILL)" in done.stdout, done.stdout + done.stderr
        installed.await_serving()
        assert node.run(*hint.split(), check=False).returncode == 2, "nothing offers to end it any more"
    finally:
        installed.stop()


def test_a_container_of_somebody_else_that_has_the_ranks_name_blocks_and_survives(installed: SparkdNode) -> None:
    installed.node.run("docker", "run", "--detach", "--name", "sparkd-rank0", BUSYBOX, "sleep", "3600")
    code, checks = preflight(installed)
    assert code == 10
    assert checks["stale-container"]["level"] == "block"
    assert checks["stray-workers"]["level"] == "ok"
    assert "docker rename sparkd-rank0" in str(checks["stale-container"]["hint"])
    assert installed.node.run("docker", "ps", "--format", "{{.Names}}").stdout.split() == ["sparkd-rank0"]


def test_what_docker_starts_by_itself_is_warned_of_and_the_hint_fixes_it(installed: SparkdNode) -> None:
    create = ("docker", "create", "--name", "theirs", "--restart", "unless-stopped", "--label", "io.sparkd.role=head")
    installed.node.run(*create, engine_image.NAME, "vllm", "serve", "/models/x")
    code, checks = preflight(installed)
    assert code == 0
    assert {checks[name]["level"] for name in ("docker", "image", "ports")} == {"ok"}
    image_id = installed.node.run("docker", "image", "inspect", "--format", "{{.Id}}", engine_image.NAME).stdout.strip()
    assert image_id in json.dumps(checks["image"]["facts"])
    for name in ("stale-container", "foreign-units"):
        assert checks[name]["level"] == "warn"
        assert str(checks[name]["hint"]).endswith("docker update --restart=no theirs")
    installed.node.run("docker", "update", "--restart=no", "theirs")
    after = preflight(installed)[1]
    assert {after[name]["level"] for name in ("stale-container", "foreign-units")} == {"ok"}


def test_a_dry_run_starts_no_docker(installed: SparkdNode) -> None:
    installed.node.run("systemctl", "stop", "docker.service")
    try:
        preflight(installed, "--dry-run")
        time.sleep(2)
        assert installed.node.run("systemctl", "is-active", "docker.service", check=False).stdout.strip() == "inactive"
    finally:
        installed.node.run("systemctl", "start", "docker.service")


def test_an_operators_hook_decides_and_is_only_listed_in_a_dry_run(installed: SparkdNode) -> None:
    hook = "/etc/sparkd/preflight.d/10-rack"
    installed.node.write(hook, "#!/bin/sh\ntouch /run/hook-ran\necho the rack is too hot\nexit 1\n")
    installed.node.run("chmod", "755", hook)
    try:
        shown = installed.node.run("sparkd", "preflight", "--dry-run", check=False)
        assert hook in shown.stdout
        assert installed.node.run("test", "-e", "/run/hook-ran", check=False).returncode == 1, "a dry run runs no hook"
        shown = installed.node.run("sparkd", "preflight", check=False)
        assert shown.returncode == 10
        assert "the rack is too hot" in shown.stdout
    finally:
        installed.node.run("rm", "-f", hook, "/run/hook-ran")


def test_the_sweep_ends_the_container_of_a_dead_agent_and_no_other(faulty: SparkdNode) -> None:
    begun = time.monotonic()
    faulty.node.run("sparkd", "sweep")
    assert time.monotonic() - begun < 20
    assert faulty.node.run("docker", "ps", "--all", "--format", "{{.Names}}").stdout.split() == ["theirs"]


def test_the_agent_fixes_a_faulty_node_and_serves_and_its_journal_names_each_fix(faulty: SparkdNode) -> None:
    (stray,), (orphan,) = (faulty.node.pids(name) for name in (f"^{STRAY_NAME}", "^VLLM::EngineCor"))
    cursor = faulty.cursor()
    faulty.start()
    try:
        journal = faulty.journal_since(cursor)
        assert f'preflight.fix.applied kind=end-process target="pid {stray} ({STRAY_NAME})"' in journal
        assert f'preflight.fix.applied kind=end-process target="pid {orphan} (VLLM::EngineCor)"' in journal
        assert 'preflight.fix.applied kind=remove-container target="container sparkd-rank0 (' in journal
        assert "preflight.fix.applied kind=unlink-segment target=/dev/shm/psm_0000dead" in journal
        assert faulty.serves()
        assert "theirs" in faulty.node.run("docker", "ps", "--format", "{{.Names}}").stdout.split()
    finally:
        faulty.stop()
