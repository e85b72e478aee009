"""The machine for one look: what several checks want to know is asked once, and who hangs is waited for once.

What is judged by it carries its identity, which is checked again before anything is done about it.
"""

from __future__ import annotations

import functools

from sparkd.host import Host
from sparkd.host.docker_facts import DockerFacts
from sparkd.host.processes import ProcessTable
from sparkd.lib.dockerd.reader import TIMEOUT_SECONDS, CachedReader, DockerReader


class OneLook(Host):
    """Of one thread."""

    def __init__(self, host: Host, docker_seconds: float = TIMEOUT_SECONDS) -> None:
        super().__init__(host.files.root, host.told_docker, functools.cache(host.gpu))
        self._docker_reader = functools.cache(lambda: CachedReader(host.docker_reader(), docker_seconds))

    @functools.cached_property
    def _containers(self) -> DockerFacts:
        return super().docker()

    @functools.cached_property
    def _table(self) -> ProcessTable:
        return super().processes()

    def docker(self) -> DockerFacts:
        return self._containers

    def processes(self) -> ProcessTable:
        return self._table

    def docker_reader(self) -> DockerReader:
        return self._docker_reader()
