"""Which connections wait for an answer, by the kernel of this machine. The sockets are real."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sparkd.agent.engine.health import Continue, Observation, decide, healthy
from sparkd.base.config.settings import Supervise
from sparkd.base.host import Host, sock_diag
from sparkd.base.host.sock_diag import TCP_LISTEN, dump_tcp
from sparkd.base.host.sockets import BEGIN_MILLISECONDS, read_pending
from sparkd.base.vllm.counters import Counters

REQUEST, ANSWER = b"POST /v1/completions HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"
TICK_SECONDS = 0.02
"""Some ticks of the kernel's clock, so that what is sent after this pause has a later time."""


class Server:
    def __init__(self, stack: ExitStack, family: socket.AddressFamily, address: str) -> None:
        self._stack, self._family, self._address = stack, family, address
        dual = family == socket.AF_INET6
        self._listener = stack.enter_context(
            socket.create_server(("", 0) if dual else (address, 0), family=family, dualstack_ipv6=dual)
        )
        self.port: int = self._listener.getsockname()[1]

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """The client's end and the server's."""
        client = self._stack.enter_context(socket.create_connection((self._address, self.port)))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        return client, self._stack.enter_context(self._listener.accept()[0])

    def connect_and_send(self) -> tuple[socket.socket, socket.socket]:
        """The client's end, which has sent a request, and the server's."""
        client, server = self.connect()
        client.sendall(REQUEST)
        time.sleep(TICK_SECONDS)
        return client, server

    def list_begun(self) -> list[bool]:
        """Whether the answer has begun, of each request without a whole one."""
        return [request.begun for request in Host().unanswered_requests(self.port)]

    def waiting(self) -> int:
        """Requests whose answer has not begun."""
        return self.list_begun().count(False)


@pytest.fixture(
    params=[(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "127.0.0.1"), (socket.AF_INET6, "::1")],
    ids=["IPv4", "IPv4 to a socket of both", "IPv6"],
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with ExitStack() as stack:
        yield Server(stack, *request.param)


def test_a_request_waits_until_the_first_byte_of_its_answer_and_is_as_old_as_its_last_byte(server: Server) -> None:
    _, server_end = server.connect_and_send()
    time.sleep(0.3)
    (request,) = Host().unanswered_requests(server.port)
    assert 0.3 <= request.seconds < 2
    assert not request.begun
    server_end.sendall(ANSWER)
    assert server.waiting() == 0


def test_an_answer_that_ends_soon_after_its_request_has_begun_and_one_that_continues_does_not_wait(
    server: Server,
) -> None:
    client, server_end = server.connect_and_send()
    server_end.sendall(ANSWER)
    time.sleep(0.3)
    (request,) = Host().unanswered_requests(server.port)
    assert request.begun
    assert 0.3 <= request.seconds < 2, "as old as the request"
    time.sleep(BEGIN_MILLISECONDS / 1000)
    assert server.list_begun() == [True]
    server_end.sendall(b"data: a token")
    assert server.list_begun() == []
    time.sleep(TICK_SECONDS)
    client.sendall(REQUEST)
    assert server.list_begun() == [False]


def test_a_client_that_sends_nothing_does_not_wait(server: Server) -> None:
    server.connect()
    assert server.waiting() == 0


def test_a_client_that_never_reads_and_one_that_is_streamed_to_do_not_wait(server: Server) -> None:
    _, server_end = server.connect_and_send()
    server_end.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            server_end.send(bytes(65536))
    _, streaming = server.connect_and_send()
    streaming.sendall(ANSWER)
    time.sleep(TICK_SECONDS)
    assert server.waiting() == 0


def test_a_client_that_has_ended_its_side_waits_and_one_that_has_gone_does_not(server: Server) -> None:
    client, server_end = server.connect_and_send()
    client.shutdown(socket.SHUT_WR)
    assert server.waiting() == 1
    server_end.close()
    assert server.waiting() == 0


def test_the_clients_end_and_other_ports_do_not_count(server: Server) -> None:
    client, _ = server.connect_and_send()
    assert Host().unanswered_requests(client.getsockname()[1]) == ()
    assert server.waiting() == 1


def test_a_table_of_many_sockets_is_read_whole() -> None:
    """The kernel sends some 16 KiB at once, of which each socket takes some 100 bytes."""
    with ExitStack() as stack:
        ports = set()
        for _ in range(600):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            ports.add(listener.getsockname()[1])
        listed = {tcp.port for tcp in dump_tcp(socket.AF_INET, 1 << TCP_LISTEN)}
    assert ports <= listed


def test_too_many_connections_to_be_read_are_a_reason_for_a_canary(server: Server) -> None:
    server.connect()
    unanswered = read_pending(server.port, most_chunks=0)
    idle = Counters(0, 0, 5, 5, 5)
    first = decide(healthy(0.0), Observation(10.0, 200, idle), Supervise())
    assert isinstance(first, Continue)
    second = decide(first.state, Observation(20.0, 200, idle, unanswered=unanswered), Supervise())
    assert isinstance(second, Continue)
    assert second.wants_canary


def test_a_table_that_the_kernel_can_not_list_is_not_taken_for_an_empty_one() -> None:
    """The end of the table carries the error, as of TCP in a kernel that has inet_diag without tcp_diag."""
    of_no_protocol = bytes((socket.AF_INET, 255)) + bytes(54)
    with pytest.raises(FileNotFoundError):
        list(sock_diag.query_kernel(of_no_protocol, sock_diag.NLM_F_DUMP))


def test_a_tree_of_files_has_no_connections(tmp_path: Path) -> None:
    assert Host(str(tmp_path)).unanswered_requests(8000) == ()
