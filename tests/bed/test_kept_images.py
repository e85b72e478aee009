"""An image that works outlives docker's prunes and a moved name, on a real docker; and goes when it is to."""

import json
from collections.abc import Collection

import pytest
from tests.bed import Node
from tests.bed.images import BUSYBOX

from sparkd.agent.actions.images import KEPT_IMAGES, KEPT_LABEL, container_name, image_name, keep_images
from sparkd.base.lib.dockerd.reader import CONFLICT, DockerError

DAEMON, ARCHIVE = "/etc/docker/daemon.json", "/root/busybox.tar"
NAME = "example/engine:latest"
PRUNES = ("image prune --force", "image prune --all --force")
PRUNE_CONTAINERS, PRUNE_ALL = "container prune --force", "system prune --all --force"


def make_image(node: Node, text: str) -> str:
    """Another image with the name, as after a pull; its id."""
    made = node.run("docker", "create", BUSYBOX, "true").stdout.strip()
    node.run("docker", "commit", "--change", f"ENV TEXT={text}", made, NAME)
    node.run("docker", "rm", made)
    return image_id(node, NAME)


def image_id(node: Node, ref: str) -> str:
    """Empty where it is not there."""
    return node.run("docker", "image", "inspect", "--format", "{{.Id}}", ref, check=False).stdout.strip()


def docker(node: Node, command: str) -> str:
    return node.run("docker", *command.split()).stdout


def keep(node: Node, *known: str, before: Collection[str] = ()) -> list[tuple[str, bool]]:
    """Keep the `known` images, the latest first: all by a name, two by a container, too. Returns what has changed."""
    return list(keep_images(known, known[:2], before, f"/proc/{node.init}/root/run/docker.sock"))


def kept_containers(node: Node) -> set[str]:
    return set(docker(node, f"container ls --all --filter label={KEPT_LABEL} --format {{{{.Names}}}}").split())


def kept_names(node: Node) -> set[str]:
    return set(docker(node, f"image ls --format {{{{.Repository}}}}:{{{{.Tag}}}} {KEPT_IMAGES}").split())


@pytest.fixture(scope="module", params=["overlay2", pytest.param("containerd", marks=pytest.mark.whole)], autouse=True)
def saved(node: Node, request: pytest.FixtureRequest) -> str:
    """The archive of an image, for a docker with either of its stores."""
    node.sh(f"test -e {ARCHIVE} || docker save --output {ARCHIVE} {BUSYBOX}")
    if request.param == "containerd":
        settings = json.loads(node.read(DAEMON))
        del settings["storage-driver"]
        node.write(DAEMON, json.dumps({**settings, "features": {"containerd-snapshotter": True}}))
        node.run("systemctl", "restart", "docker")
        assert "io.containerd.snapshotter" in docker(node, "info --format {{.DriverStatus}}")
    return ARCHIVE


@pytest.fixture(autouse=True)
def nothing_kept(node: Node, saved: str) -> None:
    docker(node, f"load --input {saved}")  # a prune of the last test may have removed it
    keep(node, before=docker(node, "image ls --quiet --no-trunc").split())


def test_a_kept_image_outlives_the_prunes_and_a_moved_name(node: Node) -> None:
    lost, old = make_image(node, "lost"), make_image(node, "old")
    assert keep(node, old) == [(image_name(old), True), (container_name(old), True)]
    assert keep(node, old) == [], "a second time, nothing is to be made"
    new = make_image(node, "new")
    for prune in PRUNES:
        docker(node, prune)
        assert image_id(node, old) == old, prune
    assert (image_id(node, lost), image_id(node, new)) == ("", ""), "the prunes remove what nobody keeps"
    assert docker(node, f"run --rm {old} env").count("TEXT=old") == 1
    (state,) = docker(node, f"container ls --all --filter label={KEPT_LABEL} --format {{{{.State}}}}").split()
    assert state == "created"


def test_the_next_proof_replaces_a_pruned_container_and_leaves_out_a_pruned_image(node: Node) -> None:
    old = make_image(node, "old")
    keep(node, old)
    docker(node, PRUNE_CONTAINERS)
    assert (kept_containers(node), kept_names(node)) == (set(), {image_name(old)})
    assert keep(node, old) == [(container_name(old), True)]
    docker(node, PRUNE_ALL)
    assert image_id(node, old) == ""
    assert keep(node, old) == [], "an image that is gone is left out"


def test_names_and_containers_go_with_their_plans(node: Node) -> None:
    first, second, third = (make_image(node, text) for text in ("first", "second", "third"))
    keep(node, third, second, first)
    assert kept_containers(node) == {container_name(third), container_name(second)}
    assert kept_names(node) == set(map(image_name, (third, second, first)))
    assert keep(node, third) == [], "nobody says that the others are over"
    released = {container_name(second), image_name(first), image_name(second)}
    assert set(keep(node, third, before=(third, second, first))) == {(name, False) for name in released}
    assert (image_id(node, first), image_id(node, second), image_id(node, third)) == ("", "", third)


def test_a_name_and_a_container_that_sparkd_did_not_make_stay(node: Node) -> None:
    old = make_image(node, "old")
    docker(node, f"tag {old} {KEPT_IMAGES}:mine")
    docker(node, f"create --name mine --label {KEPT_LABEL}={old} {old} true")
    keep(node, old)
    assert kept_containers(node) == {container_name(old), "mine"}
    assert kept_names(node) == {image_name(old), f"{KEPT_IMAGES}:mine"}
    keep(node, before=(old,))
    assert (kept_containers(node), kept_names(node)) == ({"mine"}, {f"{KEPT_IMAGES}:mine"})
    docker(node, "rm mine")
    docker(node, f"image rm {KEPT_IMAGES}:mine")


def test_an_image_whose_last_name_goes_stays_while_a_container_is_made_of_it(node: Node) -> None:
    old = make_image(node, "old")
    keep(node, old)
    docker(node, f"create --name user {old} true")
    make_image(node, "new")
    with pytest.raises(DockerError) as caught:
        keep(node, before=(old,))
    assert (caught.value.status, kept_containers(node), image_id(node, old)) == (CONFLICT, set(), old)
    docker(node, "rm user")
    assert keep(node, before=(old,)) == [(image_name(old), False)]


def test_a_name_that_somebody_elses_container_has_is_an_error(node: Node) -> None:
    old, over = make_image(node, "old"), make_image(node, "over")
    keep(node, over)
    docker(node, f"create --name {container_name(old)} {old} true")
    with pytest.raises(DockerError, match="in use"):
        keep(node, old, before=(over,))
    assert (kept_names(node), kept_containers(node)) == ({image_name(old)}, set()), "the rest is done all the same"
    docker(node, f"rm {container_name(old)}")
