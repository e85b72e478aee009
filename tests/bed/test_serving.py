"""One node, whole way: the unit is active once a completion works, and comes back from whatever happens to it."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from tests.bed import load, slow_prefill
from tests.bed.acts import EATER
from tests.bed.node import Node
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import CONFIGURATION, HEAD, SERVING_SECONDS, SparkdNode, complete
from tests.bed.victims import container_init, dockerd, main_of_engine, sparkd, worker
from tests.unit.commands import INTERRUPTIBLE

IMPATIENT = """
[supervise]
stall_seconds = 10
canary_seconds = 5
[readiness]
stall_seconds = 15
completion_timeout_seconds = 5
[observe]
listen = "0.0.0.0:29511"
token_file = "/etc/sparkd/observe.token"
"""
"""Limits that a test can wait for, and a page for other machines. The last tests have them, and none before these."""
SPAWNED = """\
schema: 1
name: tiny-spawned
extends: tiny-cpu
image:
  entrypoint: [python3, -m, vllm.entrypoints.cli.main, serve]
"""
"""vLLM without the launcher of the tests' image: each of its processes is an interpreter of its own."""
COMPILER = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'cicc', 0, 0, 0); time.sleep(30)"
"""By its name; longer than three times the stall limit, and some seconds until the request hangs."""
TOKEN = "0123456789abcdef" * 2
GRACE_SECONDS = 30.0
"""Default of engine.stop_grace_seconds."""


@pytest.fixture
def serving(spark: SparkdNode) -> SparkdNode:
    """Serving, with a ledger that has forgotten the faults of other tests."""
    if spark.node.init is None:
        spark.node.boot()
    if not spark.serves():
        spark.stop()
        spark.forget_failures()
        spark.start()
    return spark


def test_a_cold_start_blocks_until_a_completion_works(spark: SparkdNode) -> None:
    statuses: list[str] = []
    with spark.starting() as start:
        while start.poll() is None:
            active, status = spark.active(), spark.status_text()
            if active:
                start.wait(2)  # systemctl hears of it a moment later on a busy machine
            if status not in statuses:
                statuses.append(status)
            time.sleep(0.2)
    assert start.returncode == 0, spark.node.journal(HEAD)
    assert spark.active()
    assert complete(spark.node), "active, but no token"
    steps = {re.split(r"[,;]| \d", status)[0] for status in statuses if status.startswith("loading: ")}
    # Of ten steps a fast machine shows only those longer than the second between two reports: the imports, and one more
    # that the engine's log has named. tests/unit/engine/test_load_progress.py has all of them, of recorded logs.
    assert "loading: starting" in steps and len(steps) >= 2, statuses
    report = spark.report()
    assert report is not None
    assert report.engine.kv_cache_tokens == 524_288, "which the load has shown, for less than a second"
    wait_for(
        lambda: spark.status_text() == "serving: tiny on port 8000", 5, "STATUS= a second later, as between reports"
    )


def test_the_journal_has_the_engines_lines_and_sparkds_own(serving: SparkdNode) -> None:
    journal = serving.node.journal(HEAD)
    assert re.search(r"^engine\| \(EngineCore pid=\d+\) INFO .* Initializing a V1 LLM engine", journal, re.MULTILINE)
    assert re.search(r"^agent\.phase\.changed phase=serving", journal, re.MULTILINE)
    assert "GET /health" not in journal, "sparkd's own polls are no news"


def test_a_rank_has_fewer_rights_than_docker_gives_by_default(serving: SparkdNode) -> None:
    """The limit of processes is not seen here: a node of the bed has no control of pids, and docker leaves it out."""
    pid = serving.node.run("docker", "inspect", "--format", "{{.State.Pid}}", "sparkd-rank0").stdout.strip()
    status = dict(
        line.split(":\t", 1) for line in serving.node.read(f"/proc/{pid}/status").splitlines() if ":\t" in line
    )
    kept = {0: "CHOWN", 1: "DAC_OVERRIDE", 3: "FOWNER", 4: "FSETID", 5: "KILL", 6: "SETGID", 7: "SETUID"}
    bits = sum(1 << bit for bit in (*kept, 10))  # NET_BIND_SERVICE
    assert {name: int(status[name], 16) for name in ("CapEff", "CapBnd")} == {"CapEff": bits, "CapBnd": bits}
    assert status["NoNewPrivs"] == "1"


def test_status_says_serving_to_anybody(serving: SparkdNode) -> None:
    shown = serving.node.run(
        "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sparkd", "status", "--json"
    )
    report = json.loads(shown.stdout)
    assert (report["phase"], report["role"], report["rank"]) == ("serving", "head", 0)
    assert report["engine"]["kv_cache_tokens"] == 524_288
    read = "import urllib.request as u; a = u.urlopen('http://127.0.0.1:29511/'); print(a.headers, a.read().decode())"
    page = serving.node.run("python3", "-c", read).stdout
    assert "<h1>Serving</h1>" in page
    assert "default-src 'none'" in page


def test_status_shows_what_the_engine_does(serving: SparkdNode) -> None:
    def activity() -> tuple[float, ...]:
        report = serving.report()
        now = report.activity if report is not None else None
        figures = (now.running, now.output_tokens_per_second, now.kv_cache_use) if now is not None else ()
        return tuple(figure or 0 for figure in figures)

    def is_busy() -> bool:
        return min(activity(), default=0) > 0

    load.begin(serving.node)
    try:
        wait_for(is_busy, 60, "requests, tokens and the KV cache in the report")
        shown = serving.node.run("sparkd", "status").stdout
        busy = r"^activity +[\d,.]+ tokens/s out, .*\n +[1-9]\d* requests? running"
        assert re.search(busy, shown, re.MULTILINE), shown
    finally:
        load.end(serving.node)
    wait_for(lambda: activity()[:2] == (0, 0), 30, "an idle engine")


ENGINE_BENCH = Path(__file__).with_name("programs") / "engine_bench.py"
"""It does not compare the rate of one stream, whose events arrive together on two busy cores."""


def paired(spark: SparkdNode, runs: int) -> dict[str, float]:
    """Ratios of sparkd's figures to those of `vllm bench serve`, `runs` requests before and after and in between."""
    spark.node.put(ENGINE_BENCH, "/root/engine_bench.py")
    done = spark.node.run("python3", "-B", "/root/engine_bench.py", str(runs), "64", "384", check=False, timeout=240)
    assert done.returncode == 0, done.stderr + done.stdout
    figures: dict[str, tuple[float, float]] = json.loads(done.stdout)
    for name, (own, vllm) in figures.items():
        print(f"{name}: sparkd {own:.3f}, vllm bench serve {vllm:.3f}, {own / vllm:.3f}")
    return {name: own / vllm for name, (own, vllm) in figures.items()}


def test_smoke_finds_no_fault_in_a_random_model_and_its_whole_context(serving: SparkdNode) -> None:
    shown = serving.node.run("sparkd", "smoke", check=False).stdout
    print(shown)
    assert "bad outputs: 0" in shown
    assert "504 of 512 tokens in" in shown
    assert all(len(line) <= 80 for line in shown.splitlines()), shown
    for command, reason in (
        ("smoke", "only root can"),
        ("bench", "only root can"),
        ("history", "by root and its group"),
    ):
        words = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sparkd", command)
        refused = serving.node.run(*words, check=False)
        assert (refused.returncode, reason in refused.stderr, refused.stderr.count("sparkd: ")) == (2, True, 1), refused
    kept = history(serving)
    launch = kept["launches"][-1]
    assert [one["bad"] for one in kept["measured"] if one["launch"] == launch["id"]][-1:] == [0]
    assert (launch["recipe"], launch["kv_cache_tokens"], launch.get("end")) == ("tiny-cpu", 524_288, None)
    assert {"loading weights", "starting the API server"} <= launch["phases"].keys(), launch
    assert 0 < sum(launch["phases"].values()) <= launch["load_seconds"] + 2, launch
    assert launch["facts"]["versions"]["kernel"]
    shown = serving.node.run("stat", "--format=%a %U %G", "/var/lib/sparkd/history.db").stdout
    assert shown.strip() == "640 root root"


@pytest.mark.whole
def test_an_engine_that_compiles_nothing_is_warm_after_one_pass(serving: SparkdNode) -> None:
    done = serving.node.run("sparkd", "warm", check=False, timeout=240)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done
    assert re.search(
        r"^passes: 1, of [\d,]+ requests together; new files of kernels: 0, used for the first time: 0$",
        done.stdout,
        re.MULTILINE,
    )
    assert "nothing is to be done" in done.stdout


def history(spark: SparkdNode) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads(spark.node.run("sparkd", "history", "--json").stdout)
    return found


PLANTER = """
import json, sys
sys.path[:0] = ["/usr/lib/sparkd/app", "/usr/lib/sparkd/vendor"]
from msgspec import Raw, structs
from sparkd.agent.actions import history
from sparkd.base.host import Host
from sparkd.base.state.history import Bench, Launch
rows = history.read(Host().files)
launch = next(one for one in reversed(rows) if isinstance(one, Launch))
last = next(one for one in reversed(rows) if isinstance(one, Bench))
facts = structs.replace(launch.facts, versions={**launch.facts.versions, "kernel": "6.1-planted"})
before = structs.replace(launch, id="before", recipe="tiny-planted", facts=facts, end=None)
result = {**json.loads(bytes(last.figures)), "answer_tokens": 64}
for level in result["levels"]:
    level["output_tokens_per_second"] = {"median": 1e5, "low": 1e5, "high": 1e5}
for day in "123":
    result["made"] = f"2026-01-0{day}T10:00:00.000+00:00"
    figures = Raw(json.dumps(result).encode())
    history.write(Host().files, before, Bench(day, result["made"], "before", launch.recipe, figures))
"""
"""Writes three benches at 100,000 tokens a second, of a launch with another kernel."""


def test_bench_measures_what_the_engines_own_does_and_leaves_nothing(serving: SparkdNode) -> None:
    """Within the noise of a machine with other work: the row below has the medians."""
    assert any(all(0.5 < ratio < 2 for ratio in paired(serving, 2).values()) for _ in range(2))
    assert serving.containers() == ["sparkd-rank0"]
    lengths = ("--prompt", "64", "--answer", "64")
    # Of another length: with its own figure among the planted ones, a slow one would be no news.
    other = ("--prompt", "64", "--answer", "32", "--concurrency", "1", "--runs", "2", "--depth", "0")
    before = serving.node.run("sparkd", "bench", *other).stdout
    assert "slower since" not in before, before
    serving.node.run("python3", "-c", PLANTER)
    shown = serving.node.run("sparkd", "bench", *lengths, "--concurrency", "1,4", "--depth", "256").stdout
    print(shown)
    assert all(len(line) <= 80 for line in shown.splitlines() if "slower" not in line), shown
    assert re.search(r"^1 +[\d.,]+ +\S+ +- +\d\.\d\d ", shown, re.MULTILINE), "a ratio to the usual one"
    slower = r"^tiny-cpu, 1 at once: slower since .* tokens/s, 100000\.0 before; changed: kernel 6\.1-planted -> "
    assert re.search(slower, shown, re.MULTILINE), shown
    assert any("100000.0 before" in str(line) for line in history(serving)["slower"])
    deep = [int(found) for found in re.findall(r"^(2\d\d) +[\d,]+ ", shown, re.MULTILINE)]
    assert len(deep) == 1, shown
    stopped = interrupt_after_a_figure(serving.node, *lengths, "--concurrency", ",".join(["1"] * 16), "--answer", "200")
    assert (stopped.returncode, "\n1 " in stopped.stdout) == (130, True), stopped


def interrupt_after_a_figure(node: Node, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `sparkd bench`, and send it SIGINT once it has reported the figure of one request at once."""
    bench = node.entered(*INTERRUPTIBLE, "sparkd", "bench", *options, "--runs", "1")
    with subprocess.Popen(bench, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        progress = next(line for line in running.stderr if "1 request at once" in line)
        (process,) = node.found(r"sparkd bench .*--runs 1$")
        process.send(signal.SIGINT)
        shown, errors = running.communicate(timeout=30)
    return subprocess.CompletedProcess(bench, running.returncode, shown, progress + errors)


@pytest.mark.whole
def test_a_soak_finds_a_leak(serving: SparkdNode) -> None:
    serving.node.put(EATER, "/root/eater.py")
    serving.node.sh("setsid python3 /root/eater.py 0.02 4 >/dev/null 2>&1 &")
    try:
        words = ("sparkd", "bench", "--soak", "40s", "--concurrency", "1,2", "--answer", "64")
        done = serving.node.run(*words, check=False, timeout=90)
    finally:
        for process in serving.node.found(r"^python3 /root/eater\.py"):
            process.send(signal.SIGKILL)
    print(done.stdout, done.stderr)
    assert done.returncode == 13, done
    assert re.search(r"available memory shrinks by \d+\.\d GiB an hour; at this rate", done.stdout)
    assert re.search(r"^\d+ requests answered, .* 0 failed$", done.stdout, re.MULTILINE)


@pytest.mark.whole
def test_a_second_bench_is_refused_and_an_ended_one_prints_what_it_has(serving: SparkdNode) -> None:
    ones, depths = ",".join(["1"] * 16), ",".join(["240"] * 16)
    load = f"--concurrency {ones} --runs 1 --prompt 64 --answer 200 --depth {depths}"
    serving.node.sh(f"setsid sparkd bench {load} >/root/bench 2>&1 &")
    wait_for(lambda: "1 request at once" in serving.node.read("/root/bench"), 60, "the first figure of sparkd bench")
    second = serving.node.run("sparkd", "bench", check=False)
    assert (second.returncode, "`tune-recipe` or `use --image` is under way" in second.stderr) == (2, True), second
    for process in serving.node.found(r"sparkd bench --concurrency"):
        process.send(signal.SIGTERM)
    wait_for(lambda: not serving.node.found(r"sparkd bench --concurrency"), 30, "the end of sparkd bench")
    assert "\n1 " in serving.node.sh("cat /root/bench").stdout, "the result so far"


@pytest.mark.whole
def test_bench_agrees_with_the_engines_own_within_five_percent(serving: SparkdNode) -> None:
    """The median of five pairs of runs that take turns: what else runs on the machine moves a single one more."""
    pairs = [paired(serving, 10) for _ in range(5)]
    for name in pairs[0]:
        assert median(ratios[name] for ratios in pairs) == pytest.approx(1, abs=0.05), name


def test_a_second_owner_changes_nothing_and_learns_who_owns_the_node(serving: SparkdNode) -> None:
    before = serving.snapshot()
    by_hand = serving.node.run("sparkd", "preflight", check=False)
    assert by_hand.returncode == 10
    assert f"pid {serving.main_pid()} (sparkd run --role head)" in by_hand.stderr + by_hand.stdout
    assert serving.snapshot() == before
    assert serving.serves()


@pytest.mark.whole
def test_starting_the_wrong_unit_disturbs_nothing(serving: SparkdNode) -> None:
    """For every change the units of a pair are, in `test_pair`."""
    before = serving.snapshot()
    refused = serving.node.run("systemctl", "start", "sparkd-worker", check=False)
    assert refused.returncode != 0
    wait_for(lambda: serving.show("ActiveState", "sparkd-worker") == "failed", 20, "the worker unit to fail")
    assert serving.exit_status("sparkd-worker") == 78
    assert "systemctl enable --now sparkd-head" in serving.node.journal("sparkd-worker")
    time.sleep(3)
    assert serving.show("NRestarts", "sparkd-worker") == "0", "no restart loop for 78"
    assert serving.snapshot() == before
    serving.node.run("systemctl", "reset-failed", "sparkd-worker")
    assert serving.serves()


CHECKOUT = "/root/checkout"
SETTINGS = "find /etc /usr/lib/systemd -type f -exec sha256sum {} + | sort"


def test_an_owners_acceptance_test_breaks_the_endpoint_changes_no_setting_and_leaves_it_serving(
    serving: SparkdNode,
) -> None:
    serving.forget_failures()
    serving.node.put(Path(__file__).parents[1] / "gpu", f"{CHECKOUT}/tests/gpu")
    begin = f"cd {CHECKOUT} && exec python3 -m tests.gpu owner"
    before, settings = serving.snapshot(), serving.node.sh(SETTINGS).stdout
    unconfirmed = serving.node.sh(begin, check=False)
    assert (unconfirmed.returncode, "away for three loads" in unconfirmed.stdout) == (2, True), unconfirmed
    assert serving.snapshot() == before
    cursor = serving.cursor()
    done = serving.node.sh(f"{begin} --yes", check=False, timeout=2 * SERVING_SECONDS)
    print(done.stdout)
    assert done.returncode == 0, done
    assert serving.node.sh(SETTINGS).stdout == settings
    table = json.loads(serving.node.read(f"{CHECKOUT}/build/gpu/results.json"))
    assert table["machine"]["recipe"] == "tiny-cpu"
    rows = {row["name"].strip("`"): row["measured"] for row in table["rows"] if row["good"]}
    commands = ("preflight --dry-run", "drill agent --yes", "preflight --deep", "drill rank --yes", "drill core --yes")
    expected = {"READY, warm caches", "at the end", f"systemctl reload {HEAD}", f"systemctl stop {HEAD}"}
    assert set(rows) == expected.union(f"sparkd {command}" for command in (*commands, "smoke", "bench"))
    assert re.search(r"left: 0 containers, 0 of [1-9]\d* segments$", rows[f"systemctl stop {HEAD}"]), rows
    (core,) = re.findall(r"; core \[(\d+)\] before$", rows["sparkd drill core --yes"])
    check_drill(serving.node.read(f"{CHECKOUT}/build/gpu/core.txt"), core)
    assert serving.serves()
    assert serving.journal_since(cursor).count("agent.run.failed code=13 cause=killed-from-outside ") == 2
    assert (serving.containers(), serving.leftovers()) == (["sparkd-rank0"], [])


def check_drill(output: str, core: str) -> None:
    """A drill kills the core, which has this pid, and says when and why it serves again."""
    assert re.findall(r"VLLM::EngineCore, pid (\d+)", output) == [core], output
    steps = re.findall(r"^ +([\d.]+) s  (\w[\w-]*)", output, re.MULTILINE)
    assert [float(seconds) for seconds, _ in steps] == sorted(float(seconds) for seconds, _ in steps)
    assert [step for _, step in steps][:1] + [step for _, step in steps][-1:] == ["killed", "serving"]
    assert re.search(r"^serves again after [\d.]+ s; the load before took [\d.]+ s$", output, re.MULTILINE), output
    assert re.search(r"^reported cause: .*killed by signal 9 from outside.* \(exit 13\)$", output, re.MULTILINE), output
    assert output.endswith("nothing is to be done\n[0]\n")


# For every change the worker process is killed in the table of two nodes, and the main process for their messages.
VICTIMS = [*(pytest.param(one, marks=pytest.mark.whole) for one in (main_of_engine, worker)), sparkd, dockerd]


@pytest.mark.parametrize("victim", VICTIMS)
def test_whatever_is_killed_the_endpoint_comes_back_by_itself(
    serving: SparkdNode, victim: Callable[[SparkdNode], int]
) -> None:
    serving.forget_failures()
    cursor, old = serving.cursor(), serving.main_pid()
    serving.node.kill(victim(serving), signal.SIGKILL)
    wait_for(lambda: serving.main_pid() not in (0, old), 60, "systemd to start sparkd again")
    serving.await_serving()
    journal = serving.journal_since(cursor)
    if victim is not sparkd:
        cause = "docker-restarted" if victim is dockerd else "killed-from-outside"
        assert re.search(rf"agent\.run\.failed code=13 cause={cause} ", journal), journal
    assert serving.containers() == ["sparkd-rank0"]
    assert serving.leftovers() == []


@pytest.mark.alone
def test_a_killed_container_is_noticed_within_a_second_and_the_endpoint_comes_back(serving: SparkdNode) -> None:
    serving.forget_failures()
    cursor, old, victim = serving.cursor(), serving.main_pid(), container_init(serving)
    killed_at = time.time()
    serving.node.kill(victim, signal.SIGKILL)
    wait_for(lambda: serving.main_pid() not in (0, old), 60, "systemd to start sparkd again")
    stamps = serving.node.run(
        "journalctl", "-u", HEAD, f"--after-cursor={cursor}", "-o", "json", "--output-fields=MESSAGE"
    ).stdout
    lines = [json.loads(line) for line in stamps.splitlines()]
    noticed = [line for line in lines if "agent.phase.changed phase=failed" in line["MESSAGE"]]
    assert int(noticed[0]["__REALTIME_TIMESTAMP"]) / 1e6 - killed_at < 1.0
    failed = [line for line in lines if "agent.run.failed" in line["MESSAGE"]]
    assert int(failed[0]["__REALTIME_TIMESTAMP"]) / 1e6 - killed_at < 4.0, "who did it is looked for, in three seconds"
    serving.await_serving()
    restarts = json.loads(serving.node.run("sparkd", "status", "--json").stdout)["restarts"]
    causes = {restart["cause"]: restart["count"] for restart in restarts}
    assert causes == {"killed-from-outside": 1}, serving.journal_since(cursor)
    assert "code=13 cause=killed-from-outside " in failed[0]["MESSAGE"]
    assert serving.containers() == ["sparkd-rank0"]
    assert serving.leftovers() == []


def test_docker_stopped_and_started_again_as_a_package_upgrade_does(serving: SparkdNode) -> None:
    serving.forget_failures()
    serving.node.run("systemctl", "stop", "docker.socket", "docker.service")
    wait_for(lambda: serving.status_text().startswith("awaiting-docker"), 60, "sparkd to wait for docker")
    time.sleep(5)
    assert serving.status_text().startswith("awaiting-docker")
    assert serving.node.run("systemctl", "is-active", "docker", check=False).stdout.strip() == "inactive", (
        "sparkd must not start docker"
    )
    serving.node.run("systemctl", "start", "docker")
    serving.await_serving()


@pytest.mark.whole
def test_docker_restarted(serving: SparkdNode) -> None:
    """For every change it is in the table of two nodes."""
    serving.forget_failures()
    serving.node.run("systemctl", "restart", "docker")
    serving.await_serving()
    assert serving.leftovers() == []


def test_reboot_and_power_cut_with_the_unit_enabled(serving: SparkdNode) -> None:
    serving.node.run("systemctl", "enable", HEAD)
    try:
        serving.node.reboot()
        serving.await_serving()
        serving.node.powercut(lose_unsynced=True)
        serving.await_serving()
        assert "docker" not in serving.node.run("systemctl", "--failed", "--no-legend").stdout
        assert json.loads(serving.node.read("/var/lib/sparkd/launch-history.json"))["failures"] == {}, "nobody's fault"
    finally:
        serving.node.run("systemctl", "disable", HEAD)


@pytest.mark.whole
def test_a_process_that_is_stopped_during_a_request_is_given_up_soon_and_its_stack_is_kept(serving: SparkdNode) -> None:
    """For every change one is stopped in `test_pair` and below."""
    cursor, old, stopped = serving.cursor(), serving.main_pid(), worker(serving)
    load.begin(serving.node)
    try:
        serving.node.kill(stopped, signal.SIGSTOP)
        began = time.monotonic()
        line = given_up(serving, cursor, old)
        took = time.monotonic() - began
    finally:
        load.end(serving.node)
    print(f"given up after {took:.1f} s: {line}")
    assert took <= 45
    assert re.search(
        rf"code=15 cause=engine-stalled .*its process {stopped} \(VLLM::\S+\) is stopped \(state T\)", line
    )
    assert re.search(rf"it was in \S+ \(.+:\d+\) of process {stopped} ", line)
    serving.await_serving()
    kept = serving.node.run("sh", "-c", "cat /var/lib/sparkd/stacks/*.txt").stdout
    assert f"== process {stopped} " in kept
    assert "MainThread" in kept


def test_a_stop_while_serving_leaves_nothing(serving: SparkdNode) -> None:
    begun = time.monotonic()
    serving.stop()
    assert time.monotonic() - begun < GRACE_SECONDS
    assert serving.show("ActiveState") == "inactive"
    assert serving.containers() == []
    assert serving.leftovers() == []
    assert serving.node.run("sparkd", "status", check=False).returncode == 21
    launch = [one for one in history(serving)["launches"] if one["recipe"] == "tiny-cpu"][-1]
    assert (launch["end"]["cause"], launch["served_seconds"] > 0) == ("stop-requested", True)
    table = serving.node.run("sparkd", "history").stdout
    print(table)
    newest = next(line for line in table.splitlines() if " tiny-cpu " in line)
    assert re.fullmatch(r"\S+ \S+ +tiny-cpu +\d+ s +\S+ +\S+ +stop-requested", newest), table
    assert all(len(line) <= 80 for line in table.splitlines() if "slower" not in line), table


STARTING = ("launching", "loading: starting the engine core")


@pytest.mark.parametrize("at", [*STARTING, pytest.param("loading: starting the API server", marks=pytest.mark.whole)])
def test_a_stop_during_the_load_leaves_nothing_and_does_not_hang(spark: SparkdNode, at: str) -> None:
    spark.stop()
    spark.forget_failures()
    with spark.starting() as start:
        wait_for(lambda: spark.status_text().startswith(at) or start.poll() is not None, 120, at)
        begun = time.monotonic()
        spark.stop()
        took = time.monotonic() - begun
    assert took < GRACE_SECONDS, f"{took:.1f} s"
    assert spark.show("ActiveState") == "inactive"
    assert spark.containers() == []
    assert spark.leftovers() == []


def test_an_engine_that_spawns_its_processes_as_vllm_does(spark: SparkdNode) -> None:
    spark.node.write("/etc/sparkd/recipes/tiny-spawned.yaml", SPAWNED)
    spark.configure(CONFIGURATION.replace("tiny-cpu", "tiny-spawned"))
    spark.stop()
    spark.forget_failures()
    try:
        spark.start()
        assert spark.serves()
        cursor, old = spark.cursor(), spark.main_pid()
        spark.node.kill(worker(spark), signal.SIGKILL)
        wait_for(lambda: spark.main_pid() not in (0, old), 60, "systemd to start sparkd again")
        assert re.search(r"agent\.run\.failed code=13 ", spark.journal_since(cursor))
        spark.stop()
        assert spark.leftovers() == []
    finally:
        spark.configure()


@pytest.mark.whole
def test_a_load_that_takes_the_machine_down_three_times_is_left_to_a_person(spark: SparkdNode) -> None:
    if spark.node.init is None:
        spark.node.boot()
    spark.configure()
    spark.stop()
    spark.forget_failures()
    spark.node.run("systemctl", "enable", HEAD)
    try:
        spark.node.run("sync")  # what was configured and enabled is not sparkd's to keep
        spark.start_soon()
        for _ in range(3):
            wait_for(lambda: spark.status_text().startswith("loading"), 120, "the load to begin")
            spark.node.powercut(lose_unsynced=True, stay_off=True)
            spark.node.power_on()
            spark.node.wait_booted()
        wait_for(lambda: spark.show("ActiveState") == "failed", 60, "sparkd to give up")
        assert (spark.exit_status(), spark.show("NRestarts")) == (17, "0")
        failures = [
            line for line in spark.node.journal(HEAD, "--boot").splitlines() if line.startswith("agent.run.failed")
        ]
        assert len(failures) == 1, failures
        assert "last-boot: the last 3 boots ended without a shutdown while this plan was loading" in failures[0]
        assert "systemctl start sparkd-head" in failures[0]
        spark.start()
        assert spark.serves(), "by hand it begins at zero"
    finally:
        spark.node.run("systemctl", "disable", HEAD)


def configure_impatient(spark: SparkdNode) -> None:
    spark.node.run("sh", "-c", f"umask 077; echo {TOKEN} >/etc/sparkd/observe.token")
    spark.configure(CONFIGURATION + IMPATIENT)


def test_a_load_that_hangs_names_its_step_and_its_threads_and_the_next_one_serves(spark: SparkdNode) -> None:
    spark.stop()
    spark.forget_failures()
    configure_impatient(spark)
    cursor = spark.cursor()
    spark.start_soon()
    wait_for(lambda: spark.node.pids("^VLLM::EngineCore"), 120, "the engine core")
    old = spark.main_pid()
    for process in (*spark.rank(), *spark.rank()):  # one that was made meanwhile too
        process.send(signal.SIGSTOP)
    wait_for(lambda: re.search(r"; nothing has moved for \d+ s$", spark.status_text()), 20, "STATUS= to show it")
    line = given_up(spark, cursor, old)
    assert "code=12 cause=load-stalled" in line
    pattern = (
        rf"rank 0 on {spark.node.name}, [a-z ]+, has stood still for 1\d s; its threads: \d+ of \S+ in do_signal_stop"
    )
    assert re.search(pattern, line), line
    spark.await_serving()


@pytest.fixture
def impatient(spark: SparkdNode) -> SparkdNode:
    """Serving with these limits, as the row before leaves it."""
    if IMPATIENT not in spark.node.read("/etc/sparkd/sparkd.toml") or not spark.serves():
        spark.stop()
        spark.forget_failures()
        configure_impatient(spark)
        spark.start()
    return spark


def given_up(spark: SparkdNode, cursor: str, old: int) -> str:
    """The line that says why, once the unit has been started again."""
    wait_for(lambda: spark.main_pid() not in (0, old), 60, "sparkd to give the engine up")
    return next(line for line in spark.journal_since(cursor).splitlines() if line.startswith("agent.run.failed"))


def test_the_page_is_read_from_another_machine_by_the_token_alone(impatient: SparkdNode) -> None:
    node, cursor, bearer = impatient.node, impatient.cursor(), {"Authorization": f"Bearer {TOKEN}"}
    assert node.http(29511).status == 401
    assert node.http(29511, "/readyz").body == "serving\n"
    assert "<h1>Serving</h1>" in node.http(29511, headers=bearer).body
    node.run("chmod", "644", "/etc/sparkd/observe.token")
    # The file is read again half a second after it was.
    wait_for(lambda: node.http(29511, headers=bearer).status == 401, 5, "the file that others may read is refused")
    hint = "chmod 600 /etc/sparkd/observe.token"
    wait_for(lambda: hint in impatient.journal_since(cursor), 5, "the line that says what to do")
    node.run("chmod", "600", "/etc/sparkd/observe.token")

    def metrics() -> str:
        return node.http(29511, "/metrics", headers=bearer).body

    wait_for(lambda: "\nsparkd_probe_seconds " in metrics(), 20, "the first figures of the engine's health")
    page = metrics()
    assert 'sparkd_memory_guard{state="watching"} 1.0' in page
    for name in ("memory_floor_bytes", "canaries_total", "launches_total", 'phase_time_seconds_total{phase="loading"}'):
        assert f"\nsparkd_{name} " in page
    assert TOKEN not in node.journal(HEAD)


def test_an_engine_that_hangs_while_idle_is_found_by_the_canary(impatient: SparkdNode) -> None:
    cursor, old, stopped = impatient.cursor(), impatient.main_pid(), worker(impatient)
    impatient.node.kill(stopped, signal.SIGSTOP)
    wait_for(lambda: impatient.status_text().startswith("degraded: a canary completion failed"), 60, "the canary")
    line = given_up(impatient, cursor, old)
    assert "code=15" in line
    assert re.search(rf"it was in \S+ \(.+:\d+\) of process {stopped} ", line), line
    impatient.await_serving()
    kept = impatient.node.run("sh", "-c", "cat /var/lib/sparkd/stacks/*.txt").stdout
    assert f"== process {stopped} " in kept
    assert "MainThread" in kept


@pytest.mark.whole
def test_an_engine_that_hangs_under_a_request_is_a_stall_once_no_compiler_runs(impatient: SparkdNode) -> None:
    cursor, old = impatient.cursor(), impatient.main_pid()

    def compilers() -> int:
        report = impatient.report()
        return report.engine.compilers if report is not None else 0

    impatient.node.run("docker", "exec", "--detach", "sparkd-rank0", "python3", "-c", COMPILER)
    wait_for(lambda: compilers() == 1, 20, "the compiler in the container")
    load.begin(impatient.node)
    try:
        impatient.node.kill(worker(impatient), signal.SIGSTOP)
        wait_for(lambda: compilers() == 0, 60, "the end of the compiler")
        assert impatient.main_pid() == old, "given up while a compiler ran"
        end = given_up(impatient, cursor, old)
        assert re.search(r"code=15 .*(?:requests run and no token came for \d+ s|is stopped \(state T\) for 20 s)", end)
    finally:
        load.end(impatient.node)  # or the next engine would meet it too, and is to be idle
        impatient.stop()


@pytest.mark.whole
def test_a_prompt_that_takes_longer_than_the_limit_is_no_stall_while_its_pieces_end(spark: SparkdNode) -> None:
    """By the counters of a real vLLM, which are of a piece's end: tokens count at the prompt's."""
    spark.stop()
    spark.forget_failures()
    slow_prefill.write(spark, "tiny-cpu", seconds=1.6)
    spark.configure(CONFIGURATION.replace("tiny-cpu", "slow") + IMPATIENT)
    spark.start()
    cursor, old = spark.cursor(), spark.main_pid()
    began = time.monotonic()
    answer = spark.node.post(
        8000, "/v1/completions", {"model": "tiny", "prompt": slow_prefill.prompt(), "max_tokens": 1}, 90
    )
    took = time.monotonic() - began
    print(f"answered after {took:.1f} s")
    assert (answer.status, spark.main_pid()) == (200, old), answer.body
    assert took > 1.5 * 10, "longer than the limit"
    assert "phase=degraded" not in spark.journal_since(cursor)
