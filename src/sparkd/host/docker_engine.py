"""The docker engine itself: its version, and the ways in which it gives a container the GPU."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkd.host.docker import Asks, DockerUnreadableError, ask
from sparkd.host.harmless import harmless

if TYPE_CHECKING:
    from sparkd.host.files import Files

RUNTIME = "the runtime nvidia"
HOOK = "nvidia-container-runtime-hook"
HOOK_FOLDERS = ("/usr/bin", "/usr/local/bin", "/usr/sbin", "/usr/local/sbin", "/usr/local/nvidia/toolkit", "/snap/bin")
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
CDI_KIND = "nvidia.com/gpu"
SPEC_LIMIT_BYTES = 64 << 10
"""The kind stands in the first lines of a specification that names every file of the driver."""


@dataclass(frozen=True)
class Engine:
    version: str
    runtimes: tuple[str, ...]
    cdi_folders: tuple[str, ...]
    """Where it looks for specifications of devices; empty where it does not use them."""


def read(http: Asks) -> Engine:
    """Raises DockerUnreadableError."""
    match ask(http, "/version"), ask(http, "/info"):
        case {"Version": str(version)}, {"Runtimes": dict(runtimes), **rest}:
            return Engine(
                harmless(version, 40),
                tuple(sorted(harmless(str(name), 40) for name in runtimes)),
                _cdi_folders(rest.get("CDISpecDirs")),
            )
        case _:
            raise DockerUnreadableError("docker does not say its version and its runtimes")


def architecture(http: Asks) -> str:
    """Of this machine, as images name it: arm64, amd64. Raises DockerUnreadableError."""
    match ask(http, "/version"):
        case {"Arch": str(said)}:
            return harmless(said, 20)
        case _:
            raise DockerUnreadableError("docker does not say what machine it is for")


def _cdi_folders(said: object) -> tuple[str, ...]:
    """A docker that does not say looks where all of them look."""
    match said:
        case [*folders]:
            return tuple(str(one) for one in folders)
        case _:
            return CDI_FOLDERS


def gpu_ways(files: Files, engine: Engine) -> tuple[str, ...]:
    """Every way to the GPU that is installed. One is enough."""
    found = [RUNTIME] if "nvidia" in engine.runtimes else []
    found += [f"{folder}/{HOOK}" for folder in HOOK_FOLDERS if files.exists(f"{folder}/{HOOK}")][:1]
    return (*found, *_specifications(files, engine.cdi_folders)[:1])


def _specifications(files: Files, folders: tuple[str, ...]) -> list[str]:
    """What can't be read (a link to nothing, a file that is being replaced) is no way, and takes none away."""
    found = []
    for folder in folders:
        with suppress(OSError):
            paths = [f"{folder}/{name}" for name in files.names(folder) if name.endswith((".json", ".yaml", ".yml"))]
            found += [path for path in paths if _is_of_the_gpu(files, path)]
    return found


def _is_of_the_gpu(files: Files, path: str) -> bool:
    with suppress(OSError):
        return CDI_KIND.encode() in files.head(path, SPEC_LIMIT_BYTES)
    return False
