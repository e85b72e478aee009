"""An image, as docker describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from sparkd.host.docker import asked
from sparkd.lib.dockerd.reader import DockerReader, DockerUnreadableError
from sparkd.lib.text import sanitize

if TYPE_CHECKING:
    from sparkd.host import Host

LABELS = ("org.opencontainers.image.", "org.label-schema.", "com.nvidia.", "maintainer")
"""How labels begin that tell what an image was built from."""
MOST_LABELS = 24
SPELLINGS = {"aarch64": "arm64", "x86_64": "amd64", "x86-64": "amd64"}
"""As images of some tools say it, and docker takes it for the same."""


class Image(Struct, frozen=True):
    id: str
    architecture: str
    os: str
    created: str
    size_bytes: int
    user: str
    """Whom it runs as, perhaps with a group; empty is root."""
    entrypoint: tuple[str, ...]
    digests: tuple[str, ...]
    """What registries call it; none for one that was built or imported here."""
    labels: tuple[tuple[str, str], ...]


def read(docker: DockerReader, ref: str) -> Image | None:
    """None where there is no such image. Raises DockerUnreadableError."""
    match docker.image(ref):
        case None:
            return None
        case {"Id": str(full_id), "Architecture": str(architecture), "Os": str(os), "Config": dict() | None as config,
              **rest}:  # fmt: skip
            config = config or {}
            size = rest.get("Size")
            return Image(
                full_id,
                sanitize(SPELLINGS.get(architecture, architecture), 20),
                sanitize(os, 20),
                sanitize(str(rest.get("Created") or ""), 40),
                size if isinstance(size, int) else 0,
                sanitize(str(config.get("User") or ""), 64),
                _words(config.get("Entrypoint")),
                _words(rest.get("RepoDigests")),
                _labels(config.get("Labels")),
            )
        case _:
            raise DockerUnreadableError(f"the description of image {ref} is not as docker's")


def way_to_get(ref: str) -> str:
    """A hint. An image that a rollback runs by its id is known under that to no registry."""
    if ref.startswith("sha256:"):
        return "docker load it; or, with the image that has its name: sparkd rollback; or: sparkd rollback --end"
    return f"docker pull {ref}, or sparkd image sync on a node that has it"


def user(host: Host, ref: str) -> str | None:
    """Whom an image of this node runs as, without the group; empty is root. None where that can't be told."""
    try:
        found = asked(host, lambda docker: read(docker, ref))
    except DockerUnreadableError:
        return None
    return None if found is None else found.user.partition(":")[0]


def _words(said: object) -> tuple[str, ...]:
    return tuple(sanitize(str(one)) for one in said[:16]) if isinstance(said, list) else ()


def _labels(said: object) -> tuple[tuple[str, str], ...]:
    """Those of a build, sorted. Others can be anything, such as the text of a licence."""
    pairs = sorted((str(key), str(value)) for key, value in said.items()) if isinstance(said, dict) else []
    wanted = [(sanitize(key, 80), sanitize(value)) for key, value in pairs if key.startswith(LABELS)]
    return tuple(wanted[:MOST_LABELS])
