"""Versions of what nodes should have alike: sparkd, driver, kernel, docker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from sparkd import __version__
from sparkd.host import Host, docker
from sparkd.lib.dockerd.reader import DockerUnreadableError
from sparkd.lib.text import sanitize

DRIVER = ("/sys/module/nvidia/version", "/proc/driver/nvidia/version")
"""The second says a whole line, `NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.159.04  Release ...`."""
KERNEL = "/proc/sys/kernel/osrelease"
LIMIT = 100

_NUMBER = re.compile(r"\d+(?:\.\d+)+")


def read(host: Host) -> Mapping[str, str]:
    """By name; what cannot be told is left out. It may wait for docker, at most ten seconds."""
    return {**without_docker(host), **_told({"docker": _docker(host)})}


def without_docker(host: Host) -> Mapping[str, str]:
    """The same, asking nobody."""
    return _told({"sparkd": __version__, "driver": _driver(host), "kernel": _line(host, KERNEL)})


def _told(found: Mapping[str, str]) -> dict[str, str]:
    return {name: sanitize(text, LIMIT) for name, text in found.items() if text}


def _driver(host: Host) -> str:
    said = (_NUMBER.search(_line(host, path)) for path in DRIVER)
    return next((number[0] for number in said if number), "")


def _docker(host: Host) -> str:
    with suppress(DockerUnreadableError):
        return (docker.asked(host, docker.version) or "").strip() if host.live else ""
    return ""


def _line(host: Host, path: str) -> str:
    with suppress(OSError):
        return host.files.text(path, limit=4096).partition("\n")[0].strip()
    return ""
