"""Builds an image by a recipe, checks it, and gives it its name."""

import io
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing

from sparkd.agent.actions.container_bodies import ASSERT_SECONDS, program_body
from sparkd.agent.actions.dockerd import TIMEOUT_SECONDS, Containers
from sparkd.agent.actions.images import keep_images
from sparkd.base.host.docker import LABEL
from sparkd.base.host.docker_image import split_name
from sparkd.base.lib.dockerd.client import SdkClient, docker_errors
from sparkd.base.lib.dockerd.reader import SOCKET, DockerError

SILENT_SECONDS = 4 * 3600.0
"""Limit for the builder's silence: a compiler may print nothing, and vLLM takes two to four hours on a Spark."""
DOCKERFILE = ".sparkd/Dockerfile"
"""Path in the archive: no recipe can have a file there, so none is replaced."""
LONGEST_LINE = 2000


def build(
    archive: bytes, labels: Mapping[str, str], memory_bytes: int, *, cached: bool, socket_path: str = SOCKET
) -> Generator[str, None, str]:
    """Build an image without a name. Yields the builder's lines, returns the image's id. Raises DockerError.

    dockerd ends the build and removes its containers when the connection is closed, such as by an interrupt. The
    containers are on docker's default network and get neither the proxy's address nor any other argument. Each has at
    most `memory_bytes`, and no swap.
    """
    with closing(SdkClient(socket_path, SILENT_SECONDS)) as client:
        client.call(lambda api: api.version(), TIMEOUT_SECONDS)  # finds the API version, which a stream can't
        with docker_errors(SILENT_SECONDS):
            messages = client.call(
                lambda api: api.build(
                    fileobj=io.BytesIO(archive),
                    custom_context=True,
                    dockerfile=DOCKERFILE,
                    labels=dict(labels),
                    nocache=not cached,
                    rm=True,
                    forcerm=True,
                    use_config_proxy=False,
                    container_limits={"memory": memory_bytes, "memswap": memory_bytes},
                    decode=True,
                )
            )
            return (yield from _read_lines(messages))


def _read_lines(messages: Iterable[Mapping[str, object]]) -> Generator[str, None, str]:
    """Whole lines of a stream of docker's messages; returns the last image's id. Raises DockerError."""
    rest = image = ""
    for message in messages:
        match message:
            case {"error": str(error)}:
                raise DockerError(error)
            case {"aux": {"ID": str(image)}}:
                pass
            case {"stream": str(text)}:
                *lines, rest = (rest + text).split("\n")
                yield from (line[:LONGEST_LINE] for line in lines)
                rest = rest[:LONGEST_LINE]
    return image


def check(image: str, program: str, socket_path: str = SOCKET) -> tuple[int, str]:
    """Run a recipe's assertions in the image. Returns exit code and log. Raises LaunchError."""
    containers, name = Containers(socket_path), f"sparkd-build-{image.removeprefix('sha256:')[:12]}"
    containers.remove(name)  # left by a check that was killed
    return containers.run_program(program_body(image, program, {f"{LABEL}build": "check"}), name, ASSERT_SECONDS)


def give_name(image: str, ref: str, replaced: str, socket_path: str = SOCKET) -> None:
    """Move the name `ref` to the image from the image `replaced`, if any, and keep both from a prune.

    Raises DockerError.
    """
    list(keep_images([*filter(None, (image, replaced))], (), (), socket_path))
    repository, tag = split_name(ref)
    SdkClient(socket_path, TIMEOUT_SECONDS).call(lambda api: api.tag(image, repository, tag or "latest"))
