"""The test client: HTTP from the bed's own network, where the management bridge is."""

import http.client
import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from . import namespaces


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: str


def connect(pid: int, address: str, port: int, timeout: float) -> socket.socket:
    """A connection made in the network namespace of process `pid`; a socket stays where it was born."""
    outcomes: list[socket.socket | Exception] = []

    def there() -> None:
        try:
            handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
            try:
                namespaces.setns(handle, namespaces.NEW_NET)
            finally:
                os.close(handle)
            outcomes.append(socket.create_connection((address, port), timeout))
        except Exception as error:  # raised below, in the caller's thread
            outcomes.append(error)

    thread = threading.Thread(target=there)  # setns moves only the thread that calls it
    thread.start()
    thread.join()
    (outcome,) = outcomes
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def request(
    connection: socket.socket, method: str, path: str, body: str | None, headers: Mapping[str, str], timeout: float
) -> Answer:
    address, port = connection.getpeername()[:2]
    client = http.client.HTTPConnection(address, port, timeout=timeout)
    client.sock = connection
    try:
        client.request(method, path, body=body.encode() if body is not None else None, headers=dict(headers))
        answer = client.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read().decode(errors="replace"))
    finally:
        client.close()
