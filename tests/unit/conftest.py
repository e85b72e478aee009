"""Fixtures of unit tests."""

import gc
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.tree import Tree
from tests.unit.http_receivers import Receiver, receiver
from tests.unit.limits import no_more_threads
from tests.unit.traffic_programs import Programs
from tests.unit.wire import reserved_port

settings.register_profile("sparkd", deadline=None)  # a busy machine makes no example wrong
settings.load_profile("sparkd")


def pytest_collection_finish() -> None:
    """Eight thousand tests are no garbage: a collection takes a quarter of a second where it looks at them too."""
    gc.freeze()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """An empty machine."""
    made = Tree(tmp_path / "machine")
    made.folder("/proc")
    made.folder("/dev/shm")
    return made


@pytest.fixture
def port() -> Iterator[int]:
    """Where nobody listens but the test's own nodes."""
    with reserved_port() as number:
        yield number


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Programs]:
    with tempfile.TemporaryDirectory(prefix="sparkd-programs-") as folder:
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        yield Programs(Path(folder))


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as hook:
        yield hook


Notifications = Callable[[], list[str]]


@pytest.fixture
def notifications(tmp_path: Path) -> Iterator[Notifications]:
    """Messages to systemd since the last call. Read all the while: after ten unread messages the sender waits."""
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))

        def listen() -> None:
            while message := listener.recv(4096):
                heard.append(message.decode())

        thread = threading.Thread(target=listen)
        thread.start()

        def take() -> list[str]:
            time.sleep(0.05)  # a message may be on its way
            taken = heard[:]
            del heard[: len(taken)]
            return taken

        os.environ["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        yield take
        del os.environ["NOTIFY_SOCKET"]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", str(tmp_path / "notify"))
        thread.join()


@pytest.fixture
def no_thread() -> Iterator[None]:
    with no_more_threads():
        yield


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the key and the certificate of 127.0.0.1; beside it FILE.crt with the certificate alone."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = ("-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run([*words.split(), *names, "-keyout", path, "-out", f"{path}.crt"], check=True, capture_output=True)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path
