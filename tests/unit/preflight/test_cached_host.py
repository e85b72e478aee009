"""One examination sends each docker request once, and waits once for a docker that hangs."""

import gc
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.clock import unstalled
from tests.unit.docker_server import dockerd, json_response, listening
from tests.unit.plans import plan

from sparkd.agent.preflight.check import AnyCheck, Level, Verdict
from sparkd.agent.preflight.checks.compile_cache import CompileCache
from sparkd.agent.preflight.checks.docker import Docker, EngineImage, StaleContainer
from sparkd.agent.preflight.checks.foreign_units import ForeignUnits
from sparkd.agent.preflight.checks.shared_memory import RemoveIpc
from sparkd.agent.preflight.checks.stray_workers import StrayWorkers
from sparkd.base.host import CachedHost, Host
from sparkd.base.lib.dockerd.reader import DockerError, DockerReader, RecordedReader, connect
from sparkd.base.plan.inputs import MemoryNeed
from sparkd.base.plan.model import Cache

SECONDS = 1.2
PLAN = replace(plan(), image="engine", caches=(Cache(name="vllm", target="/root/.cache/vllm"),))
DOCKER_CHECKS: tuple[AnyCheck, ...] = (
    StaleContainer(PLAN),
    StrayWorkers(),
    Docker(uses_gpu=True),
    EngineImage(PLAN),
)


class HostWithDocker(Host):
    """A machine of files, whose docker is one that another function reaches."""

    def __init__(self, tree: Tree, reader: DockerReader) -> None:
        super().__init__(tree.root)
        self.reader = reader

    def docker_reader(self) -> DockerReader:
        return self.reader


@pytest.fixture
def machine(tree: Tree) -> Tree:
    tree.file("/proc/net/tcp", "head\n")
    tree.file("/proc/net/tcp6", "head\n")
    tree.dockerd()
    return tree


@pytest.fixture
def silent() -> Iterator[DockerReader]:
    """A docker that takes every connection and never says a word."""
    with listening() as (path, _):
        yield connect(path, SECONDS)


def verdicts(host: Host) -> list[Verdict]:
    cached = CachedHost(host)
    return [check.run(cached)[1] for check in DOCKER_CHECKS]


def test_the_facts_that_an_examination_has_read_are_freed_with_it(machine: Tree) -> None:
    cached = CachedHost(Host(machine.root))
    cached.processes()
    kept = weakref.ref(cached)
    gc.disable()
    try:
        del cached
        assert kept() is None, "a cycle keeps the process table until the garbage collector runs"
    finally:
        gc.enable()


def test_a_docker_that_hangs_is_waited_for_once_and_each_check_reports_it(machine: Tree, silent: DockerReader) -> None:
    host = HostWithDocker(machine, silent)
    began, unstalled_began = time.monotonic(), unstalled()
    judged = verdicts(host)
    assert time.monotonic() - began >= SECONDS
    assert unstalled() - unstalled_began < 2 * SECONDS
    assert [verdict.level for verdict in judged] == [Level.UNKNOWN] * len(DOCKER_CHECKS)
    assert all(f"no answer within {SECONDS} s" in verdict.reason for verdict in judged), judged
    assert all(verdict.awaits == "docker to answer" for verdict in judged)


def test_no_check_waits_for_a_docker_that_hung_before(machine: Tree, silent: DockerReader) -> None:
    machine.file("/usr/lib/systemd/systemd-logind", "")
    cache = CompileCache(PLAN, MemoryNeed(None, None, 0))
    others: tuple[AnyCheck, ...] = (ForeignUnits(), RemoveIpc(PLAN, host_ipc=True), cache)
    cached = CachedHost(HostWithDocker(machine, silent))
    StaleContainer(PLAN).run(cached)
    began = unstalled()
    reasons = [check.run(cached)[1].reason for check in others]
    assert unstalled() - began < SECONDS
    assert [reason for reason in reasons if "not inspected" not in reason and "not checked" not in reason] == []


def test_answers_that_drag_on_have_one_limit_together() -> None:
    def answer(_request: str) -> tuple[bytes]:
        time.sleep(0.6 * SECONDS)
        return json_response({})

    with dockerd(answer) as path, closing(connect(path, SECONDS)) as known:
        began = unstalled()
        assert known.image("1") == {}
        for ref in ("2", "3"):
            with pytest.raises(DockerError, match=rf"GET /images/{ref}/json: no answer within {SECONDS} s"):
                known.image(ref)
        assert known.image("1") == {}, "what it has answered stays known"
        assert unstalled() - began < 2 * SECONDS


def test_each_examination_sends_each_request_once(machine: Tree) -> None:
    machine.docker("/containers/json", [])
    machine.docker("/version", {"Version": "29.2.1", "Arch": "arm64"})
    machine.docker("/info", {"Runtimes": {"nvidia": {}}})
    requests: Counter[str] = Counter()

    def read(name: str) -> bytes:
        requests[name.removesuffix(".json")] += 1
        return Path(f"{machine.root}/.sparkd/docker{name}").read_bytes()

    paths = ("/containers/json", "/version", "/info", "/images/engine/json", "/images/engine/json.500")
    for look in (1, 2):
        verdicts(HostWithDocker(machine, RecordedReader(read)))
        assert requests == dict.fromkeys(paths, look)
