"""The machine for one look: what several checks want to know is asked once, and who hangs is waited for once.

What is judged by it carries its identity, which is checked again before anything is done about it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping

from sparkd.host import Host, docker
from sparkd.host.docker import Asks, Reply
from sparkd.host.docker_facts import DockerFacts
from sparkd.host.processes import ProcessTable


class OneLook(Host):
    """Of one thread. Close it."""

    def __init__(self, host: Host, docker_seconds: float = docker.TIMEOUT_SECONDS) -> None:
        super().__init__(host.files.root, host.told_docker, functools.cache(host.gpu))
        self._answers = Answers(host.docker_reader, docker_seconds)

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

    def docker_reader(self) -> Asks:
        return self._answers

    def close(self) -> None:
        self._answers.forget()


class Answers:
    """Docker's, each asked for once, all of them within one limit. Once it has failed it is asked nothing more."""

    def __init__(self, reader: Callable[[], Asks], seconds: float) -> None:
        self._reader = reader
        self._seconds = self._left = seconds
        self._docker: Asks | None = None
        self._known: dict[tuple[str, tuple[tuple[str, str], ...]], Reply] = {}
        self._lost = ""

    def get(self, path: str, timeout_seconds: float, params: Mapping[str, str] | None = None) -> Reply:
        key = path, tuple((params or {}).items())
        if key not in self._known:
            self._known[key] = self._ask(path, timeout_seconds, params)
        return self._known[key]

    def _ask(self, path: str, timeout_seconds: float, params: Mapping[str, str] | None) -> Reply:
        from sparkd.host.http import Unanswered

        if self._lost:
            raise Unanswered(self._lost)
        if self._docker is None:
            self._docker = self._reader()
        began = time.monotonic()
        try:
            return self._docker.get(path, min(timeout_seconds, self._left), params)
        except Unanswered as error:
            out_of_time = time.monotonic() - began >= self._left
            self._lost = f"no answer within {self._seconds:g} s" if out_of_time else str(error)
            raise Unanswered(self._lost) from None
        finally:
            self._left -= time.monotonic() - began

    def close(self) -> None:
        """By one check: the next one asks too."""

    def forget(self) -> None:
        if self._docker is not None:
            self._docker.close()
