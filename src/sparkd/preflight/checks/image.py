"""The engine's image: on this node, and for this machine."""

from __future__ import annotations

from msgspec import Struct

from sparkd.host import Host, docker, docker_image
from sparkd.host.docker_image import Image
from sparkd.lib.dockerd.reader import DockerError, DockerReader
from sparkd.lib.text import sanitize, size
from sparkd.preflight.check import About, Check, Level, Verdict

REVISION = "org.opencontainers.image.revision"
VERSION = "org.opencontainers.image.version"


class ImageFacts(Struct, frozen=True):
    ref: str
    asserts: tuple[str, ...]
    """What the launch script checks in the container before the engine starts."""
    docker: str
    """"known", "away", or why a running docker did not answer."""
    machine: str = ""
    """Architecture of this machine."""
    image: Image | None = None


class EngineImage(Check[ImageFacts], frozen=True):
    """The plan's image is here, and for this machine. Nothing is pulled: an image that changes by itself is drift."""

    ref: str
    asserts: tuple[str, ...] = ()
    id = "image"
    about = About(
        levels=(Level.BLOCK, Level.UNKNOWN),
        reads="docker's description of the image; the architecture of docker",
        source="Docker Engine API, ImageInspect; OCI image specification, annotations; DeepSeek V4 Flash on Dual DGX "
        "Spark, addendum on the mxfp4 fix (a patch applied twice ends the load)",
        page="""\
The plan names an image: engine.image of the settings, else image.ref of the recipe. sparkd starts a container of the
image that this node has under that name, and pulls nothing at a start, so that a moved tag changes no node by itself.
The nodes compare their images when they meet.

  block    it is not here (docker pull REF, or sparkd image sync on a node that has it), or it was built for
           another architecture than this machine's, such as amd64 on a GB10, which is arm64. It would end with
           "exec format error". docker pull --platform linux/arm64 REF
  unknown  docker runs, but can't describe the image.

The content is not inspected, and the entrypoint is not used: the container begins with the launch script. There the
entries of image.assert in the recipe run before the engine starts: commands that must succeed, or how many lines of a
file match a pattern, which distinguishes a missing patch from one applied twice. One that fails ends the launch.""",
    )

    def probe(self, host: Host) -> ImageFacts:
        def look(reader: DockerReader) -> tuple[str, Image | None]:
            return docker_image.read_architecture(reader), docker_image.read_image(reader, self.ref)

        try:
            found = docker.query(host, look)
        except DockerError as error:
            return ImageFacts(self.ref, self.asserts, sanitize(str(error)))
        if found is None:
            return ImageFacts(self.ref, self.asserts, "away")
        return ImageFacts(self.ref, self.asserts, "known", *found)

    def judge(self, facts: ImageFacts) -> Verdict:
        image = facts.image
        if facts.docker == "away":
            return Verdict(Level.OK, "docker is away, so the image was not checked")
        if facts.docker != "known":
            reason = f"docker can't describe the image: {facts.docker}"
            return Verdict(Level.UNKNOWN, reason, "look at: systemctl status docker", awaits="docker")
        if image is None:
            return Verdict(Level.BLOCK, f"image {facts.ref} is not on this node", docker_image.pull_hint(facts.ref))
        if facts.machine and image.architecture and image.architecture != facts.machine:
            reason = f"image {facts.ref} is for {image.architecture}, and this machine is {facts.machine}"
            return Verdict(Level.BLOCK, reason, f"docker pull --platform linux/{facts.machine} {facts.ref}")
        return Verdict(Level.OK, f"{facts.ref}: {_described(image)}")


def _described(image: Image) -> str:
    labels = dict(image.labels)
    built = f"built {image.created[:10]}" if image.created else ""
    version, revision = labels.get(VERSION, ""), labels.get(REVISION, "")[:12]
    parts = (image.id.removeprefix("sha256:")[:12], size(image.size_bytes), built, version, revision)
    return ", ".join(part for part in parts if part)
