"""The tree of a node: Debian with systemd, and with docker where the suite is to run engines."""

import os
from pathlib import Path

from . import cache, debian
from .debian import bootstrap

PLAIN = [
    "systemd", "systemd-sysv", "dbus", "udev", "python3", "iproute2", "iputils-ping", "procps", "psmisc", "kmod",
    "ca-certificates", "busybox-static", "curl", "ethtool", "lsof", "e2fsprogs",
]  # fmt: skip
DOCKER = [
    "docker.io", "docker-cli", "iptables", "rdma-core", "ibverbs-utils", "ibverbs-providers", "iperf3",
    "libfaketime", "openssh-server", "rsync",
]  # fmt: skip
PACKAGES = {"trixie": PLAIN + DOCKER, "bookworm": PLAIN, "docker-bookworm": [*PLAIN, "docker.io", "iptables"]}
"""By Debian's suite, last in a name that says more: a disk's build removes those whose names begin with its own."""


def has_docker(suite: str) -> bool:
    return "docker.io" in PACKAGES[suite]


def other_docker(suite: str) -> list[Path]:
    """BED_DOCKER: an archive of another docker, such as usr/sbin/dockerd, which is unpacked over Debian's."""
    archive = os.environ.get("BED_DOCKER")
    return [Path(archive)] if archive and suite == "trixie" else []


def key(suite: str) -> str:
    return cache.recipe_key(Path(__file__), Path(debian.__file__), suite)


def archive(suite: str) -> Path:
    def build(target: Path) -> None:
        tar = target.with_suffix(".tar.zst")
        bootstrap(suite.rpartition("-")[2], PACKAGES[suite], tar, "apt")
        tar.replace(target)

    return cache.artefact(f"node-{suite}", key(suite), ".tar.zst", build)
