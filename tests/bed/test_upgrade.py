"""The package changed under a serving agent: nothing that it may need later is still to be read from there."""

import signal
from collections.abc import Iterator

import pytest
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import HEAD, SparkdNode


@pytest.fixture
def serving(spark: SparkdNode) -> SparkdNode:
    if not spark.serves():
        spark.forget_failures()
        spark.start()
    return spark


@pytest.fixture
def without_files(serving: SparkdNode) -> Iterator[SparkdNode]:
    """Serving, while the program and its libraries are gone from the disk."""
    serving.node.run("mv", "/usr/lib/sparkd", "/usr/lib/sparkd.away")
    yield serving
    serving.node.sh("test -d /usr/lib/sparkd || mv /usr/lib/sparkd.away /usr/lib/sparkd")


def agent_log(spark: SparkdNode, agent: int) -> str:
    """The log of this one agent: not its engine, nor `sparkd sweep` after it, which can't run without its files."""
    lines = spark.node.run("journalctl", "--boot", "--no-pager", "--output=cat", f"_PID={agent}").stdout.splitlines()
    return "\n".join(line for line in lines if not line.startswith("engine| "))


def test_an_upgrade_leaves_the_agent_and_its_engine_alone(serving: SparkdNode) -> None:
    agent, containers = serving.main_pid(), serving.containers()
    serving.node.run("dpkg", "--install", *serving.node.sh("ls /root/sparkd_*.deb").stdout.split(), timeout=120)
    assert serving.serves()
    assert (serving.main_pid(), serving.containers()) == (agent, containers)


def test_a_reload_exchanges_the_agent_for_the_new_program_and_leaves_the_engine(serving: SparkdNode) -> None:
    """Whose plans are others."""
    agent, containers, cursor = serving.main_pid(), serving.containers(), serving.cursor()
    app = "/usr/lib/sparkd/app/sparkd"
    serving.node.sh(f"sed -i 's/^PLAN_SCHEMA = .*/PLAN_SCHEMA = 99/' {app}/base/plan/model.py")
    serving.node.sh(f"sed -i 's/^__version__ = .*/__version__ = \"99.0\"/' {app}/__init__.py")
    serving.node.sh("find /usr/lib/sparkd -name __pycache__ -prune -exec rm -r {} +")
    try:
        done = serving.node.run("systemctl", "reload", serving.unit, timeout=60)
        assert not done.stderr
        report = serving.report()
        assert report is not None
        assert (report.version, report.phase.value, report.pid) == ("99.0", "serving", agent)
        assert (serving.main_pid(), serving.containers(), serving.active()) == (agent, containers, True)
        assert serving.serves()
        journal = serving.journal_since(cursor)
        assert "became sparkd 99.0; the engine served on" in journal, journal
    finally:
        package = serving.node.sh("ls /root/sparkd_*.deb").stdout.split()
        serving.node.run("dpkg", "--install", *package, timeout=120)
    serving.node.run("systemctl", "reload", serving.unit, timeout=60)
    assert (serving.main_pid(), serving.containers()) == (agent, containers)


def test_a_reload_that_could_not_work_is_refused_and_changes_nothing(serving: SparkdNode) -> None:
    agent, kept = serving.main_pid(), "/run/sparkd/private/rank-plan.json"
    serving.node.run("mv", kept, "/run/rank-plan.json")
    refused = serving.node.run("systemctl", "reload", serving.unit, check=False)
    assert refused.returncode != 0
    assert "nothing has changed" in serving.node.journal(serving.unit, "--lines=5")
    serving.node.run("mv", "/run/rank-plan.json", kept)
    assert (serving.main_pid(), serving.active(), serving.phase()) == (agent, True, "serving")


def crash(spark: SparkdNode) -> None:
    old = spark.main_pid()
    spark.node.kill(old, signal.SIGKILL)
    wait_for(lambda: spark.main_pid() not in (0, old) and spark.active(), 60, "systemd to start sparkd again")


def test_a_crash_beside_an_edit_costs_no_load_and_a_third_one_ends_the_engine(serving: SparkdNode) -> None:
    node, containers, before = serving.node, container_ids(serving), serving.node.read("/etc/sparkd/sparkd.toml")
    node.write("/etc/sparkd/sparkd.toml", "[engine\nthis is no TOML")
    crash(serving)
    assert container_ids(serving) == containers
    shown = node.run("sparkd", "status", check=False).stdout
    assert f"sudo systemctl restart {serving.unit}" in shown, shown
    node.write("/etc/sparkd/sparkd.toml", before)
    crash(serving)
    assert (container_ids(serving), serving.serves()) == (containers, True)
    swept = node.run("sparkd", "sweep").stdout
    assert not swept, "its agent lives"
    cursor, old = serving.cursor(), serving.main_pid()
    node.kill(old, signal.SIGKILL)
    wait_for(lambda: serving.main_pid() not in (0, old), 60, "systemd to start sparkd again")
    serving.await_serving()
    assert container_ids(serving) != containers
    assert "engine.rank.refused" in serving.journal_since(cursor)
    assert list(serving.failures().values()) == [1], "the crash counts"
    serving.forget_failures()


def container_ids(spark: SparkdNode) -> list[str]:
    return spark.node.run("docker", "ps", "--no-trunc", "--quiet").stdout.split()


@pytest.mark.whole
def test_a_stop_in_the_second_after_a_crash_ends_the_engine_in_a_minute(serving: SparkdNode) -> None:
    rank = serving.rank()
    serving.node.kill(serving.main_pid(), signal.SIGKILL)
    wait_for(lambda: serving.show("SubState") == "auto-restart", 10, "the wait of a second")
    by_hand = serving.node.run("sparkd", "sweep").stdout
    serving.stop()
    wait_for(lambda: not any(one.alive for one in rank), 75, "the lease to end")
    assert "left alone" in by_hand or not by_hand
    serving.node.run("sparkd", "sweep")
    assert serving.leftovers() == []


def test_a_stop_needs_nothing_of_the_files(without_files: SparkdNode) -> None:
    agent = without_files.main_pid()
    without_files.stop()
    assert without_files.containers() == []
    assert without_files.leftovers() == []
    assert "Traceback" not in agent_log(without_files, agent)


def test_an_end_is_reported_without_the_files(without_files: SparkdNode) -> None:
    agent = without_files.main_pid()
    # Only this one agent is queried: the next could not start.
    without_files.node.write(f"/run/systemd/system/{HEAD}.service.d/once.conf", "[Service]\nRestart=no\n")
    without_files.node.run("systemctl", "daemon-reload")
    try:
        without_files.node.kill(without_files.pid("vllm serve"), signal.SIGKILL)
        wait_for(lambda: without_files.show("ActiveState") == "failed", 60, "the unit to fail")
        assert without_files.exit_status() == 13, agent_log(without_files, agent)
        assert "Traceback" not in agent_log(without_files, agent)
    finally:
        without_files.node.run("rm", "-r", f"/run/systemd/system/{HEAD}.service.d")
        without_files.node.run("systemctl", "daemon-reload")
