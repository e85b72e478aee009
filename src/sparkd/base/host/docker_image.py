"""An image as docker describes it: its names, what identifies it on all nodes, how to get it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING

from msgspec import Struct

from sparkd.base.host.docker import query, value_of
from sparkd.base.lib.dockerd.reader import DockerError, DockerReader
from sparkd.base.lib.text import sanitize

if TYPE_CHECKING:
    from sparkd.base.host import Host

CONFIG_KEYS = (
    *("User", "Env", "Entrypoint", "Cmd", "WorkingDir", "StopSignal", "Healthcheck", "Shell"),
    *("Volumes", "ExposedPorts", "Labels", "OnBuild"),
)
"""Keys of an image's Config in the OCI image specification and docker's extension of it. Others are set by some
versions of docker only (Hostname, AttachStdin, Tty, Image: gone with API 1.52)."""
LABELS = ("org.opencontainers.image.", "org.label-schema.", "com.nvidia.", "maintainer")
"""Prefixes of labels that describe how an image was built. Others can be anything, such as the text of a licence."""


class Image(Struct, frozen=True):
    id: str
    architecture: str
    created: str
    size_bytes: int
    user: str
    """The user that it runs as, perhaps with a group; empty is root."""
    entrypoint: tuple[str, ...]
    digests: tuple[str, ...]
    """Its names in registries; none for one that was built or imported here."""
    labels: tuple[tuple[str, str], ...]


def split_name(ref: str) -> tuple[str, str]:
    """Repository and tag of an image's name, without its digest; the tag is empty where it has none."""
    name = ref.partition("@")[0]
    repository, _, tag = name.rpartition(":")
    return (repository, tag) if repository and "/" not in tag else (name, "")  # else a registry's port


def read_image(docker: DockerReader, ref: str) -> Image | None:
    """None where there is no such image. Raises DockerError."""
    match docker.image(ref):
        case None:
            return None
        case {"Id": str(full_id), "Architecture": str(architecture), "Config": dict() | None as config, **rest}:
            config, size = config or {}, rest.get("Size")
            # Other names that some tools write into an image, and docker accepts.
            spellings = {"aarch64": "arm64", "x86_64": "amd64", "x86-64": "amd64"}
            return Image(
                id=full_id,
                architecture=sanitize(spellings.get(architecture, architecture), 20),
                created=sanitize(str(rest.get("Created") or ""), 40),
                size_bytes=size if isinstance(size, int) else 0,
                user=sanitize(str(config.get("User") or ""), 64),
                entrypoint=_texts(config.get("Entrypoint")),
                digests=_texts(rest.get("RepoDigests")),
                labels=_build_labels(config.get("Labels")),
            )
    raise DockerError(f"the description of image {ref} is not as docker's")


def read_names(docker: DockerReader) -> tuple[str, ...]:
    """Names of all images here that have one, by tag and by digest. Raises DockerError."""
    names = list_names(docker, "RepoTags", "RepoDigests")
    return tuple(sorted({name for name in names if "<none>" not in name}))


def list_names(docker: DockerReader, *keys: str) -> Iterator[str]:
    """Names under these keys of all images, those of the newest image first. Raises DockerError."""
    images = docker.images()
    for image in images if isinstance(images, list) else ():
        for key in keys if isinstance(image, dict) else ():
            yield from _texts(image.get(key))


def read_digest(host: Host, image_id: str, name: str) -> str:
    """NAME@sha256:..., in the repository that `name` names; empty where docker knows none. Raises DockerError."""
    image = query(host, lambda docker: read_image(docker, image_id))
    return digest_of(image, name) if image else ""


def digest_of(image: Image, name: str) -> str:
    """The digest of an image, as `read_digest` returns it."""
    repository = re.sub(r"^docker\.io/|@.*|:[^/]*$", "", name)
    wanted = re.compile(rf"{re.escape(repository)}@sha256:[0-9a-f]{{64}}")
    return next(filter(wanted.fullmatch, image.digests), "")


def image_identity(docker: DockerReader, ref: str) -> str | None:
    """`identity_of` an image of this node, None where there is no such image. Raises DockerError."""
    return identity_of(docker.image(ref), ref)


def identity_of(description: object, ref: str) -> str | None:
    """SHA-256 of an image's layers and configuration, None for a description that is None. Raises DockerError.

    Equal on all nodes that have the image, while ids are not: docker's classic store names an image by the digest of
    its config, containerd's by that of its manifest. Both name layers by their unpacked content. Empty values are left
    out, since versions of docker differ in which they list.
    """
    match description:
        case None:
            return None
        case {"RootFS": {"Layers": [*layers]}, "Config": dict() | None as config}:
            known = {key: value for key in CONFIG_KEYS if (value := (config or {}).get(key))}
            canonical = json.dumps({"layers": layers, "config": known}, sort_keys=True, separators=(",", ":"))
            return sha256(canonical.encode()).hexdigest()
    raise DockerError(f"the description of image {ref} is not as docker's")


def read_architecture(docker: DockerReader) -> str:
    """Architecture of this machine, as images name it: arm64, amd64. Raises DockerError."""
    return sanitize(value_of(docker.version(), "Arch", str, "docker does not say what machine it is for"), 20)


def how_to_get(ref: str, build: str) -> str:
    """The hint for a missing image. `build`: the recipe's text on how to build it, ignored for a name with a digest.

    A rollback runs an image by its id, which no registry knows. A name without an account or a host is in no registry
    either, except for Docker Hub's official images.
    """
    if ref.startswith("sha256:"):
        own = "the image that has its name: sudo sparkd rollback; what is configured: sudo sparkd rollback --end"
        return f"{own}; or bring it back by sudo docker load"
    built = build or ("" if "/" in ref else "build it (no registry has a name without an account)")
    get = f"sudo docker pull {ref}" if "@" in ref or not built else built
    return f"{get}, or sparkd image sync on a node that has it"


def find_image(host: Host, ref: str) -> Image | None:
    """The image in docker. None also where docker does not answer this user."""
    with suppress(DockerError):
        return query(host, lambda docker: read_image(docker, ref))
    return None


def read_user(host: Host, ref: str) -> str | None:
    """The user that an image of this node runs as, without the group; empty is root. None where unknown."""
    image = find_image(host, ref)
    return image.user.partition(":")[0] if image else None


def _texts(listed: object) -> tuple[str, ...]:
    """At most 16 of a list of docker's; empty where it is no list."""
    return tuple(sanitize(str(text)) for text in listed[:16]) if isinstance(listed, list) else ()


def _build_labels(labels: object) -> tuple[tuple[str, str], ...]:
    """At most 24 of those in LABELS, sorted."""
    pairs = sorted((str(key), str(value)) for key, value in labels.items()) if isinstance(labels, dict) else []
    build_labels = [(sanitize(key, 80), sanitize(value)) for key, value in pairs if key.startswith(LABELS)]
    return tuple(build_labels[:24])
