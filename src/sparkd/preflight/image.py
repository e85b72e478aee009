"""The image that the engine runs in: on this node, for this machine, and what it says of itself."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host import docker, docker_engine, docker_image, image_files
from sparkd.lib.dockerd.reader import DockerUnreadableError
from sparkd.lib.text import sanitize
from sparkd.preflight import image_inside
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.sizes import size

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.docker_image import Image
    from sparkd.host.image_files import Stored
    from sparkd.lib.dockerd.reader import DockerReader
    from sparkd.preflight.image_inside import Inside, Launched

REVISION = "org.opencontainers.image.revision"
VLLM_COMMIT = re.compile(r"vllm_commit:\s*([0-9a-f]{7,12})")
"""In the note of spark-vllm-docker: what a rebuild would be compared with."""
VERSION = "org.opencontainers.image.version"


class ImageFacts(Struct, frozen=True):
    ref: str
    asserts: tuple[str, ...]
    """What the launch script asks of the image, in the container, before the engine starts."""
    docker: str
    """"known", "away", or why a living docker could not be asked."""
    machine: str = ""
    """Architecture of this machine."""
    image: Image | None = None
    inside: Inside | None = None
    """What was found in its files; None where they can't be looked at."""


class EngineImage(Check[ImageFacts], frozen=True):
    """The plan's image is here, and for this machine. Nothing is pulled: an image that changes by itself is drift."""

    ref: str
    asserts: tuple[str, ...] = ()
    launched: Launched | None = None
    id: ClassVar[str] = "image"
    about: ClassVar[About] = About(
        levels=(Level.BLOCK, Level.UNKNOWN),
        reads="docker's description of the image; the architecture of docker; names in the image's layers, and "
        "/workspace/build-metadata.yaml",
        source="Docker Engine API, ImageInspect; OCI image specification, annotations; DeepSeek V4 Flash on Dual DGX "
        "Spark, addendum on the mxfp4 fix (a patch applied twice ends the load)",
        page="""\
The plan names an image: engine.image of the settings, else image.ref of the recipe. sparkd starts a container of the
image that this node has under that name, and pulls nothing at a start, so that a tag that moves changes no node by
itself. That all nodes have the same one is looked at when they meet.

  ok       it is here: id, size, when it was built, and its labels of a build, such as
           org.opencontainers.image.revision, are among the facts. Its entrypoint is shown and not used: the container
           begins with the launch script.
  block    it is not here (docker pull REF, or sparkd image sync on a node that has it), or it was built for
           another architecture than this machine's, such as amd64 on a GB10, which is arm64. It would end with
           "exec format error". docker pull --platform linux/arm64 REF
         Or it lacks what the launch executes: /bin/bash, or the program that the launch script ends in, which is the
         first word of the recipe's image.entrypoint (vllm).
  unknown  docker lives and can't be asked.

The image's files are read where docker keeps them, without a container, if that is overlay2 (docker info: Storage
Driver) and the check runs as root. /workspace/build-metadata.yaml, in which eugr's spark-vllm-docker notes commits and
options of the build, is among the facts then. In containerd's store, which a new installation of Docker 29 has, layers
have no folders that tell whose they are, and nothing is said of what is inside.

The entries of image.assert in the recipe are asked in the new container, before the engine starts: commands that must
succeed, or how many lines of a file match a pattern, which tells a patch that is missing from one that is applied
twice. They are listed among the facts; one that fails ends the launch with its own line. Where docker is away, the
image is looked at again once it has come.""",
    )

    def probe(self, host: Host) -> ImageFacts:
        def look(reader: DockerReader) -> tuple[str, Image | None, Inside | None]:
            machine, image = docker_engine.architecture(reader), docker_image.read(reader, self.ref)
            return machine, image, self._inside(host, image_files.read(reader, self.ref)) if image else None

        try:
            found = docker.asked(host, look)
        except DockerUnreadableError as error:
            return ImageFacts(self.ref, self.asserts, sanitize(str(error)))
        if found is None:
            return ImageFacts(self.ref, self.asserts, "away")
        return ImageFacts(self.ref, self.asserts, "known", *found)

    def _inside(self, host: Host, image: Stored) -> Inside | None:
        if self.launched is None or not image.layers:
            return None
        with suppress(OSError):  # who is not root can't look into docker's folders
            return image_inside.look(host.files, image, self.launched)
        return None

    def judge(self, facts: ImageFacts) -> Verdict:
        image = facts.image
        if facts.docker == "away":
            return Verdict(Level.OK, "docker is away, so the image was not looked at")
        if facts.docker != "known":
            reason = f"docker can't be asked for the image: {facts.docker}"
            return Verdict(Level.UNKNOWN, reason, "look at: systemctl status docker", awaits="docker")
        if image is None:
            return Verdict(Level.BLOCK, f"image {facts.ref} is not on this node", docker_image.way_to_get(facts.ref))
        if facts.machine and image.architecture and image.architecture != facts.machine:
            reason = f"image {facts.ref} is for {image.architecture}, and this machine is {facts.machine}"
            return Verdict(Level.BLOCK, reason, f"docker pull --platform linux/{facts.machine} {facts.ref}")
        if facts.inside is not None and facts.inside.wrong:
            reason = f"image {facts.ref} {' and '.join(facts.inside.wrong)}, which the launch executes"
            return Verdict(
                Level.BLOCK, reason, "take another image (engine.image), or mend image.entrypoint of the recipe"
            )
        return Verdict(Level.OK, f"{facts.ref}: {_described(image, facts.inside)}")


def _described(image: Image, inside: Inside | None) -> str:
    labels = dict(image.labels)
    built = f"built {image.created[:10]}" if image.created else ""
    version, revision = labels.get(VERSION, ""), labels.get(REVISION, "")[:12]
    noted = (VLLM_COMMIT.match(line) for line in inside.metadata) if inside else ()
    vllm = next((f"vllm {one[1]}" for one in noted if one), "")
    parts = (image.id.removeprefix("sha256:")[:12], size(image.size_bytes), built, version, revision, vllm)
    return ", ".join(part for part in parts if part)
