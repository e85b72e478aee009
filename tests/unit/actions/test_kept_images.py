"""Images that stay on the node, and which lose what keeps them: the requests to docker."""

from collections.abc import Iterable

import pytest
from tests.unit.docker_server import dockerd, json_response, plain

from sparkd.agent.actions.images import KEPT_LABEL, container_name, image_name, keep_images
from sparkd.base.lib.dockerd.reader import CONFLICT, DockerError

NEW, OLD, OLDER = (f"sha256:{letter * 64}" for letter in "abc")
KEPT = (NEW, OLD)
MADE = [f"POST /images/{NEW}/tag", "POST /containers/create"]
REMOVED = [f"DELETE /containers/{OLDER[7:]}", f"DELETE /images/{image_name(OLDER)}"]


class Docker:
    """Has names and containers of OLD and OLDER."""

    def __init__(self, *, refused: str = "") -> None:
        self.changed: list[str] = []
        self._refused = refused

    def answer(self, request: str) -> Iterable[bytes]:
        method, _, path = plain(request).partition(" ")
        if path == "/images/json":
            return json_response([{"Id": image, "RepoTags": [image_name(image)]} for image in (OLD, OLDER)])
        if path == "/containers/json":
            kept = ((image, f"/{container_name(image)}") for image in (OLD, OLDER))
            return json_response(
                [{"Id": image[7:], "Names": [name], "Labels": {KEPT_LABEL: image}} for image, name in kept]
            )
        if self._refused and path.startswith(self._refused):
            return json_response({"message": f"{path} is in use"}, CONFLICT)
        self.changed.append(f"{method} {path}")
        return json_response({"Id": "x"}, 201)


@pytest.mark.parametrize(
    ("before", "changed"),
    [((OLD, OLDER), [*MADE, *REMOVED]), ((OLD,), MADE), ((), MADE)],
    ids=["a plan is over", "no plan is over", "the history is lost"],
)
def test_only_an_image_of_a_plan_that_is_over_is_released(before: tuple[str, ...], changed: list[str]) -> None:
    docker = Docker()
    with dockerd(docker.answer) as path:
        list(keep_images(named=KEPT, pinned=KEPT, before=before, socket_path=path))
    assert docker.changed == changed


def test_a_name_that_somebody_elses_container_has_holds_up_nothing_else() -> None:
    docker, kept = Docker(refused="/containers/create"), list[tuple[str, bool]]()
    with dockerd(docker.answer) as path, pytest.raises(DockerError, match="in use") as caught:
        kept.extend(keep_images(named=KEPT, pinned=KEPT, before=(OLD, OLDER), socket_path=path))
    assert docker.changed == [MADE[0], *REMOVED]
    assert kept == [(image_name(NEW), True), (container_name(OLDER), False), (image_name(OLDER), False)]
    assert caught.value.status == CONFLICT


def test_a_name_that_docker_refuses_to_remove_is_reported() -> None:
    docker = Docker(refused="/images/sparkd")
    with dockerd(docker.answer) as path, pytest.raises(DockerError, match=f"{image_name(OLDER)} is in use"):
        list(keep_images(named=KEPT, pinned=KEPT, before=(OLD, OLDER), socket_path=path))
    assert docker.changed == [*MADE, REMOVED[0]]
