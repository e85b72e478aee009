"""dockerd by the SDK: answers, errors, deadlines, and the request that creates an engine's container."""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from msgspec import structs
from tests.tree import Tree
from tests.unit.docker_server import STREAM, STREAM_END, answers, chunk, dockerd, json_response, listening, plain
from tests.unit.wire import http, serving

from sparkd.agent.actions.dockerd import Containers, read_archive
from sparkd.agent.actions.processes import Rank
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.docker_config import GpuAccess
from sparkd.base.lib import recipes_dir
from sparkd.base.lib.dockerd.reader import FAILED, DockerError, DockerReader, connect
from sparkd.base.lib.errors import LaunchError
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import LaunchPlan, Node
from sparkd.base.plan.script import SCRIPT_TARGET
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.schema import Container, Limit, Volume

ID = "ab" * 32
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
    seen = []

    def answer(request: str) -> Iterable[bytes]:
        seen.append(plain(request))
        return json_response({"at": len(seen)})

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


@pytest.mark.parametrize(
    ("status", "body", "error", "says"),
    [
        (500, b'{"message": "RWLayer is nil"}', DockerError, "GET /info: HTTP 500"),
        (503, b"busy", DockerError, "GET /info: HTTP 503"),
        (500, b"{}", DockerError, "GET /info: not as docker's"),
        (500, b"[]", DockerError, "GET /info: not as docker's"),
        (200, b"[", DockerError, "GET /info: not JSON"),
        (200, b"", DockerError, "GET /info: not JSON"),
        (200, b"[" * 100_000, DockerError, "GET /info: not"),
    ],
)
def test_another_answer_than_dockers_is_an_error(status: int, body: bytes, error: type[Exception], says: str) -> None:
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
def test_a_docker_that_hangs_is_abandoned_at_the_deadline(parts: Callable[[], Iterable[bytes]]) -> None:
    began = time.monotonic()
    with dockerd(lambda _: parts()) as path, pytest.raises(DockerError) as raised:
        info(path)
    assert SECONDS <= time.monotonic() - began < 2 * SECONDS
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
    seen = []

    def answer(request: str) -> Iterable[bytes]:
        seen.append(request)
        if request == "GET /version":
            return json_response({"ApiVersion": own})
        if f"/v{own}/" in request:
            return json_response({"good": True})
        return json_response({"message": words}, 400)

    with dockerd(answer) as path, closing(connect(path)) as docker:
        assert docker.info() == docker.image("x") == {"good": True}
    assert seen == ["GET /v1.44/info", "GET /version", f"GET /v{own}/info", f"GET /v{own}/images/x/json"]


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


@pytest.mark.parametrize(
    ("done", "status", "harmless"),
    [
        *(("stopped", status, True) for status in (204, 304, 404)),
        *(("removed", status, True) for status in (204, 404, 409)),
        *((done, 500, False) for done in ("stopped", "removed")),
        ("stopped", 409, False),
    ],
)
def test_a_refusal_is_an_error_with_dockers_reason_unless_the_container_is_gone(
    done: str, status: int, harmless: bool
) -> None:
    seen = []

    def answer(request: str) -> Iterable[bytes]:
        seen.append(request)
        return (http(b"" if status < 400 else b'{"message": "driver failed:\\n  no space"}', status=status),)

    reason = f"^container {ID[:12]} can't be {done}: driver failed: no space$"
    with dockerd(answer) as path, nullcontext() if harmless else pytest.raises(LaunchError, match=reason):
        if done == "stopped":
            Containers(path).stop(ID, 3)
        else:
            Containers(path).remove(ID)
    assert [plain(one) for one in seen] == [
        f"POST /containers/{ID}/stop" if done == "stopped" else f"DELETE /containers/{ID}"
    ]
    assert ("t=3" if done == "stopped" else "force=True") in seen[0].partition("?")[2]


def test_a_missing_image_differs_from_a_failure(plan: LaunchPlan) -> None:
    for found, reason in (
        ({}, "^image vllm:1 is not on this node .sudo make demo"),
        ({"GET /images/vllm:1/json": (200, b"[]")}, "^image vllm:1 can't be looked up: not as docker's"),
    ):
        with dockerd(answers(found)) as path, pytest.raises(LaunchError, match=reason):
            Containers(path).start(plan, Path("/run/sparkd/launch.sh"), {}, None)


def test_an_image_is_saved_in_pieces() -> None:
    def answer(request: str) -> Iterable[bytes]:
        if request.endswith("/json"):
            yield from json_response({"Id": "sha256:1"})
            return
        yield STREAM
        yield from [chunk(b"t" * (1 << 20))] * 5
        yield STREAM_END

    with dockerd(answer) as path:
        assert sum(map(len, read_archive("a:1", path))) == 5 << 20
    with dockerd(answers({})) as path, pytest.raises(DockerError, match="no such thing"):
        list(read_archive("a:1", path))


NODE = Node(0, "127.0.0.1", "127.0.0.1", 1)
CONTAINER = Container(
    memory_limit_bytes=1 << 30,
    ulimits={"memlock": Limit(soft=-1, hard=-1)},
    devices=("/dev/infiniband",),
    volumes=(
        Volume(source="/srv/models", target="/m", read_only=True),
        Volume(source="/srv/x", target="/x", read_only=False),
    ),
)
HOST_CONFIG = {
    "NetworkMode": "host",
    "IpcMode": "host",
    "SecurityOpt": ["no-new-privileges"],
    "CapDrop": ["NET_RAW", "MKNOD", "AUDIT_WRITE", "SETFCAP", "SYS_CHROOT", "SETPCAP"],
    "PidsLimit": 65536,
    "Init": True,
    "Memory": 1 << 30,
    "Ulimits": [{"Name": "nofile", "Soft": 1048576, "Hard": 1048576}, {"Name": "memlock", "Soft": -1, "Hard": -1}],
    "Devices": [{"PathOnHost": "/dev/infiniband", "PathInContainer": "/dev/infiniband", "CgroupPermissions": "rwm"}],
    "Mounts": [
        {"Target": SCRIPT_TARGET, "Source": "/run/sparkd/launch.sh", "Type": "bind", "ReadOnly": True},
        {"Target": "/m", "Source": "/srv/models", "Type": "bind", "ReadOnly": True},
        {"Target": "/x", "Source": "/srv/x", "Type": "bind", "ReadOnly": False},
    ],
    "LogConfig": {"Type": "local", "Config": {"max-size": "20m", "max-file": "5"}},
}
SILENT = {"IpcMode": "private", "ShmSize": 32 << 30, "Ulimits": HOST_CONFIG["Ulimits"]}
"""Of a container whose recipe gives neither a size nor limits."""
ALL_RIGHTS = {"Privileged": True, "SecurityOpt": None, "CapDrop": None, "PidsLimit": None}


@pytest.fixture
def plan() -> LaunchPlan:
    recipe = load_recipe("tiny-cpu", [recipes_dir()]).recipe
    made = make_plan(recipe, Settings(), NODE)
    return structs.replace(made, image="vllm:1", container=CONTAINER, caches=())


def start(plan: LaunchPlan, pids: Iterable[int], gpu: GpuAccess | None = None, refusal: str = "") -> tuple[Rank, bytes]:
    """Start a container whose init has `pids`, one after the other, and then ends; with the request that created it.

    docker refuses to start it with `refusal`. A container that was not started must be removed.
    """
    requests, left = [], iter(pids)

    def answer(request: bytes) -> Iterable[bytes]:
        requests.append(request)
        match plain(request.decode().partition(" HTTP/")[0]).split("/"):
            case ["GET ", "images", *_]:
                return json_response({"Id": "sha256:1"})
            case ["GET ", "containers", _, "json"]:
                return json_response({"State": {"Pid": next(left, 0)}, "Config": {"Tty": True}})
            case ["GET ", "containers", _, "logs"]:
                return (http(b"no such file\nmore\n"),)
            case ["POST ", "containers", "create"]:
                return json_response({"Id": ID, "Warnings": []}, 201)
            case ["POST ", "containers", _, "start"] if refusal:
                return json_response({"message": refusal}, 500)
        return (http(b"", status=204),)

    with listening() as (path, listener), serving(listener, answer):
        try:
            rank = Containers(path).start(plan, Path("/run/sparkd/launch.sh"), {"a": "b"}, gpu)
        except LaunchError:
            assert requests[-1].startswith(f"DELETE /v1.44/containers/{ID}?".encode())
            raise
    os.close(rank.pidfd)
    return rank, next(one for one in requests if b"/create?" in one)


@pytest.mark.parametrize(
    ("pids", "refusal", "reason"),
    [
        ((), "no /bin/bash", "can't be started: no /bin/bash"),
        ((0,), "", "ended as soon as it was started: no such file"),
        ((1 << 22,), "", "ended as soon as it was started: no such file"),
        ((os.getpid(),), "", "ended as soon as it was started: no such file"),
    ],
    ids=["refused", "ended", "its pid gone", "its pid another's"],
)
def test_a_container_that_does_not_run_is_removed(
    plan: LaunchPlan, pids: tuple[int, ...], refusal: str, reason: str
) -> None:
    with pytest.raises(LaunchError, match=f"^container sparkd-rank0 {reason}$"):
        start(plan, pids, refusal=refusal)


HOSTS = {"Target": "/etc/hosts", "Source": "/run/sparkd/hosts", "Type": "bind", "ReadOnly": True}


@pytest.mark.parametrize(
    ("hosts", "target", "mounted"),
    [
        ((("::ffff:10.0.0.1", "sparkd-rank0"),), "/x", True),
        ((("::ffff:10.0.0.1", "sparkd-rank0"),), "/etc//hosts", False),
        ((), "/x", False),
    ],
    ids=["several nodes", "the recipe's own", "one node"],
)
def test_the_names_of_several_nodes_are_mounted_unless_the_recipe_has_its_own(
    plan: LaunchPlan, hosts: tuple[tuple[str, str], ...], target: str, mounted: bool
) -> None:
    volume = Volume(source="/srv/x", target=target, read_only=True)
    container, pid = CONTAINER.model_copy(update={"volumes": (volume,)}), os.getpid()
    _, sent = start(structs.replace(plan, hosts=hosts, container=container), (pid, pid))
    host_config = json.loads(sent.partition(b"\r\n\r\n")[2])["HostConfig"]
    assert (HOSTS in host_config["Mounts"]) is mounted
    assert "ExtraHosts" not in host_config, "docker would leave out the node's own /etc/hosts"


@pytest.mark.parametrize(
    ("changes", "gpu", "host_config", "others"),
    [
        ({}, GpuAccess.DEVICE, {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]}, {}),
        ({"init": False}, None, {"Init": False}, {}),
        ({"no_new_privileges": True}, None, {}, {}),
        ({"no_new_privileges": False}, None, {"SecurityOpt": None}, {}),
        ({"privileged": True, "shm_bytes": 1 << 34}, None, {**ALL_RIGHTS, "ShmSize": 1 << 34}, {}),
        (
            {"privileged": True, "no_new_privileges": True},
            None,
            {**ALL_RIGHTS, "SecurityOpt": ["no-new-privileges"]},
            {},
        ),
        ({"ipc": "private", "ulimits": {}}, None, SILENT, {}),
        ({}, GpuAccess.RUNTIME, {"Runtime": "nvidia"}, {"Env": ["NVIDIA_VISIBLE_DEVICES=all"]}),
        ({}, GpuAccess.GPUS, {"DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}]}, {}),
    ],
    ids=[
        *("cdi", "no init", "no new privileges", "setuid", "privileged", "privileged without new ones"),
        *("silent", "runtime", "hook"),
    ],
)
def test_what_docker_is_sent_for_a_container(
    plan: LaunchPlan,
    changes: dict[str, object],
    gpu: GpuAccess | None,
    host_config: dict[str, object],
    others: dict[str, object],
) -> None:
    """Absent, zero and empty are docker's defaults; an absent Init is decided by daemon.json."""
    pid = os.getpid()
    changed = structs.replace(plan, container=CONTAINER.model_copy(update=changes))
    rank, sent = start(changed, (pid, pid), gpu)
    assert (rank.container_id, rank.name, rank.image_id, rank.pid) == (ID, "sparkd-rank0", "sha256:1", pid)
    head, _, text = sent.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1.44/containers/create?name=sparkd-rank0 ")
    found = json.loads(text)
    sent_host_config = {key: value for key, value in found.pop("HostConfig").items() if value or key == "Init"}
    assert sent_host_config == {
        key: value for key, value in {**HOST_CONFIG, **host_config}.items() if value is not None
    }
    assert {key: value for key, value in found.items() if value} == {
        "Image": "sha256:1",
        "Entrypoint": ["/bin/bash"],
        "Cmd": [SCRIPT_TARGET],
        "Labels": {"a": "b"},
        **others,
    }
