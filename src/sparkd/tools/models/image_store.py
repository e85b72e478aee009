"""Where docker keeps its images, and what an image takes there."""

from msgspec import Struct

from sparkd.base.host.docker_image import Image
from sparkd.base.lib.dockerd.reader import DockerReader

_CONTAINERD = "/var/lib/containerd"
"""The default `root` of containerd, which docker's answers do not name."""


class Store(Struct, frozen=True):
    """Docker's images on one node."""

    folder: str
    keeps_packed: bool
    """Layers stay packed beside the unpacked ones, as in containerd's store, the default since docker 29."""


class ImageSizes(Struct, frozen=True):
    archive_bytes: int
    """What `docker save` writes. A store that keeps packed layers gives these; another one packs none."""
    unpacked_bytes: int

    def in_store(self, store: Store) -> int:
        """Bytes that the image takes there, loaded from its archive."""
        return self.unpacked_bytes + (self.archive_bytes if store.keeps_packed else 0)


def find_store(info: object) -> Store:
    """The store that docker's `info` describes; `/` where it names no folder."""
    match info:
        case {"DriverStatus": [*pairs]} if ["driver-type", "io.containerd.snapshotter.v1"] in pairs:
            return Store(_CONTAINERD, True)
        case {"DockerRootDir": str(root)} if root.startswith("/"):
            return Store(root, False)
    return Store("/", False)


def read_sizes(docker: DockerReader, image: Image) -> ImageSizes:
    """Read what an image takes. Raises DockerError.

    Where docker keeps packed layers, its description of an image counts these, and its list the unpacked ones, too
    (moby, daemon/containerd/image_inspect.go and image_list.go). Without packed ones, both count the unpacked ones.
    """
    images = docker.images()
    for listed in images if isinstance(images, list) else ():
        match listed:
            case {"Id": str(full_id), "Size": int(both_bytes)} if full_id == image.id and both_bytes > image.size_bytes:
                return ImageSizes(image.size_bytes, both_bytes - image.size_bytes)
    return ImageSizes(image.size_bytes, image.size_bytes)
