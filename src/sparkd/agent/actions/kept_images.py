"""Images of known good plans, kept on this node by a name and a container of sparkd's own.

Neither `docker image prune` nor a pull that moves the image's other name takes an image that has a name. `docker image
prune -a` does, unless there is a container of it: that one is created, never started, and has nothing of the machine.
`docker container prune` and `docker system prune -a` remove both: then the check `image` names the digest to pull.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from operator import methodcaller

from sparkd.agent.actions.dockerd import TIMEOUT_SECONDS, program_body
from sparkd.base.host.docker import LABEL
from sparkd.base.lib.dockerd.client import APIClient, SdkClient
from sparkd.base.lib.dockerd.reader import CONFLICT, MISSING, SOCKET, DockerError

KEPT_IMAGES = "sparkd/known-good"
"""The repository of the names: on this node alone."""
KEPT_LABEL = f"{LABEL}kept"
"""Label of the container; its value is the image's full id."""


def keep_images(
    named: Sequence[str], pinned: Sequence[str], before: Collection[str], socket_path: str = SOCKET
) -> Iterator[tuple[str, bool]]:
    """Let images, by full id, have a name and, those of `pinned`, a container; remove what others of `before` have.

    `before`: those of plans that were known good until now. Others lose nothing: a history may be lost. Yields each
    name or container, and whether it was made or removed; images that are not here are left out. An image goes with its
    last name, unless there is a container of it. Raises DockerError; for a conflict, after all else.
    """
    call, conflicts = SdkClient(socket_path, TIMEOUT_SECONDS).call, list[str]()
    names, containers = call(_find_names), call(_find_containers)
    steps: list[tuple[str, bool, Callable[[APIClient], object]]] = [
        (image_name(image), True, methodcaller("tag", image, *image_name(image).split(":")))
        for image in named
        if image not in names
    ]
    steps += [(container_name(image), True, _create(image)) for image in pinned if image not in containers]
    steps += [
        (container_name(image), False, methodcaller("remove_container", containers[image], v=True))
        for image in (containers.keys() & before) - set(pinned)
    ]
    steps += [
        (image_name(image), False, methodcaller("remove_image", image_name(image)))
        for image in (names & set(before)) - set(named)
    ]
    for name, made, work in steps:
        try:
            call(work)
            yield name, made
        except DockerError as error:
            if error.status == CONFLICT:
                conflicts.append(str(error))
            elif error.status != MISSING:
                raise
    if conflicts:
        raise DockerError("; ".join(conflicts), CONFLICT)


def _create(image: str) -> Callable[[APIClient], object]:
    # By its name: containerd's store leaves a name to an image for as long as a container was made by it.
    body = program_body(image_name(image), "false", {KEPT_LABEL: image})
    return methodcaller("create_container_from_config", body, container_name(image))


def image_name(image: str) -> str:
    return f"{KEPT_IMAGES}:{image.removeprefix('sha256:')[:12]}"


def container_name(image: str) -> str:
    """Its container's name, unlike a rank's: no sweep takes it for one."""
    return f"sparkd-kept-{image.removeprefix('sha256:')[:12]}"


def _find_names(api: APIClient) -> set[str]:
    """Ids of the images that have a name made here: somebody else's in that repository is not after its image's id."""
    images = api.images(KEPT_IMAGES)
    return {image["Id"] for image in images if image_name(image["Id"]) in (image["RepoTags"] or ())}


def _find_containers(api: APIClient) -> dict[str, str]:
    """Their ids by image. The name counts too: `docker commit` keeps the label in a new image."""
    containers = api.containers(all=True, filters={"label": KEPT_LABEL})
    facts = ((container["Labels"][KEPT_LABEL], container["Id"], container["Names"]) for container in containers)
    return {image: container_id for image, container_id, names in facts if names == [f"/{container_name(image)}"]}
