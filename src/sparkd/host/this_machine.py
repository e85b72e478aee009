"""The machine that sparkd runs on, docker included."""

from __future__ import annotations

from sparkd.host import Host, docker


def this_machine() -> Host:
    host = Host(docker=lambda: docker.read(host))
    return host
