"""A drill: whom it kills, and when it says that the endpoint is back."""

import subprocess
import threading
import time
from itertools import pairwise

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.nodes import report
from tests.unit.verdicts import present

from sparkd.base.host import Host
from sparkd.base.host.docker import LABEL
from sparkd.base.host.files import Files
from sparkd.base.host.processes import read_process
from sparkd.base.lib.errors import BlockedError, NotReadyError
from sparkd.base.status.model import NodeReport, Phase, dump
from sparkd.tools.node.drill import Target, find_target, follow, kill, read_serving

AGENT = 77
SERVING = report(0, phase=Phase.SERVING, message="tiny on port 8000", pid=AGENT, start_time=1234, rank_id="a")


@pytest.fixture
def host(tree: Tree) -> Host:
    tree.process(AGENT, "sparkd", start_time=1234)
    return Host(tree.root)


def put(tree: Tree, shown: NodeReport) -> None:
    tree.file("/run/sparkd/report.json", dump(shown))


@pytest.mark.parametrize("phase", [Phase.LOADING, Phase.BLOCKED, Phase.AWAITING_PEERS])
def test_only_what_serves_is_drilled(tree: Tree, host: Host, phase: Phase) -> None:
    put(tree, replace(SERVING, phase=phase))
    with pytest.raises(BlockedError, match=f"needs an endpoint that serves: {phase.value}"):
        read_serving(host)


def test_without_an_agent_nothing_is_drilled(host: Host) -> None:
    with pytest.raises(BlockedError, match="no agent runs"):
        read_serving(host)


def test_the_agent_is_the_process_of_its_report(tree: Tree, host: Host) -> None:
    put(tree, SERVING)
    assert find_target("agent", host, read_serving(host)) == Target(AGENT, 1234, "", "sparkd's agent")


def test_a_rank_that_has_just_ended_is_no_lack_of_a_core(tree: Tree, host: Host) -> None:
    container_id = "c" * 64
    details = {
        "Id": container_id,
        "Name": "/sparkd-rank0",
        "Image": f"sha256:{'1' * 64}",
        "Config": {"Labels": {f"{LABEL}role": "head"}},
        "State": {"Running": True, "Pid": 60},
        "HostConfig": {"RestartPolicy": {"Name": "no"}},
    }
    tree.docker_engine()
    tree.docker("/containers/json", [{"Id": container_id, "Names": ["/sparkd-rank0"]}])
    tree.docker(f"/containers/{container_id}/json", details)
    serving = replace(SERVING, engine=replace(SERVING.engine, container_id=container_id))
    with pytest.raises(BlockedError, match="sparkd-rank0 has just ended by itself"):
        find_target("rank", host, serving)


def test_a_process_that_took_the_pid_is_not_killed() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        start_time = present(read_process(Files(), other.pid)).start_time
        try:
            for wrong in (Target(other.pid, start_time + 1, "", "x"), Target(other.pid, start_time, "c" * 64, "x")):
                with pytest.raises(BlockedError, match="has just ended by itself"):
                    kill(wrong)
            assert other.poll() is None
        finally:
            other.kill()


def test_it_is_over_when_another_rank_serves_and_no_earlier(tree: Tree, host: Host) -> None:
    """The report of the rank that is dead still says serving, for as long as nobody has noticed."""
    put(tree, SERVING)
    ended = replace(SERVING, phase=Phase.FAILED, message="the engine ended")
    loading = replace(SERVING, phase=Phase.LOADING, message="loading", rank_id="b")
    again = replace(SERVING, rank_id="b", last_cause="the engine ended (exit 13)")
    steps: list[tuple[float, NodeReport]] = [
        (0.6, ended),
        (0.6, loading),
        (0.6, replace(loading, message="more")),
        (0.6, again),
    ]

    def play() -> None:
        for seconds, shown in steps:
            time.sleep(seconds)
            put(tree, shown)

    player = threading.Thread(target=play)
    player.start()
    lines: list[str] = []
    seconds, after = follow(SERVING, host, 30, lines.append)
    player.join()
    assert seconds >= 2
    assert after.last_cause == "the engine ended (exit 13)"
    assert [line.split("s  ", 1)[1] for line in lines] == [
        "failed: the engine ended",
        "loading: loading",
        "serving: tiny on port 8000",
    ]
    assert all(earlier < later for earlier, later in pairwise(float(line.split()[0]) for line in lines))


@pytest.mark.parametrize(
    ("shown", "reason"),
    [(SERVING, "nothing has noticed it"), (replace(SERVING, phase=Phase.LOADING), "does not serve again 1 s after")],
)
def test_what_does_not_come_back_is_given_up(tree: Tree, host: Host, shown: NodeReport, reason: str) -> None:
    put(tree, shown)
    with pytest.raises(NotReadyError, match=reason) as refused:
        follow(SERVING, host, 1, lambda _: None)
    assert "journalctl -u sparkd-head" in refused.value.hint
