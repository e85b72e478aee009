"""The disk that all nodes of a suite start from: the tree, the model, and a docker that has the images.

Kept in the pool, where a node's own copy of it costs nothing. One with a package installed is kept by its bed alone.
"""

import time
from pathlib import Path

from . import cache, disk, engine_image, images, nodebase, tiny_model
from .node import Node
from .pool import BASES, RUNS
from .space import Space
from .sparkd_node import SparkdNode

BUILDER = "spark9"  # a name that no node of a bed has


def key(suite: str) -> str:
    ours = (Path(__file__), Path(disk.__file__), disk.FILES / "bed-init", disk.FILES / "bed-runc")
    docker = (Path(images.__file__), engine_image.key(), tiny_model.key()) if nodebase.has_docker(suite) else ()
    return cache.recipe_key(*ours, nodebase.key(suite), *docker, *nodebase.other_docker(suite))


def ensure(space: Space, bed: str, suite: str) -> str:
    """The name of the disk among the bases, built first when it is not there."""
    name = f"{suite}-{key(suite)}.img"
    if there(space, BASES / name):
        return name
    with cache.lock(f"base-{suite}"):
        if not there(space, BASES / name):
            build(space, bed, suite, name)
    return name


def with_package(space: Space, bed: str, suite: str, package: Path) -> Path:
    """The same disk after apt has installed the package on it; made at its first use in this bed."""
    disk = RUNS / bed / f"{suite}-{cache.recipe_key(package)}.img"
    if not there(space, disk):
        node = Node(bed, BUILDER, space, nodebase.has_docker(suite))
        space.module("pool", "clone", BASES / ensure(space, bed, suite), node.image)
        space.module("disk", "personalise", node.image, node.name)
        node.boot()
        SparkdNode(node).install(package)
        node.power_off()
        space.module("disk", "settle", node.image)
        space.run("mv", node.image, disk)
    return disk


def there(space: Space, disk: Path) -> bool:
    return space.run("test", "-e", disk, check=False).returncode == 0


def build(space: Space, bed: str, suite: str, name: str) -> None:
    tree = nodebase.archive(suite)
    docker = nodebase.has_docker(suite)
    over = [tiny_model.archive(), *nodebase.other_docker(suite)] if docker else []
    started = time.monotonic()
    cache.say(f"building the disk {name}")
    with cache.progress(f"disk {suite}"):
        node = Node(bed, BUILDER, space, docker)
        space.module("disk", "fill", node.image, tree, *over)
        space.module("disk", "personalise", node.image, node.name)
        node.boot()
        if docker:
            images.load(node)
        node.power_off()
        space.module("disk", "settle", node.image)
        space.run("sh", "-c", 'mv "$0" "$1.new" && rm -f "$2"/"$3"-*.img && mv "$1.new" "$1"',
                  node.image, BASES / name, BASES, suite)  # fmt: skip
    cache.say(f"built in {time.monotonic() - started:.0f} s")
