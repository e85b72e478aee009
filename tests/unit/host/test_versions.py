"""Versions of a node, and the identity of an image."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import quote

import pytest
from tests.tree import Tree
from tests.unit.docker_server import answers, dockerd

from sparkd import __version__
from sparkd.base.host import Host, docker, docker_image, versions
from sparkd.base.lib.dockerd.reader import DockerError, DockerReader, connect

NVRM = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.159.04  Release Build\nGCC version: 13\n"

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
def reader(found: dict[str, tuple[int, bytes]]) -> Iterator[DockerReader]:
    with dockerd(answers(found)) as path, closing(connect(path)) as docker:
        yield docker


def identity(found: object, ref: str = "a/b:1") -> str | None:
    with reader({f"GET /images/{quote(ref, safe='/:')}/json": (200, json.dumps(found).encode())}) as known:
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


def test_versions_are_read_from_the_kernels_files(tree: Tree) -> None:
    tree.file("/proc/driver/nvidia/version", NVRM)
    tree.file("/proc/sys/kernel/osrelease", "6.17.0-1008-nvidia\n")
    assert versions.read_versions(Host(tree.root)) == {
        "sparkd": __version__,
        "driver": "580.159.04",
        "kernel": "6.17.0-1008-nvidia",
    }
    tree.file("/proc/driver/nvidia/version", "rubbish")
    assert "driver" not in versions.read_versions(Host(tree.root))


def test_an_unknown_version_is_left_out_and_text_is_sanitized(tree: Tree) -> None:
    tree.file("/proc/sys/kernel/osrelease", "6\x1b[2J" + "x" * 500)
    found = versions.read_versions(Host(tree.root))
    assert set(found) == {"sparkd", "kernel"}
    assert found["kernel"].startswith("6\\x1b[2Jxx")
    assert len(found["kernel"]) == versions.LIMIT


def test_the_boot_is_read_without_what_names_the_kernels_place(tree: Tree) -> None:
    tree.file("/proc/cmdline", "BOOT_IMAGE=/vmlinuz-6.17 root=/dev/a quiet\x1b initrd=/x\n")
    tree.meminfo(MemTotal=119.5, MemFree=1, MemAvailable=1)
    tree.file("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/swap.img\tfile\t16777216\t0\t-2\n")
    tree.file("/proc/sys/vm/swappiness", "10\n")
    assert versions.read_boot(Host(tree.root), ("vm.swappiness", "vm.none")) == {
        "boot.command_line": "root=/dev/a quiet\\x1b",
        "boot.memory": "119.5 GiB",
        "boot.swap": "/swap.img 16.0 GiB",
        "sysctl.vm.swappiness": "10",
    }


def test_a_boot_without_facts_is_no_error(tree: Tree) -> None:
    tree.file("/proc/swaps", "Filename\nrubbish\n")
    assert versions.read_boot(Host(tree.root), ()) == {}
