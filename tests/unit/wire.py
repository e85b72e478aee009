"""A man in the middle: answers each request with bytes of the test's own."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

END = b"\r\n\r\n"


def message(sock: socket.socket) -> bytes:
    """One whole request or answer; what came of it, where the other side closes."""
    received = b""
    while END not in received:
        if not (more := sock.recv(65536)):
            return received
        received += more
    head, _, body = received.partition(END)
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    while len(body) < length and (more := sock.recv(65536)):
        body += more
    return head + END + body


def passed_on(request: bytes, address: str, port: int, source: str = "") -> bytes:
    """What a node answers to this request."""
    with socket.create_connection((address, port), 10, (source, 0) if source else None) as sock:
        sock.sendall(request)
        return message(sock)


@contextmanager
def relay(address: str, port: int) -> Iterator[Callable[[bytes], bytes]]:
    """Passes requests on, all of them on one connection."""
    with socket.create_connection((address, port), 10) as sock:

        def pass_on(request: bytes) -> bytes:
            sock.sendall(request)
            return message(sock)

        yield pass_on


def http(body: bytes, *headers: bytes, status: int = 200) -> bytes:
    lines = (b"HTTP/1.1 %d x" % status, b"Content-Length: %d" % len(body), *headers)
    return b"\r\n".join(lines) + END + body


def dripped(data: bytes, seconds: float) -> Iterator[bytes]:
    """Byte by byte, for ever where `data` is not enough."""
    for number in range(100_000):
        yield data[number : number + 1] or b"x"
        time.sleep(seconds)


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of all IPv4 addresses that refuses connections, and that no other program gets.

    The test may listen on it, on one address: with SO_REUSEADDR the kernel lets that share the port.
    """
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield taken.getsockname()[1]


@contextmanager
def answering(address: str, answer: Callable[[bytes], Iterable[bytes]]) -> Iterator[int]:
    """Serve; the port. An answer without a byte closes the connection."""
    listener = socket.create_server((address, 0))
    with serving(listener, answer):
        yield listener.getsockname()[1]


@contextmanager
def serving(listener: socket.socket, answer: Callable[[bytes], Iterable[bytes]]) -> Iterator[None]:
    """Serve on a socket that listens, and close it."""
    ended = threading.Event()

    def serve(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            while request := message(sock):
                answered = False
                for part in answer(request):
                    if ended.is_set():
                        return
                    sock.sendall(part)
                    answered = True
                if not answered:
                    return

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                threading.Thread(target=serve, args=(sock,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
