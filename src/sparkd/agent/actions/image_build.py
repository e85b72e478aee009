"""An image, built by dockerd's own builder out of an archive, then checked, kept and named."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing

from sparkd.agent.actions.dockerd import ASSERT_SECONDS, TIMEOUT_SECONDS, Containers, program_body
from sparkd.agent.actions.kept_images import keep_images
from sparkd.base.host.docker import LABEL
from sparkd.base.lib.dockerd.client import SdkClient, docker_errors
from sparkd.base.lib.dockerd.reader import SOCKET, DockerError

SILENT_SECONDS = 4 * 3600.0
"""A compiler may print nothing for as long as it runs: vLLM takes two to four hours on a Spark."""
DOCKERFILE = ".sparkd/Dockerfile"
"""A place in the archive where no file of a recipe can be: none is hidden."""
LONGEST_LINE = 2000


def build(
    archive: bytes, labels: Mapping[str, str], memory_bytes: int, *, cached: bool, socket_path: str = SOCKET
) -> Generator[str, None, str]:
    """Yields the builder's lines, and returns the image's id; it has no name. Raises DockerError.

    dockerd ends the build and removes its containers when the connection is closed, such as by an interrupt. The
    containers are on docker's default network and get neither the proxy's address nor any other argument. Each has at
    most `memory_bytes`, and no swap.
    """
    with closing(SdkClient(socket_path, SILENT_SECONDS)) as client:
        client.call(lambda api: api.version(), TIMEOUT_SECONDS)  # finds the API version, which a stream can't
        with docker_errors(SILENT_SECONDS):
            answer = client.call(
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
            return (yield from _lines(answer))


def _lines(answer: Iterable[Mapping[str, object]]) -> Generator[str, None, str]:
    """Whole lines of a stream of docker's messages; returns the last image's id. Raises DockerError."""
    rest = image = ""
    for message in answer:
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
    """Exit code and log of a recipe's assertions. Raises LaunchError."""
    containers, name = Containers(socket_path), f"sparkd-build-{image.removeprefix('sha256:')[:12]}"
    containers.remove(name)  # of a check that was killed
    return containers.run_program(program_body(image, program, {f"{LABEL}build": "check"}), name, ASSERT_SECONDS)


def give_name(image: str, ref: str, replaced: str, socket_path: str = SOCKET) -> None:
    """Let the image have the name `ref`, which the one that is `replaced`, if any, had: no prune takes either.

    Raises DockerError.
    """
    list(keep_images([*filter(None, (image, replaced))], (), (), socket_path))
    repository, _, tag = ref.rpartition(":") if ":" in ref.rpartition("/")[2] else (ref, "", "latest")
    SdkClient(socket_path, TIMEOUT_SECONDS).call(lambda api: api.tag(image, repository, tag))
