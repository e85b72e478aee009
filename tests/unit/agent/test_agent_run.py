"""The whole run of an agent as `sparkd run` wires it, on a machine of files: a dockerd and an engine that answer as the
test says, a rank that is a process of the test's own, and systemd's socket."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.cluster_nodes import agent_under_test, alone, machine, running
from tests.unit.conftest import Said
from tests.unit.docker_server import STREAM, chunk, dockerd, frame, json_response, plain
from tests.unit.engine_server import Reply, engine, models, token
from tests.unit.nodes import until

from sparkd.actions import acquire_lock
from sparkd.agent.bootstrap import build_agent
from sparkd.agent.run import run
from sparkd.agent.shutdown import FAILED_GRACE_SECONDS, shutdown_on_error
from sparkd.config.settings import Engine
from sparkd.host import Host
from sparkd.host.processes import NodeOwner
from sparkd.lib.errors import BlockedError, ConfigError, EngineEndedError, ExitCode
from sparkd.lib.log import ProcessLog
from sparkd.lib.systemd import Journal
from sparkd.preflight.registry import IDS
from sparkd.state import launch_history
from sparkd.state.launch_history import STOPPED, End

CONTAINER, IMAGE = "c" * 64, "sha256:" + "d" * 64
REF = "sparkd-test/vllm-cpu:0.32.0"
DESCRIPTION = {"Id": IMAGE, "RootFS": {"Layers": ["sha256:1"]}, "Config": {}}
STARTED = b"(APIServer pid=1) INFO:     Application startup complete.\n"
BOOM = b"(EngineCore pid=9) ERROR 01-01 00:00:00 [x.py:1] RuntimeError: boom\n"


class World:
    """A node alone, its docker and its engine."""

    def __init__(self, tree: Tree, port: int) -> None:
        self.tree = Tree(Path(machine(tree, 0).files.root))
        self.requests: list[str] = []
        self.failing = threading.Event()
        self.rank: subprocess.Popen[bytes] | None = None
        self.tree.safetensors("/srv/models/tiny/model.safetensors")
        self.tree.dockerd()
        self.tree.docker(f"/images/{REF}/json", DESCRIPTION)
        self.tree.file(
            "/etc/sparkd/sparkd.toml",
            f'engine = {{recipe = "tiny-cpu", args = {{port = {port}}}}}\n'
            f'preflight.skip = {json.dumps(IDS)}\nobserve.listen = ""\n',
        )

    def docker(self, request: str) -> Iterable[bytes]:
        path = plain(request)
        self.requests.append(path)
        answers: dict[str, Callable[[], Iterable[bytes]]] = {
            f"GET /images/{REF}/json": lambda: json_response(DESCRIPTION),
            "POST /containers/create": lambda: json_response({"Id": CONTAINER}, 201),
            f"POST /containers/{CONTAINER}/start": self.start,
            f"GET /containers/{CONTAINER}/json": lambda: json_response(
                {"State": {"Pid": self.rank.pid if self.rank else 0}}
            ),
            f"GET /containers/{CONTAINER}/logs": self.log,
            f"DELETE /containers/{CONTAINER}": lambda: json_response({}),
        }
        return answers.get(path, lambda: json_response({"message": "no such thing"}, 404))()

    def start(self) -> Iterable[bytes]:
        self.rank = subprocess.Popen(["sleep", "60"])
        return json_response({})

    def log(self) -> Iterator[bytes]:
        yield STREAM + chunk(frame(1, STARTED))
        self.failing.wait(30)
        yield chunk(frame(2, BOOM))

    def fail(self) -> None:
        self.failing.set()
        assert self.rank is not None
        self.rank.kill()

    @property
    def last_exit(self) -> End:
        found = launch_history.read_history(Host(self.tree.root).files).last_exit
        assert found is not None
        return found

    def read(self, path: str) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.tree.root / path).read_text())
        return found

    @property
    def phase(self) -> object:
        exists = (self.tree.root / "run/sparkd/report.json").exists()
        return self.read("run/sparkd/report.json")["phase"] if exists else ""

    def once_serving(self, act: Callable[[], object]) -> threading.Thread:
        """Act as soon as the node serves, beside the main loop."""

        def wait() -> None:
            until(lambda: self.phase in ("serving", "failed"), 30)
            if self.phase == "serving":
                act()

        thread = threading.Thread(target=wait)
        thread.start()
        return thread


def serving(request: str, _: str) -> Reply:
    answers = {"GET /v1/models": models("tiny"), "POST /v1/completions": token(), "GET /health": (200, b"")}
    return answers.get(request, (404, b""))


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder, engine(serving) as port:  # tmp_path is too long for a socket
        made = World(Tree(Path(folder)), port)
        with dockerd(made.docker, f"{made.tree.root}/run/docker.sock"):
            yield made
        made.failing.set()
        if made.rank is not None:
            made.rank.kill()
            made.rank.wait()


def run_agent(world: World, role: str = "head") -> tuple[ExitCode, str]:
    """As `sparkd run` does; the exit code, and the journal."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with tempfile.TemporaryFile() as file:
        journal = Journal(file.fileno())
        try:
            agent = build_agent(role, journal, ProcessLog(journal.put), {}, world.tree.root)
            try:
                code = run(agent)
            finally:
                agent.actions.release()
        finally:
            journal.close(5)
            for number, handler in handlers.items():
                signal.signal(number, handler)
        file.seek(0)
        return code, io.TextIOWrapper(file).read()


def phases(journal: str) -> list[str]:
    marked = (line.partition("phase=")[2] for line in journal.splitlines() if "agent.phase.changed" in line)
    return [rest.split()[0] for rest in marked]


def test_it_starts_its_rank_serves_and_stops_on_request(world: World, said: Said) -> None:
    thread = world.once_serving(lambda: os.kill(os.getpid(), signal.SIGTERM))
    code, journal = run_agent(world)
    thread.join()
    heard = said()
    assert code is ExitCode.GOOD, journal
    assert phases(journal) == ["launching", "loading", "serving", "stopping", "stopped"]
    assert [one for one in heard if one in ("READY=1", "STOPPING=1")] == ["READY=1", "STOPPING=1"]
    assert "STATUS=serving: tiny on port" in " ".join(heard)
    assert world.rank is not None
    assert world.rank.wait(1) == -signal.SIGTERM
    acts = [one.replace(CONTAINER, "ID") for one in world.requests if not one.startswith("GET ")]
    assert acts == ["POST /containers/create", "POST /containers/ID/start", "DELETE /containers/ID"]
    assert "engine| " in journal
    assert world.last_exit == End(STOPPED, ExitCode.GOOD, at=world.last_exit.at)
    assert world.phase == "stopped"
    assert "vllm serve" in (world.tree.root / "run/sparkd/launch.sh").read_text()


def test_an_engine_that_dies_while_serving_ends_the_run_with_its_own_words(world: World) -> None:
    thread = world.once_serving(world.fail)
    code, journal = run_agent(world)
    thread.join()
    assert code is ExitCode.ENGINE_ENDED, journal
    assert phases(journal)[-2:] == ["serving", "failed"]
    assert (world.last_exit.code, world.last_exit.phase) == (ExitCode.ENGINE_ENDED, "serving")
    assert "RuntimeError: boom" in world.last_exit.reason
    assert f"DELETE /containers/{CONTAINER}" in world.requests


def test_the_wrong_role_changes_nothing(world: World) -> None:
    with pytest.raises(ConfigError, match="not a worker"):
        run_agent(world, "worker")
    assert not (world.tree.root / "run/sparkd").exists()


def test_a_node_that_another_agent_owns_is_left_alone(world: World) -> None:
    owner = NodeOwner(1, "sparkd run --role head", "0" * 32)
    fd = acquire_lock(world.tree.root / "run/sparkd/hands.lock", owner)
    with pytest.raises(BlockedError, match=r"this node is owned by pid 1 \(sparkd run --role head\)"):
        run_agent(world)
    os.close(fd)
    assert not (world.tree.root / "var/lib/sparkd").exists()
    assert world.requests == []


def test_a_rank_that_ignores_sigterm_gets_no_more_than_its_grace_period_after_an_error(
    tree: Tree, tmp_path: Path
) -> None:
    configured = alone().model_copy(update={"engine": Engine(recipe="tiny-cpu", stop_grace_seconds=1)})
    deaf = ("sh", "-c", f"trap '' TERM; touch {tmp_path}/deaf; while :; do sleep 0.1; done")
    with agent_under_test(tree, 0, configured) as made, running(made.agent, command=deaf) as (rank, process):
        until((tmp_path / "deaf").exists)
        began = time.monotonic()
        shutdown_on_error(made.agent, rank, EngineEndedError("it makes no tokens"))
        took = time.monotonic() - began
        assert process.wait() == -signal.SIGKILL
    assert 1 <= took < (1 + FAILED_GRACE_SECONDS) / 2
