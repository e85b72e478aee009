"""Room for images, by the answers of docker's two kinds of store."""

import pytest
from tests.tree import Tree

from sparkd.base.host import Host
from sparkd.base.host.docker_image import Image
from sparkd.tools.models.image_store import ImageSizes, Store, find_store, read_sizes

IMAGE = Image("sha256:1", "arm64", "", 10, "", (), (), ())


@pytest.mark.parametrize(
    ("info", "store"),
    [
        ({"DockerRootDir": "/data", "DriverStatus": [["Backing Filesystem", "extfs"]]}, Store("/data", False)),
        (
            {"DockerRootDir": "/data", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]},
            Store("/var/lib/containerd", True),
        ),
        ({"DockerRootDir": 7, "DriverStatus": None}, Store("/", False)),
        ({"DockerRootDir": "data"}, Store("/", False)),
        (None, Store("/", False)),
    ],
)
def test_room_is_looked_for_where_docker_keeps_its_images(info: object, store: Store) -> None:
    assert find_store(info) == store


def test_a_store_that_keeps_packed_layers_needs_room_for_both_forms() -> None:
    sizes = ImageSizes(archive_bytes=1, unpacked_bytes=2)
    assert sizes.in_store(Store("/", keeps_packed=False)) == 2
    assert sizes.in_store(Store("/", keeps_packed=True)) == 3


@pytest.mark.parametrize(
    ("images", "sizes"),
    [
        ([{"Id": "sha256:2", "Size": 99}, {"Id": "sha256:1", "Size": 10}], ImageSizes(10, 10)),
        ([{"Id": "sha256:2", "Size": 99}, {"Id": "sha256:1", "Size": 35}], ImageSizes(10, 25)),
        ([{"Id": "sha256:1", "Size": "35"}, 7, {}], ImageSizes(10, 10)),
        (None, ImageSizes(10, 10)),
    ],
)
def test_the_list_counts_unpacked_layers_that_the_description_leaves_out(
    tree: Tree, images: object, sizes: ImageSizes
) -> None:
    tree.docker("/images/json", images)
    assert read_sizes(Host(tree.root).docker_reader(), IMAGE) == sizes
