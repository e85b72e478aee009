"""The rank's container by dockerd: the request that creates it, its end, and its removal."""

import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import structs
from tests.unit.docker_server import answers, dockerd, json_response, listening, plain
from tests.unit.wire import http, serving

from sparkd.agent.actions.dockerd import Containers
from sparkd.agent.actions.rank_process import Rank
from sparkd.base.config import Settings
from sparkd.base.host.gpu_access import GpuAccess
from sparkd.base.lib import recipes_dir
from sparkd.base.lib.errors import LaunchError
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import LaunchPlan, Node
from sparkd.base.plan.script import SCRIPT_TARGET
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.schema import Container, Limit, Volume

ID = "ab" * 32
WHY = r" \(see why: sudo journalctl -u docker -e\)"
"""The hint behind dockerd's own reason."""


class Requests(list[str]):
    """The requests to a dockerd that gives all of them this status, and where it refuses, a reason of two lines."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self._status = status

    def answer(self, request: str) -> Iterable[bytes]:
        self.append(request)
        body = b"" if self._status < 400 else b'{"message": "driver failed:\\n  no space"}'
        return (http(body, status=self._status),)


@pytest.mark.parametrize("status", [204, 304, 404])
def test_a_container_is_stopped_within_its_grace_and_may_be_gone(status: int) -> None:
    requests = Requests(status)
    with dockerd(requests.answer) as path:
        Containers(path).stop(ID, 3)
    (request,) = requests
    assert plain(request) == f"POST /containers/{ID}/stop"
    assert "t=3" in request.partition("?")[2].split("&")


@pytest.mark.parametrize("status", [204, 404, 409])
def test_a_container_is_removed_with_its_volumes_running_or_not_and_may_be_gone(status: int) -> None:
    requests = Requests(status)
    with dockerd(requests.answer) as path:
        Containers(path).remove(ID)
    (request,) = requests
    assert plain(request) == f"DELETE /containers/{ID}"
    assert {"force=True", "v=True"} <= set(request.partition("?")[2].split("&"))


@pytest.mark.parametrize("status", [409, 500])
def test_a_stop_that_docker_refuses_is_an_error_with_its_reason(status: int) -> None:
    reason = f"^container {ID[:12]} can't be stopped: driver failed: no space{WHY}$"
    with dockerd(Requests(status).answer) as path, pytest.raises(LaunchError, match=reason):
        Containers(path).stop(ID, 3)


def test_a_removal_that_docker_refuses_is_an_error_with_its_reason() -> None:
    reason = f"^container {ID[:12]} can't be removed: driver failed: no space{WHY}$"
    with dockerd(Requests(500).answer) as path, pytest.raises(LaunchError, match=reason):
        Containers(path).remove(ID)


@pytest.mark.parametrize(
    ("responses", "reason"),
    [
        ({}, "^image vllm:1 is not on this node .sudo make demo"),
        ({"GET /images/vllm:1/json": (200, b"[]")}, "^image vllm:1 can't be looked up: not as docker's"),
    ],
)
def test_a_missing_image_differs_from_a_failure(
    plan: LaunchPlan, responses: dict[str, tuple[int, bytes]], reason: str
) -> None:
    with dockerd(answers(responses)) as path, pytest.raises(LaunchError, match=reason):
        Containers(path).start(plan, Path("/run/sparkd/launch.sh"), {}, None)


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
OWN_MEMORY = {"IpcMode": "private", "ShmSize": 32 << 30, "Ulimits": HOST_CONFIG["Ulimits"]}
"""Host configuration of a container whose recipe gives neither a size nor limits."""
ALL_RIGHTS = {"Privileged": True, "SecurityOpt": None, "CapDrop": None, "PidsLimit": None}


@pytest.fixture
def plan() -> LaunchPlan:
    recipe = load_recipe("tiny-cpu", [recipes_dir()]).recipe
    return structs.replace(make_plan(recipe, Settings(), NODE), image="vllm:1", container=CONTAINER, caches=())


class FakeDockerd:
    """dockerd with every image and one container, whose first process has `pids`, one after the other, and then ends.

    It refuses with `refusal` to start the container, and with `keeps` to remove it.
    """

    def __init__(self, pids: Iterable[int], refusal: str = "", keeps: str = "") -> None:
        self.requests: list[bytes] = []
        self._pids, self._refusal, self._keeps = iter(pids), refusal, keeps

    @contextmanager
    def serve(self) -> Iterator[str]:
        """The path of its socket."""
        with listening() as (path, listener), serving(listener, self._answer):
            yield path

    def creation(self) -> tuple[str, dict[str, object]]:
        """The request line and the body of the request that created the container."""
        (request,) = (request for request in self.requests if b"/create?" in request)
        head, _, body = request.decode().partition("\r\n\r\n")
        return head.splitlines()[0], json.loads(body)

    def _answer(self, request: bytes) -> Iterable[bytes]:
        self.requests.append(request)
        match plain(request.decode().partition(" HTTP/")[0]).split("/"):
            case ["GET ", "images", *_]:
                return json_response({"Id": "sha256:1"})
            case ["GET ", "containers", _, "json"]:
                return json_response({"State": {"Pid": next(self._pids, 0)}, "Config": {"Tty": True}})
            case ["GET ", "containers", _, "logs"]:
                return (http(b"no such file\nmore\n"),)
            case ["POST ", "containers", "create"]:
                return json_response({"Id": ID, "Warnings": []}, 201)
            case ["POST ", "containers", _, "start"] if self._refusal:
                return json_response({"message": self._refusal}, 500)
            case ["DELETE ", "containers", _] if self._keeps:
                return json_response({"message": self._keeps}, 500)
        return (http(b"", status=204),)


def create(plan: LaunchPlan, gpu: GpuAccess | None = None) -> dict[str, object]:
    """The body of the request that creates the container."""
    docker = FakeDockerd([os.getpid()] * 2)
    start(docker, plan, gpu)
    return docker.creation()[1]


def start(docker: FakeDockerd, plan: LaunchPlan, gpu: GpuAccess | None = None) -> Rank:
    with docker.serve() as path:
        rank = Containers(path).start(plan, Path("/run/sparkd/launch.sh"), {"a": "b"}, gpu)
    os.close(rank.pidfd)
    return rank


@pytest.mark.parametrize(
    ("pids", "refusal", "reason"),
    [
        ((), "no /bin/bash", f"can't be started: no /bin/bash{WHY}"),
        ((0,), "", "ended as soon as it was started: no such file"),
        ((1 << 22,), "", "ended as soon as it was started: no such file"),
        ((os.getpid(),), "", "ended as soon as it was started: no such file"),
    ],
    ids=["refused", "ended", "its pid gone", "its pid another's"],
)
def test_a_container_that_does_not_run_is_removed(
    plan: LaunchPlan, pids: tuple[int, ...], refusal: str, reason: str
) -> None:
    docker = FakeDockerd(pids, refusal)
    with pytest.raises(LaunchError, match=f"^container sparkd-rank0 {reason}$"):
        start(docker, plan)
    assert docker.requests[-1].startswith(f"DELETE /v1.44/containers/{ID}?".encode())


def test_the_reason_of_a_failed_start_outlives_a_failed_removal(plan: LaunchPlan) -> None:
    docker = FakeDockerd((), "the driver hangs", keeps="device or resource busy")
    with pytest.raises(LaunchError, match=rf"^container sparkd-rank0 can't be started: the driver hangs{WHY}$"):
        start(docker, plan)
    with docker.serve() as path, pytest.raises(LaunchError, match=rf"can't be run to its end: the driver hangs{WHY}$"):
        Containers(path).run_program({}, "sparkd-rank0", 1)


def test_a_container_whose_process_can_not_be_opened_is_removed(plan: LaunchPlan) -> None:
    """Here the pid is a thread's, not a process's; on a node it may be for want of a descriptor."""
    removed = threading.Event()
    thread = threading.Thread(target=removed.wait)
    thread.start()
    docker = FakeDockerd([thread.native_id or 0] * 2)
    try:
        with pytest.raises(OSError, match="Errno"):
            start(docker, plan)
    finally:
        removed.set()
        thread.join()
    assert docker.requests[-1].startswith(f"DELETE /v1.44/containers/{ID}?".encode())


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
    container = CONTAINER.model_copy(update={"volumes": (volume,)})
    host_config = create(structs.replace(plan, hosts=hosts, container=container))["HostConfig"]
    assert isinstance(host_config, dict)
    assert (HOSTS in host_config["Mounts"]) is mounted
    assert "ExtraHosts" not in host_config, "docker would leave out the node's own /etc/hosts"


@pytest.mark.parametrize(
    ("changes", "gpu", "host_config"),
    [
        pytest.param(
            {},
            GpuAccess.DEVICE,
            {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]},
            id="cdi",
        ),
        pytest.param({}, GpuAccess.GPUS, {"DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}]}, id="hook"),
        pytest.param({}, GpuAccess.RUNTIME, {"Runtime": "nvidia"}, id="runtime"),
        pytest.param({"init": False}, None, {"Init": False}, id="no init"),
        pytest.param({"no_new_privileges": True}, None, {}, id="no new privileges"),
        pytest.param({"no_new_privileges": False}, None, {"SecurityOpt": None}, id="setuid"),
        pytest.param(
            {"privileged": True, "shm_bytes": 1 << 34}, None, {**ALL_RIGHTS, "ShmSize": 1 << 34}, id="privileged"
        ),
        pytest.param(
            {"privileged": True, "no_new_privileges": True},
            None,
            {**ALL_RIGHTS, "SecurityOpt": ["no-new-privileges"]},
            id="privileged without new ones",
        ),
        pytest.param({"ipc": "private", "ulimits": {}}, None, OWN_MEMORY, id="silent"),
    ],
)
def test_what_docker_is_sent_for_a_container(
    plan: LaunchPlan, changes: dict[str, object], gpu: GpuAccess | None, host_config: dict[str, object]
) -> None:
    """Absent, zero and empty are docker's defaults; an absent Init is decided by daemon.json."""
    body = create(structs.replace(plan, container=CONTAINER.model_copy(update=changes)), gpu)
    sent = body.pop("HostConfig")
    assert isinstance(sent, dict)
    assert {key: value for key, value in sent.items() if value or key == "Init"} == {
        key: value for key, value in {**HOST_CONFIG, **host_config}.items() if value is not None
    }
    del body["Env"]
    assert body == {"Image": "sha256:1", "Entrypoint": ["/bin/bash"], "Cmd": [SCRIPT_TARGET], "Labels": {"a": "b"}}


@pytest.mark.parametrize(
    ("gpu", "variables"),
    [(None, []), (GpuAccess.DEVICE, []), (GpuAccess.RUNTIME, ["NVIDIA_VISIBLE_DEVICES=all"])],
)
def test_only_nvidias_runtime_gets_the_gpus_by_a_variable(
    plan: LaunchPlan, gpu: GpuAccess | None, variables: list[str]
) -> None:
    assert create(plan, gpu)["Env"] == variables


def test_the_rank_is_the_container_that_was_created(plan: LaunchPlan) -> None:
    docker = FakeDockerd([os.getpid()] * 2)
    rank = start(docker, plan)
    assert rank.container_id == ID
    assert rank.image_id == "sha256:1"
    assert rank.pid == os.getpid()
    assert docker.creation()[0].startswith(f"POST /v1.44/containers/create?name={rank.name} ")
