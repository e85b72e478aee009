"""What docker says of its containers, as data: a tree of files can carry it too."""

from __future__ import annotations

import re

from msgspec import Struct

LABEL = "io.sparkd."
"""Labels of every container that sparkd makes: role, rank, epoch, invocation, plan."""

_NAME = re.compile(r"sparkd-rank\d+", re.ASCII)


class ContainerFacts(Struct, frozen=True):
    id: str
    """Full id, 64 hex digits."""
    name: str
    labels: tuple[tuple[str, str], ...]
    running: bool
    pid: int
    """Of the container's first process, in the host's namespace; 0 where it does not run."""
    image_id: str
    restart_policy: str
    image: str = ""
    """As whoever made the container called it; `image_id` is what it was then."""
    command: tuple[str, ...] = ()
    """It may hold a secret, and is never shown."""

    @property
    def ours(self) -> bool:
        """Whether sparkd made it. The name counts too: labels outlive `docker commit` into an image of somebody's."""
        return bool(self.label(f"{LABEL}role")) and _NAME.fullmatch(self.name) is not None

    @property
    def invocation(self) -> str:
        """Of the agent that made it."""
        return self.label(f"{LABEL}invocation")

    def label(self, key: str) -> str:
        """Value of a label; empty where the container has no such label."""
        return dict(self.labels).get(key, "")


class DockerFacts(Struct, frozen=True):
    """Every container, running or not."""

    running: bool
    """Whether a dockerd lives. Where none does, nothing is known of containers."""
    containers: tuple[ContainerFacts, ...]
    error: str = ""
    """Why a living dockerd could not be read."""

    @property
    def known(self) -> bool:
        """Whether `containers` are all there are."""
        return self.running and not self.error

    def container(self, full_id: str) -> ContainerFacts | None:
        return next((one for one in self.containers if one.id == full_id), None)


AWAY = DockerFacts(running=False, containers=())
