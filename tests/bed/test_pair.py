"""Two nodes are one engine: they come up in any order, agree, fall together, and come back by themselves."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.bed import acts, crashes, trial
from tests.bed.acts import EATER
from tests.bed.conftest import MakeNode
from tests.bed.faults import (
    FAULTS,
    HANGING_LOADS,
    NOISES,
    OUT_OF_MEMORY,
    WHILE_LOADING,
    Fault,
    Noise,
    killed_worker,
)
from tests.bed.messages import Receiver
from tests.bed.node import Node
from tests.bed.pair import LOAD_STALL_SECONDS, Cluster, new_key
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import HEAD, SERVING_SECONDS, WORKER, SparkdNode, complete
from tests.bed.trial import Result
from tests.unit.lib.test_redaction import CARRIERS, SECRETS

from sparkd.base.cluster.auth import FRESH_SECONDS
from sparkd.base.status.model import parse

Record = Callable[[Result], None]
FABRIC_LATE_SECONDS = 30.0
HEAD_LATE_SECONDS = 60.0
NOT_IN_A_TREE = {"weights"}
"""Checks that need what is not copied."""
STANDS_BY_SECONDS = 60.0
SILENT_DNS = """\
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server, open("/run/queries", "a") as queries:
    server.bind(("127.0.0.1", 53)) # the nameserver of each node
    while True:
        print(server.recv(4096), file=queries, flush=True)
"""


@pytest.fixture(scope="module")
def cluster(make_node: MakeNode, package: Path) -> Cluster:
    """Installed and configured, nothing started."""
    made = Cluster.of([make_node("trixie", package) for _ in range(2)])
    made.configure()
    receiver = Receiver(made.head.node)
    receiver.listen()
    receiver.configure(*made.members)
    return made


@pytest.fixture(scope="module")
def start_seconds(cluster: Cluster) -> float:
    """How long the pair takes from nothing to a completion, worker first."""
    cluster.start(cluster.worker)
    wait_for(cluster.worker.active, STANDS_BY_SECONDS, "the worker to stand by")
    assert cluster.worker.phase() == "awaiting-peers", "no rank runs before the head has called"
    cluster.start(cluster.head)
    return cluster.await_serving()


@pytest.fixture
def serving(cluster: Cluster, start_seconds: float) -> Cluster:
    """A pair that serves, after any fault."""
    cluster.settle()
    return cluster


def fabric_test(cluster: Cluster) -> list[subprocess.CompletedProcess[str]]:
    """Of both nodes, the worker's first, which waits for the head."""
    argv = ("sparkd", "fabric", "test", "--json")
    with subprocess.Popen(cluster.worker.node.entered(*argv), stdout=subprocess.PIPE, text=True) as worker:
        head = cluster.head.node.run(*argv, check=False)
        shown = worker.communicate(timeout=30)[0]
    return [head, subprocess.CompletedProcess(argv, worker.returncode, shown)]


@pytest.mark.whole
def test_a_slow_fabric_is_found_by_both_nodes_while_nothing_serves(cluster: Cluster) -> None:
    """Here a cable of 10 Gb/s, as its cards say, which carries that or is limited by the method on busy cores."""
    good = fabric_test(cluster)
    assert [run.returncode for run in good] == [0, 0], good
    found = [json.loads(run.stdout) for run in good]
    assert found[0] == found[1]
    (pair,), (verdict,) = found[0]["pairs"], found[0]["verdicts"]
    addresses = [member.node.fabric_address for member in cluster.members]
    assert [pair["own"]["address"], pair["other"]["address"]] == addresses
    assert verdict["outcome"] in ("ok", "unknown")
    assert min(pair["measured"]["sent_gbps"], pair["measured"]["received_gbps"]) > 1, pair
    cluster.worker.node.fabric.slow(50)
    slowed = fabric_test(cluster)
    cluster.worker.node.fabric.clear()
    assert [run.returncode for run in slowed] == [10, 10], slowed
    (pair,), (verdict,) = (json.loads(slowed[0].stdout)[key] for key in ("pairs", "verdicts"))
    assert verdict["outcome"] == "slow", pair
    assert max(pair["measured"]["sent_gbps"], pair["measured"]["received_gbps"]) < 0.6, pair


@pytest.mark.whole
def test_the_guard_of_a_worker_ends_its_rank_which_counts_there_alone_and_both_come_back(
    cluster: Cluster, start_seconds: float, record: Record
) -> None:
    """The first, as `serving` has the ledgers forget."""
    result = trial.run(OUT_OF_MEMORY, cluster)
    record(result)
    assert not result.complaints, "\n".join(result.complaints)


def test_the_pair_serves_when_the_worker_is_started_first(serving: Cluster) -> None:
    for rank, member in enumerate(serving.members):
        report = member.report()
        assert report is not None
        assert (report.phase.value, report.rank) == ("serving", rank)
        assert member.containers() == [f"sparkd-rank{rank}"]
    assert complete(serving.head.node)


@pytest.mark.whole
def test_a_dns_server_that_keeps_silent_gets_no_query_for_the_nodes_when_their_ranks_meet(serving: Cluster) -> None:
    serving.stop()
    nodes = [member.node for member in serving.members]
    for node in nodes:
        node.write("/run/silent-dns.py", SILENT_DNS)
        node.run("systemd-run", "--unit=silent-dns", "python3", "/run/silent-dns.py")
        node.sh("until test -e /run/queries; do sleep 0.1; done", timeout=10)
    try:
        serving.start()
        serving.await_serving()
        for node in nodes:
            assert "in-addr" not in node.read("/run/queries")
            named = node.sh("docker exec $(docker ps -q) getent hosts ::ffff:10.0.0.2")
            assert named.stdout.split()[-1] == "sparkd-rank1"
            own = node.sh("docker exec $(docker ps -q) cat /etc/hosts").stdout
            assert own.startswith(node.read("/etc/hosts")), "the node's own names stay"
    finally:
        for node in nodes:
            node.sh("systemctl stop silent-dns; rm /run/queries")


def test_a_pairs_loss_and_its_return_are_one_message_each(serving: Cluster, record: Record) -> None:
    """From the next start on, the nodes send none."""
    receiver, head = Receiver(serving.head.node), serving.head.node.name
    if (before := len(receiver.events)) > 1:  # more than three changes within ten minutes would be a summary
        serving.stop()
        for member in serving.members:
            member.node.run("rm", "-f", "/var/lib/sparkd/notify.json")
        serving.start()
        serving.await_serving()
        wait_for(lambda: len(receiver.events) > before, 20, "the message of this start")
        serving.settle()  # again: the end of a launch that the ledgers have would be followed by a pause
    wait_for(lambda: receiver.events[-1:] == [("serving", head)], 20, f"a first message, not {receiver.messages}")
    count = len(receiver.events)
    result = trial.run(killed_worker(acts.HEAD_SIDE), serving)
    record(result)
    assert not result.complaints, "\n".join(result.complaints)
    expected = [("lost", head), ("serving", head)]
    wait_for(lambda: receiver.events[count:] == expected, 20, f"{expected}, not {receiver.messages[count:]}")
    receiver.forget(*serving.members)
    receiver.hang_up()


def test_the_logs_of_both_nodes_are_one(serving: Cluster) -> None:
    """After the loss above. A line that comes later is followed, from the other node too."""
    head, worker = (member.node for member in serving.members)
    shown = head.run("sparkd", "logs", "--since=30m", "--json")
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    assert not shown.stderr
    assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)
    assert {(line["node"], line["engine"]) for line in lines} == {
        (name, engine) for name in (head.name, f"{worker.name} ({worker.fabric_address})") for engine in (True, False)
    }
    failed = [line for line in lines if line["text"].startswith("agent.run.failed")]
    assert failed and failed[0]["node"] in (head.name, f"{worker.name} ({worker.fabric_address})")
    assert any(line["first_failure"] for line in lines[: lines.index(failed[0]) + 1])
    assert {
        line["level"]
        for line in map(json.loads, head.run("sparkd", "logs", "--json", "--level=error").stdout.splitlines())
    } == {"error"}
    plain = worker.run("sparkd", "logs", "--since=30m", "--engine").stdout.splitlines()
    assert plain and all("engine| " in line or line.lstrip().startswith("^ ") for line in plain)
    output = "/root/followed"
    worker.sh(f"setsid timeout 60 sparkd logs --follow --since=0s > {output} 2>&1 &")
    line = "a line of the head's engine, on the worker"
    wait_for(lambda: complete(head) and "POST /v1/" in worker.read(output), 40, line)
    for process in worker.found(r"^timeout 60 sparkd logs"):
        process.send(signal.SIGTERM)


def test_a_capture_has_what_a_helper_needs_and_nothing_secret(serving: Cluster, tmp_path: Path) -> None:
    """After the same loss. Secrets of many kinds lie where it looks, and clients send some."""
    head, worker = (member.node for member in serving.members)
    planted = "\n".join(f"# {CARRIERS[how].format(SECRETS[kind])}" for how in CARRIERS for kind in SECRETS)
    assert planted.count("\n") >= 200
    for path in ("/etc/sparkd/recipes/planted.yaml", "/etc/sysctl.d/99-planted.conf"):
        head.write(path, planted.replace("\0", " "))
    words = "".join(f"exec -a 'python3 --api-key {secret}' sleep 120 >/dev/null 2>&1 & " for secret in SECRETS.values())
    head.run("bash", "-c", f"{words} sleep 0.2")
    for secret in SECRETS.values():
        url = f"http://127.0.0.1:8000/v1/models?api_key={quote(secret)}"
        head.run("curl", "--silent", "--max-time", "5", "--output", "/dev/null", url, check=False)
    key = head.read("/etc/sparkd/cluster.key").strip()
    head.run("sh", "-c", "rm -rf /root/c && mkdir /root/c && sparkd capture --output /root/c/c.tar.gz")
    head.run("tar", "-C", "/root/c", "-xzf", "/root/c/c.tar.gz")
    top = head.sh("echo /root/c/sparkd-capture-*").stdout.strip()
    for secret in (key, *SECRETS.values()):
        found = head.run(
            "grep", "--recursive", "--files-with-matches", "--fixed-strings", "-e", secret, top, check=False
        )
        assert not found.stdout, f"{secret} is in {found.stdout}"
    logs = head.sh(f"cat {top}/logs/*.log").stdout
    assert all(f" {name} <" in logs for name in (head.name, f"{worker.name} ({worker.fabric_address})"))
    assert "agent.run.failed" in logs and "engine| " in logs
    assert parse(head.read(f"{top}/nodes/{worker.fabric_address}/report.json"))
    for node, cause in ((head, "killed-from-outside"), (worker, "peer-failed")):
        summary = node.run("sparkd", "capture", "--issue").stdout
        assert cause in summary and node.name not in summary
    live = {check["id"]: check["level"] for check in json.loads(head.read(f"{top}/preflight.json"))["checks"]}
    replayed = json.loads(head.run("sparkd", "preflight", "--root", f"{top}/tree", "--json", check=False).stdout)
    differ = {
        check["id"]: (live[check["id"]], check["level"])
        for check in replayed["checks"]
        if check["level"] != live[check["id"]]
    }
    assert set(differ) <= NOT_IN_A_TREE, differ
    assert head.sh("stat -c %a /root/c/c.tar.gz").stdout.strip() == "600"
    head.sh("rm -r /root/c /etc/sparkd/recipes/planted.yaml /etc/sysctl.d/99-planted.conf")


def soak(serving: Cluster) -> tuple[int, dict[str, str], str]:
    """Five minutes: exit code, what it says of each node's memory, and all of it."""
    words = ("sparkd", "bench", "--soak", "5m", "--concurrency", "1,2", "--answer", "64")
    done = serving.head.node.run(*words, check=False, timeout=400)
    print(done.stdout, done.stderr)
    of_nodes = dict(re.findall(r"^(spark\d+)(?: \([\d.]+\))?: (.*)$", done.stdout, re.MULTILINE))
    return done.returncode, of_nodes, done.stdout


@pytest.mark.whole
def test_five_minutes_of_requests_leave_the_memory_of_both_nodes_as_it_was(serving: Cluster) -> None:
    code, of_nodes, shown = soak(serving)
    assert (code, "verdict: steady" in shown) == (0, True), shown
    assert set(of_nodes) == {one.node.name for one in serving.members}


@pytest.mark.whole
def test_a_leak_of_50_mb_a_minute_on_the_worker_is_found_there(serving: Cluster) -> None:
    worker = serving.worker.node
    worker.put(EATER, "/root/eater.py")
    worker.sh(f"setsid python3 /root/eater.py {0.05 / 60:.6f} 4 >/dev/null 2>&1 &")
    try:
        code, of_nodes, shown = soak(serving)
    finally:
        for process in worker.found(r"^python3 /root/eater\.py"):
            process.send(signal.SIGKILL)
    assert (code, "verdict: not steady" in shown) == (13, True), shown
    assert of_nodes[serving.head.node.name].startswith("no drift"), shown
    rate = re.search(r"shrinks by (\d\.\d) GiB an hour", of_nodes[worker.name])
    assert rate is not None and 2.0 < float(rate[1]) < 4.0, f"50 MB a minute are 2.8 GiB an hour: {shown}"


def test_no_fabric_test_runs_beside_an_agent(serving: Cluster) -> None:
    for member in serving.members:
        refused = member.node.run("sparkd", "fabric", "test", check=False)
        assert refused.returncode == 10
        assert "systemctl stop sparkd-head sparkd-worker" in refused.stderr


def test_all_ranks_are_of_one_epoch(serving: Cluster) -> None:
    def label(member: SparkdNode, name: str) -> str:
        row = f'{{{{index .Config.Labels "io.sparkd.{name}"}}}}'
        return member.node.run("docker", "inspect", "--format", row, *member.containers()).stdout.strip()

    assert {label(one, "epoch") for one in serving.members} == {label(serving.head, "rank-id")}


def test_status_shows_both_nodes_from_either_to_anybody(serving: Cluster) -> None:
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sparkd", "status")
    expected = [[str(rank), one.node.name, "serving"] for rank, one in enumerate(serving.members)]
    for member in serving.members:

        def phases(node: Node = member.node) -> list[list[str]]:
            """Of each node's first line: rank, name, phase."""
            shown = node.run(*nobody, check=False).stdout.splitlines()
            rows = [line.split() for line in shown if line[:1].isdigit()]
            return [[row[0], row[1], row[3]] for row in rows if len(row) > 3]

        wait_for(lambda: phases() == expected, 10, f"status on {member.node.name} to show {expected}, not {phases()}")
        report = json.loads(member.node.run(*nobody, "--json").stdout)
        assert [peer["contact"] for peer in report["peers"]] == ["answers"]


@pytest.mark.parametrize(("rank", "wrong", "right"), [(0, WORKER, HEAD), (1, HEAD, WORKER)])
def test_the_wrong_unit_exits_78_names_the_right_one_and_disturbs_nothing(
    serving: Cluster, rank: int, wrong: str, right: str
) -> None:
    node, before = serving.members[rank], serving.moment()
    assert node.node.run("systemctl", "start", wrong, check=False).returncode != 0
    wait_for(lambda: node.show("ActiveState", wrong) == "failed", 20, "the wrong unit to fail")
    assert node.exit_status(wrong) == 78
    assert f"systemctl enable --now {right}" in node.node.journal(wrong)
    node.node.run("systemctl", "reset-failed", wrong)
    assert serving.moment().agents == before.agents
    assert serving.serves()


def test_keys_change_while_it_serves(serving: Cluster) -> None:
    before = serving.moment()
    old, new = serving.head.node.read("/etc/sparkd/cluster.key").strip(), new_key()
    for member in serving.members:
        serving.give_key(f"{new}\n{old}", member)
        time.sleep(2 * FRESH_SECONDS)
    for member in serving.members:
        serving.give_key(new, member)
        time.sleep(2 * FRESH_SECONDS)
    time.sleep(10)
    for member in serving.members:
        report = member.report()
        assert report is not None
        assert [peer.contact.value for peer in report.peers] == ["answers"]
    assert serving.moment().agents == before.agents
    assert serving.serves()


@pytest.mark.parametrize(
    "crash", [pytest.param(one, id=one.name, marks=[] if one.in_ci else [pytest.mark.whole]) for one in crashes.CRASHES]
)
def test_the_engine_outlives_its_agent_and_no_request_is_lost(serving: Cluster, crash: crashes.Crash) -> None:
    crashes.outlive(crash, serving)


def in_ci(rows: tuple[Fault, ...] | tuple[Noise, ...]) -> list[object]:
    """The others are for `make bed` alone."""
    return [
        pytest.param(row, id=f"{row.name} ({row.side})", marks=[] if row.in_ci else [pytest.mark.whole]) for row in rows
    ]


@pytest.mark.parametrize("noise", in_ci(NOISES))
def test_noise_ends_nothing(serving: Cluster, noise: Noise, record: Record) -> None:
    result = trial.run_noise(noise, serving)
    record(result)
    assert not result.complaints, "\n".join(result.complaints)


@pytest.mark.parametrize("fault", in_ci(FAULTS))
def test_both_ranks_fall_and_the_endpoint_comes_back(serving: Cluster, fault: Fault, record: Record) -> None:
    result = trial.run(fault, serving)
    record(result)
    assert not result.complaints, "\n".join(result.complaints)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(WHILE_LOADING[::3], id="one of each kind"),
        pytest.param(WHILE_LOADING[1:3], id="on the other side", marks=pytest.mark.whole),
    ],
)
def test_ranks_that_load_fall_as_those_that_serve_and_come_back_when_it_is_over(
    serving: Cluster, faults: tuple[Fault, ...], record: Record
) -> None:
    serving.stop()
    serving.start()
    complaints: list[str] = []
    for fault in faults:
        serving.await_loading()
        serving.forget_failures()
        result = trial.run_loading(fault, serving)
        record(result)
        complaints += result.complaints
    assert not complaints, "\n".join(complaints)
    serving.forget_failures()
    serving.await_serving()


@pytest.mark.whole
def test_a_rank_that_hangs_while_it_loads_names_itself_and_the_other_names_its_node(
    serving: Cluster, record: Record
) -> None:
    serving.stop()
    serving.configure(f"[readiness]\nstall_seconds = {LOAD_STALL_SECONDS}\n")
    serving.start()
    complaints: list[str] = []
    for fault in HANGING_LOADS:
        serving.await_loading()
        serving.forget_failures()
        result = trial.run_loading(fault, serving)
        record(result)
        complaints += result.complaints
    assert not complaints, "\n".join(complaints)
    serving.forget_failures()
    serving.await_serving()
    serving.configure()


@pytest.mark.whole
def test_the_pair_serves_when_the_head_is_started_first(cluster: Cluster, start_seconds: float) -> None:
    """For every change a head waits in the row of a worker that is stopped and started later."""
    cluster.stop()
    cluster.start(cluster.head)
    wait_for(lambda: cluster.head.status_text().startswith("awaiting-peers"), STANDS_BY_SECONDS, "the head to wait")
    assert cluster.worker.node.fabric_address in cluster.head.status_text()
    assert not cluster.head.rank(), "no rank runs before its workers"
    cluster.start(cluster.worker)
    assert cluster.await_serving() < start_seconds + trial.RECOVERY_SECONDS


@pytest.mark.whole
def test_a_worker_that_follows_serves_what_only_the_heads_file_was_changed_to(serving: Cluster) -> None:
    """For every change one does after the ten faults of a siege."""
    serving.worker.configure(serving.following())
    serving.head.configure(serving.configuration().replace("[engine.env]", '[engine.env]\nONLY_HERE = "1"'))
    serving.head.node.run("systemctl", "restart", "--no-block", serving.head.unit)

    def plans() -> list[dict[str, object]]:
        return [json.loads(member.node.run("sparkd", "plan", "--json").stdout) for member in serving.members]

    wait_for(
        lambda: serving.serves() and "ONLY_HERE" in json.dumps(plans()[1]["env"]), SERVING_SECONDS, "both to serve"
    )
    assert plans()[0]["digest"] == plans()[1]["digest"]
    assert "cluster.config.followed" in serving.worker.node.journal(serving.worker.unit)


@pytest.mark.whole
def test_the_node_with_the_head_may_be_booted_a_minute_later(serving: Cluster, start_seconds: float) -> None:
    for member in serving.members:
        member.node.power_off()
    serving.worker.node.power_on()
    serving.worker.node.wait_booted()
    time.sleep(HEAD_LATE_SECONDS)
    assert serving.worker.status_text().startswith("awaiting-peers")
    assert serving.worker.active()
    serving.head.node.power_on()
    serving.head.node.wait_booted()
    assert serving.await_serving() < start_seconds + trial.RECOVERY_SECONDS


@pytest.mark.whole
def test_a_fabric_that_comes_up_half_a_minute_after_boot_is_waited_for(serving: Cluster, start_seconds: float) -> None:
    serving.worker.node.fabric.cut()
    for member in serving.members:
        member.node.powercut(stay_off=True)
    for member in serving.members:
        member.node.power_on()
    for member in serving.members:
        member.node.wait_booted()
    began = time.monotonic()
    for member in serving.members:
        wait_for(lambda: "waiting for the fabric" in member.status_text(), 20, "STATUS= to say what is awaited")  # noqa: B023
        assert "10.0.0." in member.status_text()
    time.sleep(max(0.0, began + FABRIC_LATE_SECONDS - time.monotonic()))
    serving.worker.node.fabric.restore()
    assert serving.await_serving() < start_seconds + trial.RECOVERY_SECONDS
