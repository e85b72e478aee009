"""The identity of an image, and docker's version, by docker's own answers."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import quote

import pytest
from tests.unit.docker_server import answers, dockerd

from sparkd.base.host import docker, docker_image
from sparkd.base.lib.dockerd.reader import DockerError, DockerReader, connect

CLASSIC: dict[str, object] = {
    "Id": "sha256:config",
    "RootFS": {"Type": "layers", "Layers": ["sha256:a", "sha256:b"]},
    "Config": {
        "Hostname": "",
        "AttachStdin": False,
        "Tty": False,
        "Image": "sha256:parent",
        "User": "",
        "Env": ["PATH=/bin", "A=1"],
        "Cmd": None,
        "Entrypoint": ["vllm"],
        "Labels": {"b": "2", "a": "1"},
        "OnBuild": None,
    },
}
CONTAINERD: dict[str, object] = {
    "Id": "sha256:manifest",
    "Descriptor": {},
    "RootFS": {"Type": "layers", "Layers": ["sha256:a", "sha256:b"]},
    "Config": {"Env": ["PATH=/bin", "A=1"], "Entrypoint": ["vllm"], "Labels": {"a": "1", "b": "2"}},
}


@contextmanager
def reader(replies: dict[str, tuple[int, bytes]]) -> Iterator[DockerReader]:
    with dockerd(answers(replies)) as path, closing(connect(path)) as docker:
        yield docker


def identity(description: object, ref: str = "a/b:1") -> str | None:
    with reader({f"GET /images/{quote(ref, safe='/:')}/json": (200, json.dumps(description).encode())}) as known:
        return docker_image.image_identity(known, ref)


def test_an_image_is_the_same_in_both_stores_of_docker() -> None:
    assert identity(CLASSIC) == identity(CONTAINERD)
    assert identity(CLASSIC, "a@sha256:00") == identity(CLASSIC)
    assert len(identity(CLASSIC) or "") == 64


@pytest.mark.parametrize(
    "changed",
    [
        {"RootFS": {"Layers": ["sha256:b", "sha256:a"]}},
        {"RootFS": {"Layers": []}},
        {"Config": None},
        {"Config": {"Env": ["A=1"]}},
        {"Config": {"Entrypoint": ["vllm"], "Env": ["PATH=/bin", "A=1"]}},
    ],
    ids=str,
)
def test_other_layers_or_another_configuration_are_another_image(changed: dict[str, object]) -> None:
    assert identity(CONTAINERD | changed) != identity(CONTAINERD)


def test_an_image_that_is_not_there_has_no_identity() -> None:
    with reader({}) as known:
        assert docker_image.image_identity(known, "x:1") is None


@pytest.mark.parametrize("reply", [(500, b"{}"), (200, b"["), (200, b"[]"), (200, b'{"RootFS": {}, "Config": {}}')])
def test_another_answer_than_dockers_is_an_error(reply: tuple[int, bytes]) -> None:
    with reader({"GET /images/x/json": reply, "GET /version": reply}) as known:
        with pytest.raises(DockerError):
            docker_image.image_identity(known, "x")
        with pytest.raises(DockerError):
            docker.read_version(known)


def test_dockers_version() -> None:
    with reader({"GET /version": (200, b'{"Version": "29.0.1"}')}) as known:
        assert docker.read_version(known) == "29.0.1"
