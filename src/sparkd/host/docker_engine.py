"""The docker engine itself: its version, its runtimes, and where it looks for devices."""

from __future__ import annotations

from msgspec import Struct

from sparkd.lib.dockerd.reader import DockerReader, DockerUnreadableError
from sparkd.lib.text import sanitize


class Engine(Struct, frozen=True):
    version: str
    runtimes: tuple[str, ...]
    cdi_folders: tuple[str, ...]
    """Where it looks for specifications of devices; empty where it does not use them."""


def read(docker: DockerReader) -> Engine:
    """Raises DockerUnreadableError."""
    match docker.version(), docker.info():
        case {"Version": str(version)}, {"Runtimes": dict(runtimes), **rest}:
            return Engine(
                sanitize(version, 40),
                tuple(sorted(sanitize(str(name), 40) for name in runtimes)),
                _cdi_folders(rest.get("CDISpecDirs")),
            )
        case _:
            raise DockerUnreadableError("docker does not say its version and its runtimes")


def architecture(docker: DockerReader) -> str:
    """Of this machine, as images name it: arm64, amd64. Raises DockerUnreadableError."""
    match docker.version():
        case {"Arch": str(said)}:
            return sanitize(said, 20)
        case _:
            raise DockerUnreadableError("docker does not say what machine it is for")


def _cdi_folders(said: object) -> tuple[str, ...]:
    """One that does not say is older than Docker 25, which was the first to know of them."""
    return tuple(str(one) for one in said) if isinstance(said, list) else ()
