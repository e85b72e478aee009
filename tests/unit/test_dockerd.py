"""dockerd by the SDK: what its answers become, the limits of each, and what an engine is sent."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs
from tests.tree import Tree
from tests.unit.docker_server import STREAM, STREAM_END, answers, chunk, dockerd, listening, plain, told
from tests.unit.wire import http, serving

from sparkd import share
from sparkd.hands.container import create_body
from sparkd.host import Host
from sparkd.host.gpu_ways import Request
from sparkd.launch.plan import ContainerSpec, Mount, Node, Ulimit
from sparkd.launch.planner import make_plan
from sparkd.launch.script import SCRIPT_TARGET
from sparkd.lib.dockerd.engine import DockerEngine
from sparkd.lib.dockerd.reader import (
    FAILED,
    MISSING,
    DockerError,
    DockerReader,
    DockerUnansweredError,
    DockerUnreadableError,
    connect,
)
from sparkd.recipes import load
from sparkd.settings import Settings

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
    with closing(connect(path, seconds)) as docker:
        return docker.info()


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


@pytest.mark.parametrize(
    ("status", "body", "error", "says"),
    [
        (500, b'{"message": "RWLayer is nil"}', DockerUnreadableError, "GET /info: HTTP 500"),
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


def cut_short() -> Iterator[bytes]:
    yield HEAD + b"\r\n{"
    yield from silent()


@pytest.mark.parametrize("parts", [silent, cut_short], ids=["silence", "silence in the body"])
def test_a_docker_that_hangs_is_not_waited_for(parts: Callable[[], Iterable[bytes]]) -> None:
    began = time.monotonic()
    with dockerd(lambda _: parts()) as path, pytest.raises(DockerUnansweredError) as raised:
        info(path)
    assert SECONDS <= time.monotonic() - began < 2 * SECONDS
    assert str(raised.value) == f"GET /info: no answer within {SECONDS} s"


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


def test_neither_proxy_nor_netrc_of_root_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("machine localhost login a password b\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:1")
    heads = []

    def answer(request: bytes) -> Iterable[bytes]:
        heads.append(request)
        return told({})

    with listening() as (path, listener), serving(listener, answer):
        assert info(path) == {}
    assert b"authorization" not in heads[0].lower()


def test_a_docker_configuration_of_root_that_is_none_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('["not", "a configuration"]')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with dockerd(answers({})) as path, pytest.raises(DockerUnreadableError):
        info(path)


def test_recorded_answers_come_by_the_same_way(tree: Tree) -> None:
    tree.docker("/images/a/b@sha256:00/json", {"Id": "x"})
    tree.docker("/containers/json", {"message": "broken"}, fails=True)
    docker = Host(tree.root).docker_reader()
    assert docker.image("a/b@sha256:00") == {"Id": "x"}
    assert docker.image("a/b@sha256:01") is None
    with pytest.raises(DockerUnreadableError, match="GET /containers/json: HTTP 500") as raised:
        docker.containers()
    assert raised.value.status == FAILED


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
    for found, status in ({}, MISSING), ({"GET /images/a:1/json": (200, b"[]")}, 0):
        with dockerd(answers(found)) as path, pytest.raises(DockerError) as raised:
            DockerEngine(path).image_id("a:1")
        assert raised.value.status == status


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


NODE = Node(0, "127.0.0.1", "127.0.0.1", 1)
CONTAINER = ContainerSpec(
    gpus="all",
    ipc="host",
    network="host",
    privileged=False,
    init=True,
    shm_bytes=None,
    memory_limit_bytes=1 << 30,
    ulimits=(Ulimit("memlock", -1, -1),),
    devices=("/dev/infiniband",),
    mounts=(Mount("/srv/models", "/models", True), Mount("/srv/x", "/x", False)),
)
HOST_CONFIG = {
    "NetworkMode": "host",
    "IpcMode": "host",
    "Init": True,
    "Memory": 1 << 30,
    "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}],
    "Devices": [{"PathOnHost": "/dev/infiniband", "PathInContainer": "/dev/infiniband", "CgroupPermissions": "rwm"}],
    "Mounts": [
        {"Target": SCRIPT_TARGET, "Source": "/run/sparkd/launch.sh", "Type": "bind", "ReadOnly": True},
        {"Target": "/models", "Source": "/srv/models", "Type": "bind", "ReadOnly": True},
        {"Target": "/x", "Source": "/srv/x", "Type": "bind", "ReadOnly": False},
    ],
    "LogConfig": {"Type": "local", "Config": {"max-size": "20m", "max-file": "5"}},
}


@pytest.mark.parametrize(
    ("changes", "gpu", "host_config", "others"),
    [
        ({}, Request.DEVICE, {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]}, {}),
        ({"init": False}, None, {"Init": False}, {}),
        ({"privileged": True, "shm_bytes": 1 << 34}, None, {"Privileged": True, "ShmSize": 1 << 34}, {}),
        ({}, Request.RUNTIME, {"Runtime": "nvidia"}, {"Env": ["NVIDIA_VISIBLE_DEVICES=all"]}),
        ({}, Request.GPUS, {"DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}]}, {}),
    ],
    ids=["cdi", "no init", "privileged", "runtime", "hook"],
)
def test_what_docker_is_sent_for_a_container(
    changes: dict[str, object], gpu: Request | None, host_config: dict[str, object], others: dict[str, object]
) -> None:
    """What is absent, zero or empty is docker's default; but where Init is absent, daemon.json decides."""
    recipe = load.load("tiny-cpu", [share.recipes()]).recipe
    made = structs.replace(
        make_plan(recipe, Settings(), NODE), container=structs.replace(CONTAINER, **changes), caches=()
    )
    body = create_body(made, "sha256:1", Path("/run/sparkd/launch.sh"), {"a": "b"}, gpu)
    sent = []

    def answer(request: bytes) -> Iterable[bytes]:
        sent.append(request)
        return told({"Id": ID, "Warnings": []}, 201)

    with listening() as (path, listener), serving(listener, answer):
        assert DockerEngine(path).create("sparkd-rank0", body) == ID
    head, _, text = sent[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1.44/containers/create?name=sparkd-rank0 ")
    found = json.loads(text)
    sent_host_config = {key: value for key, value in found.pop("HostConfig").items() if value or key == "Init"}
    assert sent_host_config == {**HOST_CONFIG, **host_config}
    assert {key: value for key, value in found.items() if value} == {
        "Image": "sha256:1",
        "Entrypoint": ["/bin/bash"],
        "Cmd": [SCRIPT_TARGET],
        "Labels": {"a": "b"},
        **others,
    }
