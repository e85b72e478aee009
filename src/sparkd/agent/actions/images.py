"""Keeps the images of known good plans.

An image is kept by a name and a container of sparkd's own. An image with a name survives `docker image prune`, and a
pull that moves its other name. `docker image prune -a` removes it too, unless it has a container: that one is created,
never started, and has nothing of the machine. `docker container prune` and `docker system prune -a` remove both: then
the check `image` names the digest to pull.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from operator import methodcaller

from sparkd.agent.actions.container_bodies import program_body
from sparkd.agent.actions.dockerd import TIMEOUT_SECONDS
from sparkd.base.host.docker import LABEL
from sparkd.base.lib.dockerd.client import APIClient, SdkClient
from sparkd.base.lib.dockerd.reader import CONFLICT, MISSING, SOCKET, DockerError

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
