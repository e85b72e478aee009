"""Changes dockerd's images: keeps those of known good plans, builds one, and saves one for another node.

An image is kept by a name and a container of sparkd's own. An image with a name survives `docker image prune`, and a
pull that moves its other name. `docker image prune -a` removes it too, unless it has a container: that one is created,
never started, and has nothing of the machine. `docker container prune` and `docker system prune -a` remove both: then
the check `image` names the digest to pull.
"""

import io
import os
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from operator import methodcaller
from pathlib import Path

from sparkd.agent.actions.container_bodies import ASSERT_SECONDS, program_body
from sparkd.agent.actions.dockerd import TIMEOUT_SECONDS, Containers
from sparkd.agent.actions.files import sync_folder
from sparkd.agent.actions.shared_folders import find_shared
from sparkd.base.host.docker import LABEL
from sparkd.base.host.docker_image import split_name
from sparkd.base.lib.dockerd.client import APIClient, SdkClient, docker_errors
from sparkd.base.lib.dockerd.reader import CONFLICT, MISSING, SOCKET, DockerError
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.lock import try_lock
from sparkd.base.lib.text import sanitize

KEPT_IMAGES = "sparkd/known-good"
"""Repository of the names, which are on this node alone."""
KEPT_LABEL = f"{LABEL}kept"
"""Label of the container; its value is the image's full id."""


def keep_images(
    named: Sequence[str], pinned: Sequence[str], before: Collection[str], socket_path: str = SOCKET
) -> Iterator[tuple[str, bool]]:
    """Give the images `named` a name, and those of `pinned` a container. All are full ids.

    `before`: images of plans that were known good until now: those that are not kept lose both. Other images lose
    nothing, since a history may be lost. docker removes an image with its last name, unless it has a container. Yields
    each name or container, and whether it was made (or removed); images that are not here are left out. Raises
    DockerError; for a conflict, after all else.
    """
    call, conflicts = SdkClient(socket_path, TIMEOUT_SECONDS).call, list[str]()
    names, containers = call(_find_names), call(_find_containers)
    changes: list[tuple[str, bool, Callable[[APIClient], object]]] = [
        (image_name(image), True, methodcaller("tag", image, *image_name(image).split(":")))
        for image in named
        if image not in names
    ]
    changes += [(container_name(image), True, _make_create_call(image)) for image in pinned if image not in containers]
    changes += [
        (container_name(image), False, methodcaller("remove_container", containers[image], v=True))
        for image in (containers.keys() & before) - set(pinned)
    ]
    changes += [
        (image_name(image), False, methodcaller("remove_image", image_name(image)))
        for image in (names & set(before)) - set(named)
    ]
    for name, is_made, change in changes:
        try:
            call(change)
            yield name, is_made
        except DockerError as error:
            if error.status == CONFLICT:
                conflicts.append(str(error))
            elif error.status != MISSING:
                raise
    if conflicts:
        raise DockerError("; ".join(conflicts), CONFLICT)


def _make_create_call(image: str) -> Callable[[APIClient], object]:
    # Made by the image's name: containerd's store then keeps the name for as long as there is the container.
    body = program_body(image_name(image), "false", {KEPT_LABEL: image})
    return methodcaller("create_container_from_config", body, container_name(image))


def image_name(image: str) -> str:
    return f"{KEPT_IMAGES}:{image.removeprefix('sha256:')[:12]}"


def container_name(image: str) -> str:
    """The name of the image's container: unlike a rank's, so that no clean-up of ranks removes it."""
    return f"sparkd-kept-{image.removeprefix('sha256:')[:12]}"


def _find_names(api: APIClient) -> set[str]:
    """Ids of the images that have sparkd's name: a name by somebody else in that repository has no image's id."""
    images = api.images(KEPT_IMAGES)
    return {image["Id"] for image in images if image_name(image["Id"]) in (image["RepoTags"] or ())}


def _find_containers(api: APIClient) -> dict[str, str]:
    """Ids of the containers, by image. The label is not enough: `docker commit` keeps it in a new image."""
    containers = api.containers(all=True, filters={"label": KEPT_LABEL})
    facts = ((container["Labels"][KEPT_LABEL], container["Id"], container["Names"]) for container in containers)
    return {image: container_id for image, container_id, names in facts if names == [f"/{container_name(image)}"]}


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


STREAM_SECONDS = 300.0
"""Limit for the beginning of an archive: dockerd gathers the layers of a large image first."""
CHUNK_BYTES = 4 << 20


@contextmanager
def lock_scratch(folder: Path) -> Iterator[None]:
    """Allow one copy at a time: two would write and remove the same file. Raises BlockedError."""
    if writable := find_shared(folder):
        raise BlockedError(
            f"others than root may write to {writable}, on the way to {folder}", "sudo -H sparkd image sync"
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise BlockedError(f"{folder}: {error.strerror}", f"ls -ld {folder}") from None
    try:
        # The lock is on the folder itself: a lock file would be left behind. On NFS no folder can be locked.
        with suppress(OSError):
            if not try_lock(fd):
                raise BlockedError("another `sparkd image sync` is under way here", "let it end first")
        yield
    finally:
        os.close(fd)


def save(ref: str, file: Path, received: Callable[[int], None]) -> None:
    """Save an image for `docker load`, whole or not at all. `received` gets each piece's size. Raises BlockedError."""
    part = file.with_suffix(".part")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as archive:
            for piece in read_archive(ref):
                archive.write(piece)
                received(len(piece))
            archive.flush()
            os.fsync(archive.fileno())
        part.replace(file)
        sync_folder(file.parent)
    except (DockerError, OSError) as error:
        reason = f"{ref} can't be written to {file}: {sanitize(str(error))}"
        raise BlockedError(reason, f"df -h {file.parent}") from None
    finally:
        part.unlink(missing_ok=True)


def read_archive(ref: str, socket_path: str = SOCKET) -> Iterator[bytes]:
    """An image's archive, as `docker load` reads it, in pieces. Raises DockerError."""
    client = SdkClient(socket_path, STREAM_SECONDS)
    client.call(lambda api: api.inspect_image(ref))  # finds the API version, which a stream can't, and a missing image
    with docker_errors(STREAM_SECONDS):
        yield from client.call(lambda api: api.get_image(ref, chunk_size=CHUNK_BYTES))
