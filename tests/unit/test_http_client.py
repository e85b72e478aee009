"""What a server may answer: whatever it is, the client ends with an answer or with Unanswered."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from tests.unit.wire import answering, http, message

from sparkd.host.http import HttpClient, Refused, Unanswered

SECONDS = 2.0


class Anything:
    """A server that says the same bytes to whoever connects, then closes."""

    def __init__(self) -> None:
        self.data = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                with sock, contextlib.suppress(OSError):
                    sock.recv(65536)
                    sock.sendall(self.data)
                    sock.shutdown(socket.SHUT_WR)
                    sock.recv(65536)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture(scope="module")
def anything() -> Iterator[Anything]:
    made = Anything()
    yield made
    made.close()


NAMES = (
    b"Content-Length",
    b"Transfer-Encoding",
    b"Connection",
    b"Location",
    b"Set-Cookie",
    b"Content-Encoding",
    b"Content-Type",
    b"Upgrade",
    b"Keep-Alive",
    b"Sparkd-Signature",
    b"",
)
VALUES = (
    b"",
    b"0",
    b"5",
    b"-1",
    b"9" * 30,
    b"chunked",
    b"gzip",
    b"close",
    b"mailto:x",
    b"//",
    b"http://[",
    b"a=\xff",
    b"\0",
)
STATUSES = (
    b"200",
    b"100",
    b"101",
    b"103",
    b"204",
    b"301",
    b"302",
    b"304",
    b"401",
    b"407",
    b"999",
    b"20",
    b"-1",
    b"\xff",
)


def _message(version: bytes, status: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
    lines = (b"HTTP/" + version + b" " + status + b" x", *(name + b": " + value for name, value in headers), b"", body)
    return b"\r\n".join(lines)


MESSAGES = st.builds(
    _message,
    st.sampled_from((b"1.1", b"1.1", b"1.0", b"2", b"0.9")),
    st.sampled_from(STATUSES) | st.binary(max_size=4),
    st.lists(
        st.tuples(st.sampled_from(NAMES) | st.binary(max_size=8), st.sampled_from(VALUES) | st.binary(max_size=20)),
        max_size=4,
    ),
    st.sampled_from((b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffffff\r\n")) | st.binary(max_size=40),
)


@given(st.lists(MESSAGES, min_size=1, max_size=3).map(b"".join) | st.binary(max_size=100))
@examples(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_answered_nothing_but_unanswered_is_raised(anything: Anything, data: bytes) -> None:
    anything.data = data
    client = HttpClient(f"http://127.0.0.1:{anything.port}")
    for _ in range(2):  # what the first answer left behind is there for the second one
        with contextlib.suppress(Unanswered):
            client.get("/report?known=x", SECONDS)
    with contextlib.suppress(Unanswered), client.stream("/logs", {"follow": "1"}) as chunks:
        for _ in chunks:
            pass
    client.close()


def test_no_redirection_is_followed_and_no_cookie_is_kept() -> None:
    asked: list[bytes] = []

    def answer(request: bytes) -> tuple[bytes, ...]:
        asked.append(request)
        return (http(b"", b"Location: /elsewhere", b"Set-Cookie: a=b", status=302),)

    with answering("127.0.0.1", answer) as port:
        client = HttpClient(f"http://127.0.0.1:{port}", headers={"X": "y"})
        for _ in range(2):
            assert client.get("/a", SECONDS, params={"b": "c d"}, headers={"Z": "z"}).status == 302
        client.close()
    assert asked[0] == asked[1]
    assert asked[0].splitlines()[0] == b"GET /a?b=c+d HTTP/1.1"
    assert {b"Accept-Encoding: identity", b"X: y", b"Z: z"} < set(asked[0].splitlines())


def test_a_body_is_posted_as_json() -> None:
    asked: list[bytes] = []

    def answer(request: bytes) -> tuple[bytes, ...]:
        asked.append(request)
        return (http(b"ok"),)

    with answering("127.0.0.1", answer) as port:
        client = HttpClient(f"http://127.0.0.1:{port}")
        assert client.post_json("/v1", {"a": 1}, SECONDS).body == b"ok"
        client.close()
    assert asked[0].startswith(b"POST /v1 HTTP/1.1\r\n")
    assert asked[0].endswith(b'\r\n\r\n{"a":1}')
    assert b"content-type: application/json" in asked[0].lower()


def test_a_port_where_nobody_listens_refuses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Refused):
        HttpClient(f"http://127.0.0.1:{port}").get("/", SECONDS)


@pytest.mark.parametrize("header", [b"Location: mailto:x", b"Location: http://[", b"Set-Cookie: a=\xff"])
def test_headers_of_redirections_and_cookies_mean_nothing(header: bytes) -> None:
    with answering("127.0.0.1", lambda _: (http(b"x", header, status=302),)) as port:
        client = HttpClient(f"http://127.0.0.1:{port}")
        for _ in range(2):
            assert client.get("/", SECONDS).status == 302
        client.close()


@pytest.mark.parametrize("key", ["ends\t", "two\nlines", "\u20ac"])
def test_what_no_header_can_carry_is_not_answered(key: str) -> None:
    with answering("127.0.0.1", lambda _: (http(b"x"),)) as port:
        client = HttpClient(f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {key}"})
        with pytest.raises(Unanswered):
            client.get("/", SECONDS)
        client.close()


@pytest.mark.parametrize("name", ["a..b", "a" * 64])
def test_a_name_that_no_machine_can_have_is_not_answered(name: str) -> None:
    with pytest.raises(Unanswered):
        HttpClient(f"http://{name}:80").get("/", SECONDS)


def test_a_server_is_asked_again_on_the_same_connection_and_anew_where_it_has_closed_that() -> None:
    asked_from: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = HttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}")

        def serve(answers: int) -> None:
            sock, (_, port) = listener.accept()
            with sock:
                for _ in range(answers):
                    message(sock)
                    asked_from.append(port)
                    sock.sendall(http(b"x"))

        for answers in (2, 1):
            server = threading.Thread(target=serve, args=(answers,))
            server.start()
            for _ in range(answers):
                assert client.get("/", SECONDS).body == b"x"
            server.join()
        client.close()
    assert asked_from[0] == asked_from[1] != asked_from[2]


@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
def test_what_comes_behind_an_answer_answers_nothing(later: bool) -> None:
    """Whoever says more than was asked must not have it held for the answer to the next question."""
    first, more = http(b"first"), http(b"made up")
    sent: list[bytes] = [first, more] if later else [first + more]
    with answering("127.0.0.1", lambda request: sent if b"/a" in request else (http(b"second"),)) as port:
        client = HttpClient(f"http://127.0.0.1:{port}")
        assert client.get("/a", SECONDS).body == b"first"
        if later:
            time.sleep(0.1)
        assert client.get("/b", SECONDS).body == b"second"
        client.close()


class Tires:
    """A server that answers once on each connection, and closes it when it is asked again there."""

    def __init__(self, listener: socket.socket, last: bytes = b"") -> None:
        self.asked = 0
        self._listener = listener
        self._answers = http(b"x"), last
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                with sock:
                    for answer in self._answers:
                        self.asked += bool(message(sock))
                        sock.sendall(answer)


def test_a_server_that_tired_of_a_connection_as_it_was_asked_is_asked_anew() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Tires(listener)
        client = HttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}", tires=True)
        assert [client.get("/", SECONDS).body for _ in range(3)] == [b"x"] * 3
        assert server.asked == 5
        with pytest.raises(Unanswered, match="closed the connection before its answer"):
            client.post_json("/", {}, SECONDS)  # what was asked for may have been done
        client.close()


@pytest.mark.parametrize(("tires", "last"), [(True, http(b"x")[:20]), (False, b"")], ids=["begun", "of no such server"])
def test_an_answer_that_was_begun_or_that_means_something_is_not_asked_for_again(tires: bool, last: bytes) -> None:
    """A dockerd that ends closes its connections: to connect anew would have systemd start the next one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Tires(listener, last)
        client = HttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}", tires=tires)
        client.get("/", SECONDS)
        with pytest.raises(Unanswered):
            client.get("/", SECONDS)
        assert server.asked == 2
        client.close()


def test_a_server_that_answers_nobody_is_asked_once() -> None:
    asked: list[bytes] = []

    def answer(request: bytes) -> tuple[bytes, ...]:
        asked.append(request)
        return ()

    with answering("127.0.0.1", answer) as port, pytest.raises(Unanswered, match="before its answer"):
        HttpClient(f"http://127.0.0.1:{port}", tires=True).get("/", SECONDS)
    assert len(asked) == 1
