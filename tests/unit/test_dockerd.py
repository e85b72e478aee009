"""dockerd by the SDK: what its answers become, the limits of each, and what an engine is sent."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs
from tests.tree import Tree
from tests.unit.docker_server import STREAM, STREAM_END, answers, chunk, dockerd, listening, plain, told
from tests.unit.wire import dripped, http, serving

from sparkd.host import Host
from sparkd.lib.dockerd.engine import DockerEngine
from sparkd.lib.dockerd.reader import (
    DockerError,
    DockerFailedError,
    DockerMissingError,
    DockerReader,
    DockerUnansweredError,
    DockerUnreadableError,
    connect,
)
from sparkd.lib.dockerd.spec import BindMount, ContainerSpec, GpuRequest, Limit
from sparkd.lib.dockerd.transport import ANSWER_LIMIT_BYTES

ID = "ab" * 32
SECONDS = 0.4
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n"
QUESTIONS: dict[str, Callable[[DockerReader], object]] = {
    "/containers/json": lambda docker: docker.containers(),
    "/containers/abc/json": lambda docker: docker.container("abc"),
    "/images/a/b:1/json": lambda docker: docker.image("a/b:1"),
    "/version": lambda docker: docker.version(),
    "/info": lambda docker: docker.info(),
}


def info(path: str, seconds: float = SECONDS) -> object:
    with closing(connect(path)) as docker:
        return docker.info(seconds)


@pytest.mark.parametrize("path", QUESTIONS)
def test_each_question_has_its_answer(path: str) -> None:
    with dockerd(answers({f"GET {path}": (200, b'{"a": 1}')})) as socket, closing(connect(socket)) as docker:
        assert QUESTIONS[path](docker) == {"a": 1}
        others = [ask(docker) for name, ask in QUESTIONS.items() if name != path]
        assert others == [None] * len(others), "what docker knows nothing of is None"


def test_the_face_that_probes_get_can_not_act() -> None:
    with closing(connect("/nowhere")) as docker:
        public = {name for name in dir(docker) if not name.startswith("_")}
    assert public == {"containers", "container", "image", "version", "info", "close"}


def test_nobody_is_connected_to_before_the_first_question(tmp_path: Path) -> None:
    connect(str(tmp_path / "none")).close()
    with pytest.raises(DockerUnansweredError, match=r"^GET /info: .*No such file"):
        info(str(tmp_path / "none"))


def test_questions_share_one_connection() -> None:
    threads = []

    def answer(_request: str) -> Iterable[bytes]:
        threads.append(threading.get_ident())  # the server has one for each connection
        return told([])

    with dockerd(answer) as path, closing(connect(path)) as docker:
        for _ in range(3):
            docker.containers()
            docker.image("a")
    assert len(threads) == 6
    assert len(set(threads)) == 1


@pytest.mark.parametrize(
    ("status", "body", "error", "says"),
    [
        (500, b'{"message": "RWLayer is nil"}', DockerFailedError, "GET /info: HTTP 500"),
        (503, b"busy", DockerUnreadableError, "GET /info: HTTP 503"),
        (500, b"{}", DockerUnreadableError, "GET /info: not as docker's"),
        (500, b"[]", DockerUnreadableError, "GET /info: not as docker's"),
        (200, b"[", DockerUnreadableError, "GET /info: not JSON"),
        (200, b"", DockerUnreadableError, "GET /info: not JSON"),
        (200, b"[" * 100_000, DockerUnreadableError, "GET /info: not"),
    ],
)
def test_what_is_not_dockers_answer_is_an_error(status: int, body: bytes, error: type[Exception], says: str) -> None:
    with dockerd(answers({"GET /info": (status, body)})) as path, pytest.raises(error) as raised:
        info(path)
    assert str(raised.value).startswith(says)


def silent() -> Iterator[bytes]:
    time.sleep(3 * SECONDS)
    yield b""


@pytest.mark.parametrize(
    "parts",
    [
        lambda: dripped(HEAD + b"X: ", 0.02),
        lambda: dripped(HEAD + b"\r\n", 0.02),
        lambda: dripped(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 0.02),
        silent,
    ],
    ids=["headers drip", "a body drips", "chunks drip", "silence"],
)
def test_a_whole_answer_has_one_deadline(parts: Callable[[], Iterable[bytes]]) -> None:
    began = time.monotonic()
    with dockerd(lambda _: parts()) as path, pytest.raises(DockerUnansweredError) as raised:
        info(path)
    assert SECONDS <= time.monotonic() - began < 2 * SECONDS
    assert str(raised.value) == f"GET /info: no answer within {SECONDS} s"


def test_an_answer_without_end_is_cut_off() -> None:
    def endless() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\n\r\n"
        while True:
            yield b" " * (1 << 20)

    with dockerd(lambda _: endless()) as path, pytest.raises(DockerUnansweredError, match="answer of over"):
        info(path, 30)


def test_an_answer_may_be_long() -> None:
    body = json.dumps("x" * (ANSWER_LIMIT_BYTES - 1000)).encode()
    with dockerd(answers({"GET /info": (200, body), "GET /version": (200, body)})) as path:
        for _ in range(2):
            assert len(str(info(path, 30))) == ANSWER_LIMIT_BYTES - 1000


@pytest.mark.parametrize("answer", [(), (HEAD,), (b"SSH-2.0-x\r\n",)], ids=["closed", "broken off", "not HTTP"])
def test_a_server_that_is_none_is_an_error(answer: tuple[bytes, ...]) -> None:
    def answered(_request: str) -> Iterable[bytes]:
        yield from answer
        raise OSError  # the server closes the connection

    with dockerd(answered) as path, pytest.raises(DockerUnansweredError):
        info(path, 5)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ("1.60", "client version 1.44 is too old. Minimum supported API version is 1.52, please upgrade your client"),
        ("1.43", "client version 1.44 is too new. Maximum supported API version is 1.43"),
    ],
)
def test_a_docker_without_this_version_is_asked_for_its_own(own: str, words: str) -> None:
    seen = []

    def answer(request: str) -> Iterable[bytes]:
        seen.append(request)
        if request == "GET /version":
            return told({"ApiVersion": own})
        if f"/v{own}/" in request:
            return told({"good": True})
        return told({"message": words}, 400)

    with dockerd(answer) as path, closing(connect(path)) as docker:
        assert docker.info() == docker.info() == {"good": True}
    assert seen == ["GET /v1.44/info", "GET /version", f"GET /v{own}/info", f"GET /v{own}/info"]


def test_roots_own_configuration_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker/config.json").write_text('["not", "a configuration"]')
    (tmp_path / ".netrc").write_text("machine localhost login a password b\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    heads = []

    def answer(request: bytes) -> Iterable[bytes]:
        heads.append(request)
        return told({})

    with listening() as (path, listener), serving(listener, answer):
        info(path)
    assert b"authorization" not in heads[0].lower()
    assert b"Accept-Encoding: identity" in heads[0]


def test_recorded_answers_come_by_the_same_way(tree: Tree) -> None:
    tree.docker("/images/a/b@sha256:00/json", {"Id": "x"})
    tree.docker("/containers/json", {"message": "broken"}, fails=True)
    docker = Host(tree.root).docker_reader()
    assert docker.image("a/b@sha256:00") == {"Id": "x"}
    assert docker.image("a/b@sha256:01") is None
    with pytest.raises(DockerFailedError, match="GET /containers/json: HTTP 500"):
        docker.containers()


@pytest.mark.parametrize("status", [204, 304, 404])
def test_a_container_that_is_gone_needs_no_stop(status: int) -> None:
    body = b"" if status < 400 else b'{"message": "No such container"}'
    with dockerd(lambda _: (http(body, status=status),)) as path:
        DockerEngine(path).stop(ID, 1)


@pytest.mark.parametrize("status", [404, 409])
def test_a_container_that_is_being_removed_needs_no_removal(status: int) -> None:
    with dockerd(lambda _: told({"message": "x"}, status)) as path:
        DockerEngine(path).remove(ID)


def test_what_docker_refuses_is_an_error_in_its_own_words() -> None:
    with dockerd(lambda _: told({"message": "driver failed:\n  no space"}, 500)) as path:
        engine = DockerEngine(path)
        acts: tuple[Callable[[], None], ...] = (
            partial(engine.remove, ID),
            partial(engine.start, ID),
            partial(engine.stop, ID, 1),
        )
        for act in acts:
            with pytest.raises(DockerError, match=r"^driver failed: no space$"):
                act()


def test_a_missing_image_is_told_from_a_failure() -> None:
    with dockerd(answers({})) as path, pytest.raises(DockerMissingError):
        DockerEngine(path).image_id("a:1")
    with dockerd(answers({"GET /images/a:1/json": (200, b"[]")})) as path, pytest.raises(DockerError):
        DockerEngine(path).image_id("a:1")


def test_a_container_is_removed_with_force_and_stopped_within_its_grace() -> None:
    seen = []

    def answer(request: str) -> Iterable[bytes]:
        seen.append(request)
        return (http(b"", status=204),)

    with dockerd(answer) as path:
        engine = DockerEngine(path)
        engine.stop(ID, 3)
        engine.remove(ID)
    assert [plain(one) for one in seen] == [f"POST /containers/{ID}/stop", f"DELETE /containers/{ID}"]
    assert seen[0].endswith("?t=3")
    assert "force=True" in seen[1]


def test_an_image_is_saved_in_pieces() -> None:
    def answer(request: str) -> Iterable[bytes]:
        if request.endswith("/json"):
            yield from told({"Id": "sha256:1"})
            return
        yield STREAM
        yield from [chunk(b"t" * (1 << 20))] * 5
        yield STREAM_END

    with dockerd(answer) as path:
        assert sum(map(len, DockerEngine(path).save_image("a:1"))) == 5 << 20
    with dockerd(answers({})) as path, pytest.raises(DockerError, match="no such thing"):
        list(DockerEngine(path).save_image("a:1"))


SPEC = ContainerSpec(
    image="sha256:1",
    name="sparkd-rank0",
    entrypoint=("/bin/bash",),
    command=("/run/script",),
    labels={"a": "b"},
    network_mode="host",
    ipc_mode="host",
    privileged=False,
    init=True,
    shm_bytes=None,
    memory_bytes=1 << 30,
    ulimits=(Limit("memlock", -1, -1),),
    devices=("/dev/infiniband",),
    gpus=(GpuRequest(driver="cdi", device_ids=("nvidia.com/gpu=all",)),),
    runtime=None,
    environment={},
    mounts=(BindMount("/srv/models", "/models", True),),
    log_driver="local",
    log_options={"max-size": "20m"},
)
ALL_GPUS = {"Driver": "", "Count": -1, "DeviceIDs": [], "Capabilities": [["gpu"]], "Options": {}}
HOST_CONFIG = {
    "NetworkMode": "host",
    "IpcMode": "host",
    "Init": True,
    "Memory": 1 << 30,
    "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}],
    "Devices": [{"PathOnHost": "/dev/infiniband", "PathInContainer": "/dev/infiniband", "CgroupPermissions": "rwm"}],
    "DeviceRequests": [
        {"Driver": "cdi", "Count": 0, "DeviceIDs": ["nvidia.com/gpu=all"], "Capabilities": [], "Options": {}}
    ],
    "Mounts": [{"Target": "/models", "Source": "/srv/models", "Type": "bind", "ReadOnly": True}],
    "LogConfig": {"Type": "local", "Config": {"max-size": "20m"}},
}


@pytest.mark.parametrize(
    ("changes", "host_config", "others"),
    [
        ({}, {}, {}),
        ({"privileged": True, "shm_bytes": 1 << 34}, {"Privileged": True, "ShmSize": 1 << 34}, {}),
        (
            {"gpus": (), "runtime": "nvidia", "environment": {"NVIDIA_VISIBLE_DEVICES": "all"}},
            {"DeviceRequests": [], "Runtime": "nvidia"},
            {"Env": ["NVIDIA_VISIBLE_DEVICES=all"]},
        ),
        (
            {"gpus": (GpuRequest(count=-1, capabilities=("gpu",)),)},
            {
                "DeviceRequests": [
                    {"Driver": "", "Count": -1, "DeviceIDs": [], "Capabilities": [["gpu"]], "Options": {}}
                ]
            },
            {},
        ),
    ],
    ids=["cdi", "privileged", "runtime", "hook"],
)
def test_what_docker_is_sent_for_a_container(
    changes: dict[str, object], host_config: dict[str, object], others: dict[str, object]
) -> None:
    sent = []

    def answer(request: bytes) -> Iterable[bytes]:
        sent.append(request)
        return told({"Id": ID, "Warnings": []}, 201)

    with listening() as (path, listener), serving(listener, answer):
        assert DockerEngine(path).create(structs.replace(SPEC, **changes)) == ID
    head, _, body = sent[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1.44/containers/create?name=sparkd-rank0 ")
    found = json.loads(body)
    assert found.pop("HostConfig") == {**HOST_CONFIG, **host_config}
    said = {key: value for key, value in found.items() if value}
    assert said == {
        "Image": "sha256:1",
        "Entrypoint": ["/bin/bash"],
        "Cmd": ["/run/script"],
        "Labels": {"a": "b"},
        **others,
    }
