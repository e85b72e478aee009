"""What several checks ask of docker in one look: asked once, and a docker that hangs is waited for once."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.wire import answering, http

from sparkd.host import Host
from sparkd.host.docker import Asks, Reply
from sparkd.host.http import HttpClient, Unanswered
from sparkd.host.one_look import Answers, OneLook
from sparkd.launch.plan import Cache
from sparkd.preflight.check import AnyCheck, Level, Verdict
from sparkd.preflight.compile_cache import CompileCache
from sparkd.preflight.containers import StaleContainer
from sparkd.preflight.docker_engine import Docker
from sparkd.preflight.foreign_units import ForeignUnits
from sparkd.preflight.image import EngineImage
from sparkd.preflight.remove_ipc import RemoveIpc
from sparkd.preflight.strays import StrayWorkers

SECONDS = 0.4
UNKNOWN: tuple[AnyCheck, ...] = (
    StaleContainer("sparkd-rank0"),
    StrayWorkers(),
    Docker(uses_gpu=True),
    EngineImage("engine"),
)


class Elsewhere(Host):
    """A machine of files, whose docker is one that another function reaches."""

    def __init__(self, tree: Tree, reader: Asks) -> None:
        super().__init__(tree.root)
        self.reader = reader

    def docker_reader(self) -> Asks:
        return self.reader


@pytest.fixture
def machine(tree: Tree) -> Tree:
    tree.file("/proc/net/tcp", "head\n")
    tree.file("/proc/net/tcp6", "head\n")
    tree.dockerd()
    return tree


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[str]:
    """A socket that takes every connection and never says a word."""
    path = str(tmp_path / "docker.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        yield path


def verdicts(host: Host) -> list[Verdict]:
    with closing(OneLook(host, SECONDS)) as seen:
        return [check.look(seen)[1] for check in UNKNOWN]


def test_a_docker_that_hangs_is_waited_for_once_and_each_check_says_so(machine: Tree, silent: str) -> None:
    host = Elsewhere(machine, HttpClient("http://docker", socket_path=silent))
    began = time.monotonic()
    found = verdicts(host)
    assert SECONDS <= time.monotonic() - began < 2 * SECONDS
    assert [one.level for one in found] == [Level.UNKNOWN] * len(UNKNOWN)
    assert all(f"no answer within {SECONDS} s" in one.reason for one in found), found
    assert all(one.awaits == "docker" for one in found)


def test_no_check_waits_for_a_docker_that_hung_before(machine: Tree, silent: str) -> None:
    machine.file("/usr/lib/systemd/systemd-logind", "")
    cache = CompileCache("engine", (Cache(name="vllm", target="/root/.cache/vllm"),))
    others: tuple[AnyCheck, ...] = (ForeignUnits(), RemoveIpc("engine", host_ipc=True), cache)
    with closing(OneLook(Elsewhere(machine, HttpClient("http://docker", socket_path=silent)), SECONDS)) as seen:
        StaleContainer("sparkd-rank0").look(seen)
        began = time.monotonic()
        said = [check.look(seen)[1].reason for check in others]
    assert time.monotonic() - began < SECONDS
    assert [one for one in said if "not looked at" not in one] == []


def test_answers_that_drag_on_have_one_limit_together() -> None:
    def answer(_request: bytes) -> tuple[bytes, ...]:
        time.sleep(0.6 * SECONDS)
        return (http(b"{}"),)

    with answering("127.0.0.1", answer) as port:
        known = Answers(lambda: HttpClient(f"http://127.0.0.1:{port}"), SECONDS)
        began = time.monotonic()
        assert known.get("/1", 10).body == b"{}"
        for path in ("/2", "/3"):
            with pytest.raises(Unanswered, match=rf"no answer within {SECONDS} s"):
                known.get(path, 10)
        assert known.get("/1", 10).body == b"{}", "what it has said stays said"
        assert time.monotonic() - began < 2 * SECONDS
        known.forget()


def answers(tree: Tree) -> Asks:
    tree.docker("/containers/json", [])
    tree.docker("/version", {"Version": "29.2.1", "Arch": "arm64"})
    tree.docker("/info", {"Runtimes": {"nvidia": {}}})
    return Host(tree.root).docker_reader()


class Counted:
    """Answers as the machine's record does."""

    def __init__(self, recorded: Asks) -> None:
        self.asked: Counter[str] = Counter()
        self._recorded = recorded

    def get(self, path: str, timeout_seconds: float, params: Mapping[str, str] | None = None) -> Reply:
        self.asked[path] += 1
        return self._recorded.get(path, timeout_seconds, params)

    def close(self) -> None: ...


def test_each_question_is_asked_once_in_a_look_and_anew_in_the_next(machine: Tree) -> None:
    counted = Counted(answers(machine))
    for look in (1, 2):
        verdicts(Elsewhere(machine, counted))
        assert counted.asked == dict.fromkeys(("/containers/json", "/version", "/info", "/images/engine/json"), look)
