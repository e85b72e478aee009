"""Faults that no restart can fix, and the steps for the user: one clear line, the right exit code, and no restart loop
without a reason to wait."""

import json
import re
import time
from pathlib import Path

import pytest
from tests.bed import engine_image
from tests.bed.command import BedError
from tests.bed.conftest import MakeNode
from tests.bed.messages import RECEIVED, Receiver
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import CONFIGURATION, HEAD, SparkdNode

GIB = 1 << 30
LOOP_SECONDS = 2.0
"""A unit that fails at its start is started again after RestartSec=1."""
LATE = """script = "/srv/scripts/late.sh"
[readiness]
timeout_seconds = 10
"""


@pytest.fixture(scope="module")
def installed(make_node: MakeNode, package: Path) -> SparkdNode:
    return SparkdNode(make_node("trixie", package))


@pytest.fixture
def spark(installed: SparkdNode) -> SparkdNode:
    """Configured as it should be, stopped, nothing remembered."""
    installed.stop()
    installed.configure()
    installed.node.run("systemctl", "reset-failed", HEAD, check=False)
    installed.node.sh("rm -f /var/lib/sparkd/*.json /run/sparkd/report.json")
    return installed


def refused(spark: SparkdNode, code: int) -> str:
    """Start; the line that says why it was refused, after checking that it was, with this code."""
    cursor = spark.cursor()
    started = spark.node.run("systemctl", "start", HEAD, check=False, timeout=60)
    assert started.returncode != 0
    try:
        wait_for(lambda: spark.exit_status() == code, 20, f"exit code {code}")
    except BedError:
        raise AssertionError(spark.journal_since(cursor)) from None
    refusals = [
        line
        for line in spark.journal_since(cursor).splitlines()
        if line.startswith(("agent.run.failed", "agent.run.refused"))
    ]
    assert refusals, spark.journal_since(cursor)
    assert f"code={code}" in refusals[0]
    return refusals[0]


def blocked(spark: SparkdNode) -> str:
    """Start; the line that names what blocks, of the first process."""
    cursor = spark.cursor()
    spark.start_soon()
    wait_for(lambda: spark.status_text().startswith("blocked: "), 20, "the node to be blocked")
    assert spark.show("NRestarts") == "0"
    (event,) = wait_for(
        lambda: [line for line in spark.journal_since(cursor).splitlines() if line.startswith("agent.run.blocked")],
        5,
        "the line that names what blocks",
    )
    return event


def configure_late(spark: SparkdNode) -> None:
    """With a launch that does not work, and less time than a standstill gets."""
    spark.node.write("/srv/scripts/late.sh", "exec sleep 600\n")
    spark.configure(CONFIGURATION + LATE)


def stays_down(spark: SparkdNode) -> None:
    """No restart loop: before each start systemd has another state than `failed`."""
    wait_for(lambda: spark.show("SubState") == "failed", 10, "it to be left alone")
    assert spark.show("NRestarts") == "0"


def test_a_ghost_script_blocks_and_is_named(spark: SparkdNode) -> None:
    spark.configure(CONFIGURATION + 'script = "/srv/scripts/vllm-head-090.sh"\n')
    event, pid = blocked(spark), spark.main_pid()
    assert "/srv/scripts/vllm-head-090.sh does not exist (engine.script)" in event
    time.sleep(LOOP_SECONDS)
    assert spark.main_pid() == pid, "the same process waits"
    spark.node.write("/srv/scripts/vllm-head-090.sh", 'exec "$@"\n')
    spark.await_serving()
    assert spark.show("NRestarts") == "0"


def test_a_ghost_in_a_units_drop_in_is_named(spark: SparkdNode) -> None:
    drop_in = f"/etc/systemd/system/{HEAD}.service.d/90-own.conf"
    spark.node.write(drop_in, "[Service]\nExecStartPost=-/bin/bash /workspace/vllm-head-090.sh\n")
    spark.node.run("systemctl", "daemon-reload")
    try:
        shown = spark.node.run("sparkd", "preflight", "--dry-run", "--json", check=False)
        (check,) = [one for one in json.loads(shown.stdout)["checks"] if one["id"] == "script-paths"]
        assert "/workspace/vllm-head-090.sh does not exist" in check["reason"]
    finally:
        spark.node.run("rm", drop_in)
        spark.node.run("systemctl", "daemon-reload")


def test_a_missing_model_blocks_and_is_named(spark: SparkdNode) -> None:
    spark.node.run("mv", "/srv/models/tiny", "/srv/models/gone")
    try:
        assert "/srv/models/tiny does not exist (the model of recipe tiny-cpu)" in blocked(spark)
    finally:
        spark.node.run("mv", "/srv/models/gone", "/srv/models/tiny")


@pytest.mark.whole
@pytest.mark.timeout(1200)
def test_a_head_that_is_blocked_for_ten_minutes_costs_nothing_and_serves_once_repaired(spark: SparkdNode) -> None:
    spark.node.sh("mv /srv/models/tiny /srv/models/gone && mkdir /srv/models/tiny")
    cursor = spark.cursor()
    try:
        blocked(spark)
        time.sleep(600)
        lines = spark.journal_since(cursor).splitlines()
        cpu_seconds = int(spark.show("CPUUsageNSec")) / 1e9
    finally:
        spark.node.sh("rmdir /srv/models/tiny && mv /srv/models/gone /srv/models/tiny")
    repaired_at = time.monotonic()
    spark.await_serving()
    own_seconds = time.monotonic() - repaired_at - (spark.engine_seconds(cursor) or 0)
    print(f"lines {len(lines)}, CPU {cpu_seconds:.1f} s, own share of the start {own_seconds:.1f} s")
    assert spark.show("NRestarts") == "0"
    assert len(lines) <= 60, "\n".join(lines)
    assert cpu_seconds < 12, "2 % of a core"
    assert own_seconds < 15


def test_broken_toml_is_no_reason_to_loop(spark: SparkdNode) -> None:
    spark.node.write("/etc/sparkd/sparkd.toml", "[engine\n")
    event = refused(spark, 78)
    assert "/etc/sparkd/sparkd.toml" in event
    assert "line 1" in event
    stays_down(spark)


@pytest.mark.parametrize(
    ("settings", "nearest"),
    [
        (CONFIGURATION + "stop_grace_second = 5\n", "stop_grace_seconds"),
        ('[engine]\nrecipe = "tiny-cpi"\n', "tiny-cpu"),
    ],
    ids=["key", "recipe"],
)
def test_an_unknown_name_is_answered_with_the_nearest(spark: SparkdNode, settings: str, nearest: str) -> None:
    spark.node.write("/etc/sparkd/sparkd.toml", settings)
    assert nearest in refused(spark, 78)
    stays_down(spark)


def test_a_held_port_blocks_and_names_its_holder(spark: SparkdNode) -> None:
    spark.node.run("systemd-run", "--unit=squatter", "python3", "-m", "http.server", "8000")
    wait_for(lambda: spark.node.listens(8000), 10, "the squatter")
    try:
        pid = spark.show("MainPID", "squatter")
        event = blocked(spark)
        assert "8000" in event
        assert pid in event
        assert spark.show("ActiveState", "squatter") == "active", "what is not sparkd's is not touched"
    finally:
        spark.node.run("systemctl", "stop", "squatter")


def test_too_little_memory_blocks_before_anything_is_started(spark: SparkdNode) -> None:
    spark.node.memory(3 * GIB)
    try:
        event = blocked(spark)
        assert "unified-memory" in event
        assert "available" in event
        assert "needed" in event
        assert spark.containers() == []
    finally:
        spark.node.memory(8 * GIB)


def test_an_image_that_is_not_there_blocks_and_is_named_with_how_to_get_it(spark: SparkdNode) -> None:
    spark.configure(CONFIGURATION + 'image = "nobody/nothing:1"\n')
    assert "docker pull nobody/nothing:1" in blocked(spark)


def asserting(spark: SparkdNode) -> str:
    """The line that says why the recipe's image blocks."""
    asserts = "[\"python3 -c 'import torch'\", {file: /patched, pattern: twice}]"
    recipe = f"schema: 1\nname: patched\nextends: tiny-cpu\nimage: {{build: make image, assert: {asserts}}}\n"
    spark.node.write("/etc/sparkd/recipes/patched.yaml", recipe)
    spark.configure('[engine]\nrecipe = "patched"\n')
    dry = spark.node.run("sparkd", "preflight", "--dry-run", check=False).stdout
    assert re.search("what the recipe asserts of it is not checked yet\n +.*the next start does", dry), dry
    return blocked(spark)


def test_an_image_that_is_not_as_its_recipe_asserts_blocks(spark: SparkdNode) -> None:
    event = asserting(spark)
    assert "not what the recipe needs: grep: /patched: No such file or directory" in event
    assert "make image" in event
    assert spark.containers() == []


@pytest.mark.whole
def test_an_image_that_was_built_again_is_checked_once_and_serves(spark: SparkdNode) -> None:
    """For every change one that is right is checked in `test_container`."""
    image = engine_image.NAME
    asserting(spark)
    cursor = spark.cursor()
    build = f"docker run --name made --entrypoint bash {image} -c 'echo twice >/patched' && docker commit made {image}"
    original = spark.node.run("docker", "inspect", "--format={{.Id}}", image).stdout.strip()
    try:
        spark.node.sh(f"{build} && docker rm made", timeout=60)
        spark.await_serving()
        checked = [line for line in spark.journal_since(cursor).splitlines() if line.startswith("engine.image.checked")]
        print(*checked, sep="\n")
        assert len(checked) == 1
        spark.stop()
        spark.start()
        assert len([line for line in spark.journal_since(cursor).splitlines() if "engine.image.checked" in line]) == 1
    finally:
        spark.stop()
        spark.node.run("docker", "tag", original, image)


def test_a_wrong_flag_quotes_the_engines_own_first_line(spark: SparkdNode) -> None:
    unseen = '[preflight]\nskip = ["plan-lint"]\n'
    spark.configure(CONFIGURATION + "[engine.args]\nmax-model-len = 100000\n" + unseen)
    event = refused(spark, 13)
    assert "User-specified max_model_len (100000) is greater than the derived max_model_len" in event


def test_a_launch_that_is_not_ready_in_time_leaves_nothing_and_the_next_agent_reports_it(spark: SparkdNode) -> None:
    configure_late(spark)
    event = refused(spark, 12)
    assert "not ready within 10 s: waited for HTTP to answer; the engine was" in event
    assert (spark.containers(), spark.leftovers()) == ([], [])

    def reported() -> bool:
        report: dict[str, str] = json.loads(spark.node.read("/run/sparkd/report.json"))
        cause = report["last_cause"]
        return (
            report["last_cause_code"] == "not-ready"
            and cause.startswith("not ready within 10 s")
            and cause.endswith("(exit 12)")
        )

    wait_for(reported, 20, "the next life")
    wait_for(lambda: "cooling" in spark.node.run("sparkd", "status", check=False).stdout, 5, "it to cool")


def test_the_sixth_launch_of_a_failing_plan_needs_a_person_and_the_next_by_hand_starts_over(spark: SparkdNode) -> None:
    digest = json.loads(spark.node.run("sparkd", "plan", "--json").stdout)["digest"]
    history = {"schema": 1, "failures": {digest: 5}}
    spark.node.write("/var/lib/sparkd/launch-history.json", json.dumps(history))
    event = refused(spark, 17)
    assert "5 launches of this plan in a row" in event
    assert "systemctl start sparkd-head" in event
    stays_down(spark)
    assert json.loads(spark.node.read("/var/lib/sparkd/launch-history.json"))["failures"] == {}


def test_systemd_sends_what_needs_a_person_once_no_agent_can(spark: SparkdNode) -> None:
    receiver, name = Receiver(spark.node), spark.node.name
    receiver.listen()
    receiver.configure(spark)
    broken = "/etc/sparkd/conf.d/60-broken.toml"
    digest = json.loads(spark.node.run("sparkd", "plan", "--json").stdout)["digest"]
    spark.node.write("/var/lib/sparkd/launch-history.json", json.dumps({"schema": 1, "failures": {digest: 5}}))
    try:
        refused(spark, 17)
        wait_for(lambda: receiver.events == [("needs-person", name)], 20, f"one message, not {receiver.messages}")
        spark.node.write(broken, "[notify\n")
        refused(spark, 78)
        wait_for(lambda: receiver.events == [("needs-person", name)] * 2, 20, f"another, not {receiver.messages}")
        assert ["17 and stays down" in str(one["text"]) for one in receiver.messages] == [True, False]
        assert ["60-broken.toml: is no TOML" in str(one["text"]) for one in receiver.messages] == [False, True]
        wait_for(lambda: spark.show("ActiveState", "sparkd-notify") == "inactive", 20, "the sender to end")
    finally:
        spark.node.run("rm", "-f", broken)
        receiver.forget(spark)
        receiver.hang_up()


@pytest.mark.whole
def test_systemd_sends_it_as_soon_as_the_receiver_is_back(spark: SparkdNode) -> None:
    receiver = Receiver(spark.node)
    receiver.configure(spark)
    spark.node.run("rm", "-f", RECEIVED)
    digest = json.loads(spark.node.run("sparkd", "plan", "--json").stdout)["digest"]
    spark.node.write("/var/lib/sparkd/launch-history.json", json.dumps({"schema": 1, "failures": {digest: 5}}))
    try:
        refused(spark, 17)
        wait_for(lambda: spark.show("SubState", "sparkd-notify") == "auto-restart", 20, "the sender to wait")
        receiver.listen()
        wait_for(lambda: len(receiver.events) == 1, 80, "the message")
        wait_for(lambda: spark.show("ActiveState", "sparkd-notify") == "inactive", 20, "the sender to end")
        receiver.hang_up()
        configure_late(spark)
        cursor = spark.cursor()
        refused(spark, 12)
        journal = spark.node.journal("sparkd-notify", f"--after-cursor={cursor}")
        print(f"after an end with 12, which systemd starts again: {journal!r}")
        assert len(receiver.events) == 1
    finally:
        receiver.forget(spark)
