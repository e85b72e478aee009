"""Only the rank gets a request of sparkd's, although another user listens on its port, on a real kernel."""

import asyncio
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.integration.stranger import UID, Stranger
from tests.unit.limits import no_more_threads

from sparkd.agent.actions.rank_process import Rank
from sparkd.agent.engine.api_owner import ApiOwner
from sparkd.agent.engine.readiness import ProbeResult, ReadinessStage, probe
from sparkd.agent.preflight.port_uses import find_holder
from sparkd.base.host import Host
from sparkd.base.lib.http_client import WrongServerError
from sparkd.base.lib.log import events
from sparkd.base.lib.redaction import Redaction
from sparkd.base.vllm.api import Endpoint

KEY = "the-key-of-the-api"
SERVER = """\
import http.server, json, os, socket, sys, time

address, port, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        print("got", self.requestline, self.headers, flush=True)
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        body = json.dumps({"data": [{"id": "tiny"}], "usage": {"completion_tokens": 1}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = answer
    def log_message(self, *_):
        pass

class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
    daemon_threads = True
    def server_bind(self):  # as vLLM: both options, long before it listens
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.socket.bind((address, port))

if mode == "child" and os.fork():
    os.wait()
server = Server((address, port), Handler, bind_and_activate=False)
try:
    server.server_bind()
    print("bound", flush=True)
    if mode == "loading":
        time.sleep(60)
    server.server_activate()
    print("listens", flush=True)
    server.serve_forever()
except OSError as error:
    print("refused", error.errno, flush=True)
"""


@contextmanager
def rank(address: str, port: int, mode: str = "", until: str = "listens") -> Iterator[Rank]:
    command = [sys.executable, "-I", "-c", SERVER, address, str(port), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        assert process.stdout is not None
        pidfd = os.pidfd_open(process.pid)
        try:
            assert any(line.startswith(until) for line in process.stdout)
            yield Rank("c" * 64, "sparkd-rank0", "", process.pid, pidfd)
        finally:
            os.killpg(process.pid, 9)
            os.close(pidfd)


def api_owner(owner: Rank, port: int, host: str = "127.0.0.1", journal: list[str] | None = None) -> ApiOwner:
    lines = [] if journal is None else journal
    return ApiOwner(Host(), owner, events(lambda _, line: lines.append(line), Redaction()), host, port)


def probe_by(owner: ApiOwner, port: int, host: str = "127.0.0.1") -> ProbeResult:
    return asyncio.run(probe(Endpoint(host, port, "tiny", KEY, owner.admit), 5))


def probe_as(owner: Rank, port: int, host: str = "127.0.0.1", journal: list[str] | None = None) -> ProbeResult:
    return probe_by(api_owner(owner, port, host, journal), port, host)


@pytest.mark.parametrize(
    ("address", "mode", "host"),
    [("0.0.0.0", "", "127.0.0.1"), ("127.0.0.1", "child", "127.0.0.1"), ("::", "", "127.0.0.1"), ("::1", "", "::1")],
)
def test_the_rank_itself_gets_the_requests(address: str, mode: str, host: str, port: int) -> None:
    with rank(address, port, mode) as serving:
        assert probe_as(serving, port, host).failed is None


@pytest.mark.parametrize("mode", ["", "child"])
def test_an_engine_that_serves_is_known_also_where_no_thread_can_be_started(port: int, mode: str) -> None:
    """Too many processes of others may last for longer than supervise.stall_seconds."""
    with rank("127.0.0.1", port, mode) as serving, no_more_threads():
        owner = api_owner(serving, port)
        assert [probe_by(owner, port).failed for _ in range(2)] == [None, None]


def test_without_a_thread_the_processes_of_others_are_not_read_at_each_connection(port: int) -> None:
    """The main loop would stand for a second each time, where others have made ten thousand."""
    with rank("127.0.0.1", port) as serving, no_more_threads(), subprocess.Popen(["sleep", "9"]) as other:
        pidfd = os.pidfd_open(other.pid)
        owner = api_owner(Rank("c" * 64, "sparkd-rank0", "", other.pid, pidfd), port)
        first, second = probe_by(owner, port), probe_by(owner, port)
        other.kill()
        os.close(pidfd)
    assert [first.failed, second.failed] == [ReadinessStage.PORT] * 2
    assert f"held by pid {serving.pid} (" in first.answer
    assert "it is not known which process answers" in second.answer


class ResetLater(socket.socket):
    """A connection whose other end resets it after the first look at it, and before the second."""

    other: socket.socket

    def getsockname(self) -> object:
        self.other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.other.close()
        return super().getsockname()


def test_another_user_who_resets_between_two_looks_is_named(port: int) -> None:
    with (
        socket.create_server(("127.0.0.1", port)) as server,
        ResetLater() as connection,
        subprocess.Popen(["sleep", "9"]) as loading,
    ):
        connection.connect(("127.0.0.1", port))
        connection.other, _ = server.accept()
        pidfd = os.pidfd_open(loading.pid)
        owner = api_owner(Rank("c" * 64, "sparkd-rank0", "", loading.pid, pidfd), port)
        with pytest.raises(WrongServerError, match=rf"held by pid {os.getpid()} \("):
            asyncio.run(owner.admit(connection))
        loading.kill()
        os.close(pidfd)


def test_another_user_on_the_port_of_a_loading_rank_gets_nothing_and_is_named(port: int) -> None:
    journal: list[str] = []
    with rank("0.0.0.0", port, "loading", "bound") as loading:
        with Stranger(SERVER, "127.0.0.1", str(port), "") as stranger:
            stranger.wait_for("listens")  # the kernel let another user take it: this is the attack
            outcome = probe_as(loading, port, journal=journal)
        output = stranger.output()
    assert not [line for line in output if KEY in line or line.startswith("got")]
    assert outcome.failed is ReadinessStage.PORT
    assert f"held by pid {stranger.pid} (" in outcome.answer
    assert f"of uid {UID}" in outcome.answer
    (line,) = journal
    assert "engine.port.foreign" in line
    assert f"pid={stranger.pid}" in line
    assert f"sudo kill {stranger.pid}" in line
    assert "preflight --fix" not in line, "which is refused beside an agent whose rank loads"


DEAF = """\
import socket, struct, sys, time
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listens", flush=True)
while sys.argv[2] != "never":
    client, _ = server.accept()
    if sys.argv[2] == "reset":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
time.sleep(30)
"""


@pytest.mark.parametrize("accepts", ["never", "closes", "reset"])
def test_another_user_who_does_not_accept_or_closes_at_once_is_named(port: int, accepts: str) -> None:
    journal: list[str] = []
    with rank("0.0.0.0", port, "loading", "bound") as loading, Stranger(DEAF, str(port), accepts) as stranger:
        stranger.wait_for("listens")
        began = time.monotonic()
        result = probe_as(loading, port, journal=journal)
        assert time.monotonic() - began < 4, "long before the deadline of the request"
    assert result.failed is ReadinessStage.PORT
    assert f"held by pid {stranger.pid} (" in result.answer
    (line,) = journal
    assert "engine.port.foreign" in line


def test_docker_is_not_to_be_stopped_for_a_published_port_of_a_container(port: int) -> None:
    """One that was started while the rank loads. Its proxy runs in docker's own service."""
    journal: list[str] = []
    named = f"import ctypes; ctypes.CDLL(None).prctl(15, b'docker-proxy', 0, 0, 0)\n{DEAF}"
    with rank("0.0.0.0", port, "loading", "bound") as loading, Stranger(named, str(port), "never") as proxy:
        proxy.wait_for("listens")
        assert probe_as(loading, port, journal=journal).failed is ReadinessStage.PORT
    assert f"sudo docker ps --filter publish={port}" in journal[0]


def test_a_rank_that_closes_at_once_is_an_error_and_no_stranger(port: int) -> None:
    command = [sys.executable, "-I", "-c", DEAF, str(port), "closes"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
        subprocess.Popen(["sleep", "9"]) as stranger,
    ):
        pidfd = os.pidfd_open(process.pid)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listens\n"
            began = time.monotonic()
            result = probe_as(Rank("c" * 64, "sparkd-rank0", "", process.pid, pidfd), port)
            assert time.monotonic() - began < 4
            assert result.failed is ReadinessStage.HTTP
            assert find_holder(Host(), (port,), process.pid) == ""
            assert f"port {port} is held by pid {process.pid} (" in find_holder(Host(), (port,), stranger.pid)
        finally:
            process.kill()
            stranger.kill()
            os.close(pidfd)


def test_another_user_who_listens_after_the_rank_has_ended_gets_nothing(port: int) -> None:
    with rank("127.0.0.1", port) as ended:
        pass
    pidfd = os.pidfd_open(os.getpid())
    with Stranger(SERVER, "127.0.0.1", str(port), "") as stranger:
        stranger.wait_for("listens")
        result = probe_as(Rank(ended.container_id, ended.name, "", ended.pid, pidfd), port)
    os.close(pidfd)
    assert result.failed is ReadinessStage.PORT
    assert not [line for line in stranger.output() if line.startswith("got")]


def test_a_more_specific_address_of_another_user_takes_nothing_from_a_serving_rank(port: int) -> None:
    with rank("0.0.0.0", port) as serving, Stranger(SERVER, "127.0.0.1", str(port), "") as stranger:
        assert stranger.wait_for("refused")
        assert probe_as(serving, port).failed is None
