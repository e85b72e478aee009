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


def connect(network_of: int, address: str, port: int, timeout: float) -> socket.socket:
    """A connection made in the network namespace of that process; a socket stays where it was born."""
    result: list[socket.socket | OSError] = []

    def there() -> None:
        try:
            handle = os.open(f"/proc/{network_of}/ns/net", os.O_RDONLY)
            try:
                namespaces.setns(handle, namespaces.NEW_NET)
            finally:
                os.close(handle)
            result.append(socket.create_connection((address, port), timeout))
        except OSError as error:
            result.append(error)

    thread = threading.Thread(target=there)  # setns moves only the thread that calls it
    thread.start()
    thread.join()
    if isinstance(result[0], OSError):
        raise result[0]
    return result[0]


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
