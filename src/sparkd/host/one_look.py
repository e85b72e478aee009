"""The machine for one look: what several checks want to know is asked once, and who hangs is waited for once.

What is judged by it carries its identity, which is checked again before anything is done about it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

from sparkd.host import Host
from sparkd.host.docker_facts import DockerFacts
from sparkd.host.processes import ProcessTable
from sparkd.lib.dockerd.reader import (
    CONTAINERS,
    INFO,
    TIMEOUT_SECONDS,
    VERSION,
    DockerReader,
    DockerUnansweredError,
    DockerUnreadableError,
    container_path,
    image_path,
)


class OneLook(Host):
    """Of one thread. Close it."""

    def __init__(self, host: Host, docker_seconds: float = TIMEOUT_SECONDS) -> None:
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

    def docker_reader(self) -> DockerReader:
        return self._answers

    def close(self) -> None:
        self._answers.forget()


class Answers:
    """Docker's, each asked for once, all of them within one limit. Once it has failed it is asked nothing more."""

    def __init__(self, reader: Callable[[], DockerReader], seconds: float) -> None:
        self._reader = reader
        self._seconds = self._left = seconds
        self._docker: DockerReader | None = None
        self._known: dict[str, object] = {}
        """By path; an error that is not for want of an answer is known too."""
        self._lost = ""

    def containers(self, seconds: float = TIMEOUT_SECONDS) -> object:
        return self._once(CONTAINERS, seconds, lambda docker, left: docker.containers(left))

    def container(self, container_id: str, seconds: float = TIMEOUT_SECONDS) -> object:
        return self._once(
            container_path(container_id), seconds, lambda docker, left: docker.container(container_id, left)
        )

    def image(self, ref: str, seconds: float = TIMEOUT_SECONDS) -> object:
        return self._once(image_path(ref), seconds, lambda docker, left: docker.image(ref, left))

    def version(self, seconds: float = TIMEOUT_SECONDS) -> object:
        return self._once(VERSION, seconds, lambda docker, left: docker.version(left))

    def info(self, seconds: float = TIMEOUT_SECONDS) -> object:
        return self._once(INFO, seconds, lambda docker, left: docker.info(left))

    def close(self) -> None:
        """By one check: the next one asks too."""

    def forget(self) -> None:
        if self._docker is not None:
            self._docker.close()

    def _once(self, path: str, seconds: float, ask: Callable[[DockerReader, float], object]) -> object:
        if path not in self._known:
            try:
                self._known[path] = self._ask(path, seconds, ask)
            except DockerUnansweredError:
                raise
            except DockerUnreadableError as error:
                self._known[path] = error
        found = self._known[path]
        if isinstance(found, DockerUnreadableError):
            raise found
        return found

    def _ask(self, path: str, seconds: float, ask: Callable[[DockerReader, float], object]) -> object:
        if self._lost:
            raise DockerUnansweredError(path, self._lost)
        if self._docker is None:
            self._docker = self._reader()
        began = time.monotonic()
        try:
            return ask(self._docker, min(seconds, self._left))
        except DockerUnansweredError as error:
            out_of_time = time.monotonic() - began >= self._left
            self._lost = f"no answer within {self._seconds:g} s" if out_of_time else error.reason
            raise DockerUnansweredError(path, self._lost) from None
        finally:
            self._left -= time.monotonic() - began
