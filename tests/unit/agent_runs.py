"""Whole runs of an agent, as `sparkd run` wires it, with a dockerd and an engine that answer as the test says."""

import io
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.tree import Tree
from tests.unit.cluster_nodes import machine
from tests.unit.docker_server import STAMP, STREAM, chunk, dockerd, frame, json_response, plain
from tests.unit.engine_server import Reply, engine, models, token
from tests.unit.nodes import until

from sparkd.agent.daemon.bootstrap import build_agent
from sparkd.agent.daemon.context import Agent, Pace
from sparkd.agent.daemon.run import run
from sparkd.agent.preflight.runner import IDS
from sparkd.base.host import Host
from sparkd.base.lib.errors import ExitCode
from sparkd.base.lib.journal_writer import Journal
from sparkd.base.lib.log import ProcessLog
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.systemd import Notifier
from sparkd.base.state import launch_history
from sparkd.base.state.launch_history import End

T = TypeVar("T")

CONTAINER, IMAGE = "c" * 64, "sha256:" + "d" * 64
REF = "sparkd-test/vllm-cpu:0.32.0"
DESCRIPTION = {"Id": IMAGE, "RootFS": {"Layers": ["sha256:1"]}, "Config": {}}
CORE = b"(EngineCore pid=9) ERROR 01-01 00:00:00 [core.py:1] "
STARTED = CORE + b"x\n(APIServer pid=1) INFO:     Application startup complete.\n"
BOOM = b"(EngineCore pid=9) ERROR 01-01 00:00:00 [x.py:1] RuntimeError: boom\n"


def configuration(port: int, script: str = "", unskipped: tuple[str, ...] = ()) -> str:
    engine = f'{{recipe = "tiny-cpu", script = "{script}", args = {{port = {port}}}}}'
    skip = json.dumps([check for check in IDS if check not in unskipped])
    return f'engine = {engine}\npreflight.skip = {skip}\nobserve.listen = ""\n'


class World:
    """A node alone, its docker and its engine."""

    def __init__(self, tree: Tree, port: int) -> None:
        self.port = port
        self.pace = Pace()
        self.last_words = BOOM
        self.tree = Tree(Path(machine(tree, 0).files.root))
        self.requests: list[str] = []
        self.failing = threading.Event()
        self.rank: subprocess.Popen[bytes] | None = None
        self.tree.safetensors("/srv/models/tiny/model.safetensors")
        self.tree.dockerd()
        self.tree.docker(f"/images/{REF}/json", DESCRIPTION)
        self.tree.file("/etc/sparkd/sparkd.toml", configuration(port))

    def docker(self, request: str) -> Iterable[bytes]:
        path = plain(request)
        self.requests.append(path)
        answers: dict[str, Callable[[], Iterable[bytes]]] = {
            f"GET /images/{REF}/json": lambda: json_response(DESCRIPTION),
            "POST /containers/create": lambda: json_response({"Id": CONTAINER}, 201),
            f"POST /containers/{CONTAINER}/start": self.start,
            f"GET /containers/{CONTAINER}/json": lambda: json_response(
                {"State": {"Pid": self.rank.pid if self.rank else 0, "StartedAt": "2026-01-01T00:00:00Z"}}
            ),
            f"GET /containers/{CONTAINER}/logs": self.log,
            f"DELETE /containers/{CONTAINER}": lambda: json_response({}),
        }
        return answers.get(path, lambda: json_response({"message": "no such thing"}, 404))()

    def start(self) -> Iterable[bytes]:
        self.rank = subprocess.Popen(["sleep", "60"])
        return json_response({})

    def log(self) -> Iterator[bytes]:
        yield STREAM + chunk(frame(1, STAMP + STARTED))
        self.failing.wait(30)
        yield chunk(frame(1, STAMP + self.last_words))

    def fail(self) -> None:
        self.failing.set()
        assert self.rank is not None
        self.rank.kill()

    @property
    def last_exit(self) -> End:
        last_exit = launch_history.read_history(Host(self.tree.root).files).last_exit
        assert last_exit is not None
        return last_exit

    def read(self, path: str) -> dict[str, object]:
        fields: dict[str, object] = json.loads((self.tree.root / path).read_text())
        return fields

    @property
    def phase(self) -> object:
        exists = (self.tree.root / "run/sparkd/report.json").exists()
        return self.read("run/sparkd/report.json")["phase"] if exists else ""

    def once(self, phase: str, act: Callable[[], object]) -> threading.Thread:
        """Act as soon as the node is in this phase, beside the main loop."""

        def wait() -> None:
            until(lambda: self.phase in (phase, "failed"), 30)
            if self.phase == phase:
                act()

        thread = threading.Thread(target=wait)
        thread.start()
        return thread


W = TypeVar("W", bound=World)


def serving(request: str, _: str) -> Reply:
    answers = {"GET /v1/models": models("tiny"), "POST /v1/completions": token(), "GET /health": (200, b"")}
    return answers.get(request, (404, b""))


@contextmanager
def open_world(kind: Callable[[Tree, int], W], reply: Callable[[str, str], Reply] = serving) -> Iterator[W]:
    """A world whose docker answers, and whose engine replies so, until its rank is ended with the test."""
    with tempfile.TemporaryDirectory() as folder, engine(reply) as port:  # tmp_path is too long for a socket
        world = kind(Tree(Path(folder)), port)
        with dockerd(world.docker, f"{world.tree.root}/run/docker.sock"):
            yield world
        world.failing.set()
        if world.rank is not None:
            world.rank.kill()
            world.rank.wait()


def run_agent(
    world: World,
    role: str = "head",
    run: Callable[[Agent], ExitCode] = run,
    *,
    once: Mapping[str, Callable[[], object]] = {},
) -> tuple[ExitCode, str]:
    """Run an agent as `sparkd run` does, and act once it is in these phases; its exit code, and the journal."""

    def work(loop: MainLoop, notifier: Notifier, journal: Journal) -> ExitCode:
        log = ProcessLog(journal.put)
        agent = build_agent(role, loop, notifier, journal, log, {}, world.tree.root, world.pace)
        try:
            return run(agent)
        finally:
            agent.actions.release()

    threads = [world.once(phase, act) for phase, act in once.items()]
    try:
        code, text = record(work)
    finally:
        for thread in threads:
            thread.join()
    assert "agent.phase.unexpected" not in text
    return code, text


def record(work: Callable[[MainLoop, Notifier, Journal], T]) -> tuple[T, str]:
    """Do `work` in a main loop, whose handlers of signals are taken back; its result, and the journal."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with tempfile.TemporaryFile() as file:
        journal, notifier = Journal(file.fileno()), Notifier()
        try:
            with MainLoop(notifier, {}) as loop:
                outcome = work(loop, notifier, journal)
        finally:
            journal.close(5)
            for number, handler in handlers.items():
                signal.signal(number, handler)
        file.seek(0)
        return outcome, io.TextIOWrapper(file).read()


def phases(journal: str) -> list[str]:
    changes = (line.partition("phase=")[2] for line in journal.splitlines() if "agent.phase.changed" in line)
    return [change.split()[0] for change in changes]


def end(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)
