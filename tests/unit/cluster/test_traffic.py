"""Traffic of a test: carried and counted, for who proves the key alone."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from sparkd.cluster import traffic
from sparkd.cluster.auth import new_nonce, sign_traffic
from sparkd.cluster.traffic import ECHO, FACTS, FROM_HERE, RESULT, TO_HERE, Listening, Measurer, RefusedError

HERE = "127.0.0.1"
KEY, OTHER = b"k" * 32, b"o" * 32


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Listening, int]]:
    monkeypatch.setattr(traffic, "SECONDS", 0.2)
    made = Listening()
    with made.on({HERE: ""}, 0, lambda: (KEY,), b"facts") as port:
        yield made, port


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "PROOF_SECONDS", 0.5)


def measurer(port: int, *keys: bytes) -> Measurer:
    return Measurer(HERE, HERE, port, lambda: keys or (KEY,))


def connect(port: int) -> tuple[socket.socket, str]:
    """By hand, with the challenge."""
    connection = socket.create_connection((HERE, port), 2)
    return connection, connection.recv(32).decode()


def request(
    challenge: str, kind: str, *, key: bytes = KEY, to: str = HERE, body: bytes = b"", nonce: str = ""
) -> bytes:
    nonce = nonce or new_nonce()
    signature = sign_traffic(key, challenge, nonce, to, kind, body, listens=False)
    return (kind + nonce + signature).encode() + len(body).to_bytes(4, "big") + body


def test_both_directions_and_the_round_trips_are_measured(listening: tuple[Listening, int]) -> None:
    found = measurer(listening[1]).measure()
    assert found.sent_gbps > 0.05
    assert found.received_gbps > 0.05
    assert 1 < found.round_trip_us <= found.round_trip_99_us < 1e6
    assert measurer(listening[1]).measure_ceiling() > 0.05


def test_what_a_slow_reader_takes_is_counted_and_not_what_was_sent(listening: tuple[Listening, int]) -> None:
    """The buffers between them hold megabytes."""
    one, challenge = connect(listening[1])
    with one:
        one.sendall(request(challenge, TO_HERE))
        traffic._read(one, 64 + 4, time.monotonic() + 1)
        one.sendall(bytes(12345))
        one.shutdown(socket.SHUT_WR)
        assert int.from_bytes(traffic._read(one, 8, time.monotonic() + 2), "big") == 12345


def test_facts_are_sent_and_a_result_is_taken(listening: tuple[Listening, int]) -> None:
    made, port = listening
    assert measurer(port).request(FACTS) == b"facts"
    assert measurer(port).request(RESULT, b"figures" * 1000) == b""
    assert made.wait_result(2) == b"figures" * 1000
    assert made.wait_result(0.1) is None


def test_any_key_of_the_file_is_proven(listening: tuple[Listening, int]) -> None:
    assert measurer(listening[1], OTHER, KEY).request(FACTS) == b"facts"


def test_another_key_is_refused(listening: tuple[Listening, int]) -> None:
    with pytest.raises(RefusedError, match="does not accept"):
        measurer(listening[1], OTHER).request(FACTS)


@pytest.mark.parametrize(
    "made",
    [
        lambda challenge: request("0" * 32, FACTS),  # of another connection
        lambda challenge: request(challenge, FACTS, key=OTHER),
        lambda challenge: request(challenge, FACTS, to="10.0.0.9"),  # for another node
        lambda challenge: RESULT.encode() + request(challenge, FACTS)[1:],  # another kind
        lambda challenge: request(challenge, RESULT, body=b"good")[:-4] + b"evil",
        lambda challenge: request(challenge, FACTS)[:-4] + (1 << 30).to_bytes(4, "big"),
        lambda challenge: b"\xff" * 101,
        lambda challenge: b"GET /report HTTP/1.1\r\n\r\n" + bytes(100),
    ],
)
def test_nothing_is_said_to_who_proves_no_key(listening: tuple[Listening, int], made: object) -> None:
    one, challenge = connect(listening[1])
    with one:
        one.sendall(made(challenge))  # type: ignore[operator]  # a function
        with pytest.raises((ConnectionError, TimeoutError)):
            traffic._read(one, 1, time.monotonic() + 2)
    assert listening[0].wait_result(0.05) is None
    assert measurer(listening[1]).request(FACTS) == b"facts"


@pytest.mark.usefixtures("impatient")
def test_who_says_nothing_is_left_after_a_moment(listening: tuple[Listening, int]) -> None:
    one, _ = connect(listening[1])
    with one:
        one.settimeout(3)
        assert one.recv(1) == b""


@pytest.mark.usefixtures("impatient")
def test_a_byte_now_and_then_makes_no_longer_proof(listening: tuple[Listening, int]) -> None:
    one, _ = connect(listening[1])
    began = time.monotonic()
    with one, pytest.raises(ConnectionError):
        while time.monotonic() < began + 5:
            one.sendall(b"F")
            time.sleep(0.05)
    assert time.monotonic() - began < 3


def test_more_connections_than_are_needed_are_closed_and_the_next_ones_are_taken(
    listening: tuple[Listening, int],
) -> None:
    held = [socket.create_connection((HERE, listening[1]), 2) for _ in range(traffic.MOST_CONNECTIONS + 3)]
    with pytest.raises((ConnectionError, OSError)):
        for one in held:
            if not one.recv(32):
                raise ConnectionResetError
    for one in held:
        one.close()
    end = time.monotonic() + 5
    while True:
        try:
            assert measurer(listening[1]).request(FACTS) == b"facts"
            break
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.mark.parametrize("kind", [FROM_HERE, ECHO])
def test_who_goes_away_ends_its_connection_alone(listening: tuple[Listening, int], kind: str) -> None:
    one, challenge = connect(listening[1])
    one.sendall(request(challenge, kind))
    traffic._read(one, 64 + 4, time.monotonic() + 1)
    one.sendall(b"\0")
    one.close()
    assert measurer(listening[1]).request(FACTS) == b"facts"


def pretend(replies: bytes) -> int:
    """A program on a port that says this, whatever it is sent."""
    taken = socket.create_server((HERE, 0))

    def serve() -> None:
        with taken:
            connection, _ = taken.accept()
            with connection:
                connection.sendall(replies)
                connection.settimeout(2)
                while connection.recv(4096):
                    pass

    threading.Thread(target=serve, daemon=True).start()
    return int(taken.getsockname()[1])


def test_who_listens_proves_the_key_too() -> None:
    port = pretend(b"0" * 32 + b"f" * 64 + (4).to_bytes(4, "big") + b"lies")
    with pytest.raises(RefusedError, match="does not prove"):
        measurer(port).request(FACTS)


def test_a_reply_without_end_is_not_read() -> None:
    port = pretend(b"0" * 32 + b"f" * 64 + (1 << 31).to_bytes(4, "big"))
    with pytest.raises(RefusedError, match="too many"):
        measurer(port).request(FACTS)


def test_a_server_of_something_else_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "PROOF_SECONDS", 0.3)
    with pytest.raises(TimeoutError):
        measurer(pretend(b"")).request(FACTS)


def test_a_port_that_is_taken_is_an_error(listening: tuple[Listening, int]) -> None:
    with pytest.raises(OSError, match="in use"), Listening().on({HERE: ""}, listening[1], lambda: (KEY,), b""):
        pass
