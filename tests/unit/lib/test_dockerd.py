"""dockerd by the SDK: answers, errors and deadlines."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.clock import unstalled
from tests.unit.docker_server import answers, dockerd, json_response, listening, plain
from tests.unit.wire import serving

from sparkd.base.host import Host
from sparkd.base.lib.dockerd.reader import FAILED, FORBIDDEN, DockerError, DockerReader, connect

SECONDS = 0.4
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n"
READS: dict[str, Callable[[DockerReader], object]] = {
    "/containers/json": lambda docker: docker.containers(),
    "/containers/abc/json": lambda docker: docker.container("abc"),
    "/images/a/b:1/json": lambda docker: docker.image("a/b:1"),
    "/version": lambda docker: docker.version(),
    "/info": lambda docker: docker.info(),
}


def info(path: str, seconds: float = SECONDS) -> object:
    with closing(connect(path, seconds)) as docker:
        return docker.info()


@pytest.mark.parametrize("path", READS)
def test_each_read_returns_the_answer_of_its_path(path: str) -> None:
    with dockerd(answers({f"GET {path}": (200, b'{"a": 1}')})) as socket, closing(connect(socket)) as docker:
        assert READS[path](docker) == {"a": 1}
        others = [read(docker) for name, read in READS.items() if name != path]
        assert others == [None] * len(others), "404 is None"


def test_a_container_is_requested_each_time_and_others_once() -> None:
    requests = []

    def answer(request: str) -> Iterable[bytes]:
        requests.append(plain(request))
        return json_response({"at": len(requests)})

    with dockerd(answer) as socket, closing(connect(socket)) as docker:
        assert [docker.container("a"), docker.container("a")] == [{"at": 1}, {"at": 2}]
        assert [docker.version(), docker.version()] == [{"at": 3}, {"at": 3}]


def test_the_reader_has_no_method_that_acts() -> None:
    with closing(connect("/none")) as docker:
        public = {name for name in dir(docker) if not name.startswith("_")}
    assert public == {"answers", "containers", "container", "image", "images", "version", "info", "events", "close"}


def test_the_first_request_connects(tmp_path: Path) -> None:
    connect(str(tmp_path / "none")).close()
    with pytest.raises(DockerError, match=r"^GET /info: .*No such file"):
        info(str(tmp_path / "none"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_user_whom_docker_is_closed_to_gets_to_know_whom_it_is_for() -> None:
    with listening() as (path, _), closing(connect(path)) as docker:
        with pytest.raises(DockerError, match="No such file"):
            info("/none")  # imports the SDK, which that user may not read
        os.seteuid(65534)
        try:
            with pytest.raises(DockerError, match=f"^GET /version: {FORBIDDEN}$"):
                docker.version()
        finally:
            os.seteuid(0)


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (500, b'{"message": "RWLayer is nil"}', "GET /info: HTTP 500"),
        (503, b"busy", "GET /info: HTTP 503"),
        (500, b"{}", "GET /info: not as docker's"),
        (500, b"[]", "GET /info: not as docker's"),
        (200, b"[", "GET /info: not JSON"),
        (200, b"", "GET /info: not JSON"),
        (200, b"[" * 100_000, "GET /info: not"),
    ],
)
def test_another_answer_than_dockers_is_an_error(status: int, body: bytes, reason: str) -> None:
    with dockerd(answers({"GET /info": (status, body)})) as path, pytest.raises(DockerError, match=f"^{reason}"):
        info(path)


def silent() -> Iterator[bytes]:
    time.sleep(3 * SECONDS)
    yield b""


def cut_short() -> Iterator[bytes]:
    yield HEAD + b"\r\n{"
    yield from silent()


@pytest.mark.parametrize("parts", [silent, cut_short], ids=["silence", "silence in the body"])
def test_a_docker_that_hangs_is_abandoned_at_the_deadline(parts: Callable[[], Iterable[bytes]]) -> None:
    began, unstalled_began = time.monotonic(), unstalled()
    with dockerd(lambda _: parts()) as path, pytest.raises(DockerError) as raised:
        info(path)
    assert time.monotonic() - began >= SECONDS
    assert unstalled() - unstalled_began < 2 * SECONDS
    assert str(raised.value) == f"GET /info: no answer within {SECONDS} s"


@pytest.mark.parametrize("answer", [(), (HEAD,), (b"SSH-2.0-x\r\n",)], ids=["closed", "broken off", "not HTTP"])
def test_a_server_without_http_is_an_error(answer: tuple[bytes, ...]) -> None:
    def answered(_request: str) -> Iterable[bytes]:
        yield from answer
        raise OSError  # the server closes the connection

    with dockerd(answered) as path, pytest.raises(DockerError):
        info(path, 5)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ("1.60", "client version 1.44 is too old. Minimum supported API version is 1.52, please upgrade your client"),
        ("1.43", "client version 1.44 is too new. Maximum supported API version is 1.43"),
    ],
)
def test_a_docker_without_this_api_version_is_used_by_its_own(own: str, words: str) -> None:
    requests = []

    def answer(request: str) -> Iterable[bytes]:
        requests.append(request)
        if request == "GET /version":
            return json_response({"ApiVersion": own})
        if f"/v{own}/" in request:
            return json_response({"good": True})
        return json_response({"message": words}, 400)

    with dockerd(answer) as path, closing(connect(path)) as docker:
        assert docker.info() == docker.image("x") == {"good": True}
    assert requests == ["GET /v1.44/info", "GET /version", f"GET /v{own}/info", f"GET /v{own}/images/x/json"]


def test_neither_proxy_nor_netrc_of_root_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("machine localhost login a password b\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:1")
    heads = []

    def answer(request: bytes) -> Iterable[bytes]:
        heads.append(request)
        return json_response({})

    with listening() as (path, listener), serving(listener, answer):
        assert info(path) == {}
    assert b"authorization" not in heads[0].lower()


def test_an_invalid_docker_configuration_of_root_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('["not", "a configuration"]')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with dockerd(answers({})) as path, pytest.raises(DockerError):
        info(path)


def test_recorded_answers_are_read_by_the_same_code(tree: Tree) -> None:
    tree.docker("/images/a/b@sha256:00/json", {"Id": "x"})
    tree.docker("/containers/json", {"message": "broken"}, fails=True)
    docker = Host(tree.root).docker_reader()
    assert docker.image("a/b@sha256:00") == {"Id": "x"}
    assert docker.image("a/b@sha256:01") is None
    with pytest.raises(DockerError, match="GET /containers/json: HTTP 500") as raised:
        docker.containers()
    assert raised.value.status == FAILED
