"""What a node has to serve with: models, images, memory, and what its head may choose.

The head requests the inventory of each worker before it changes the plan. It is bounded, and proves nothing: the worker
judges the plan again before it launches it.
"""

from collections import deque
from typing import Annotated

from msgspec import Meta, Struct

from sparkd.base.cluster.following import permitted_image_prefixes
from sparkd.base.config import Settings
from sparkd.base.config.settings import Allow
from sparkd.base.host import Host, docker, docker_image, model_folder
from sparkd.base.host.files import Files
from sparkd.base.lib.dockerd.reader import DockerError, DockerReader
from sparkd.base.lib.text import sanitize
from sparkd.base.state.file import Codec

PATH = "/inventory"
MOST_MODELS, MOST_IMAGES, MOST_FOLDERS = 100, 100, 400
DEPTH = 4
"""Depth of a model below models_dir: models--ORG--NAME/snapshots/REVISION has three parts."""
FRESH_SECONDS = 5.0
"""Age up to which an inventory that was read is served again."""
NOT_MODELS = ("blobs", "refs", ".no_exist")
"""Folders of Hugging Face's cache without models: hundreds of files, to which the files of the snapshots link."""
Text = Annotated[str, Meta(max_length=1000)]
Bytes = Annotated[int, Meta(ge=0, lt=1 << 60)]


class Model(Struct, frozen=True):
    path: Text
    """Path below models_dir."""
    size_bytes: Bytes
    fault: Text = ""
    """Why the model can't be loaded; empty where it is whole."""


class Image(Struct, frozen=True):
    name: Text
    identity: Text


class Inventory(Struct, frozen=True):
    node: Text
    memory_bytes: Bytes
    follows: bool
    """Whether it takes its plan from the head."""
    allow: Allow
    permitted: Annotated[tuple[Text, ...], Meta(max_length=1000)]
    """Beginnings of the names of images that the head may choose."""
    models_dir: Text
    models: Annotated[tuple[Model, ...], Meta(max_length=MOST_MODELS)]
    images: Annotated[tuple[Image, ...], Meta(max_length=MOST_IMAGES)]
    unread: Annotated[tuple[Text, ...], Meta(max_length=8)] = ()
    """What could not be read completely, and why: `KIND: REASON`."""


CODEC = Codec(Inventory)


def read_inventory(settings: Settings, host: Host) -> Inventory:
    """Read this node's inventory, which also names what is unreadable. Takes seconds on a slow disk."""
    models, models_unread = _read_models(host.files, settings.engine.models_dir)
    images, images_unread = _read_images(host)
    memory_bytes, memory_unread = 0, ""
    try:
        memory_bytes = host.meminfo().total_bytes
    except (OSError, ValueError) as error:
        memory_unread = sanitize(f"memory: {error}")
    return Inventory(
        node=host.name(),
        memory_bytes=memory_bytes,
        follows=settings.cluster.follow_head,
        allow=settings.cluster.allow,
        permitted=permitted_image_prefixes(settings, host),
        models_dir=settings.engine.models_dir,
        models=models,
        images=images,
        unread=tuple(filter(None, (models_unread, images_unread, memory_unread))),
    )


def _read_models(files: Files, models_dir: str) -> tuple[tuple[Model, ...], str]:
    """The models, and why there may be more of them (empty where these are all)."""
    try:
        pending = deque((name, 1) for name in files.names(models_dir))
    except OSError as error:
        return (), f"models: {models_dir}: {error.strerror or error}"
    models, unexamined, unread = list[Model](), MOST_FOLDERS, ""
    while pending and len(models) < MOST_MODELS:
        if not unexamined:
            return tuple(models), f"models: {models_dir}: only the first {MOST_FOLDERS} names below it were looked at"
        unexamined -= 1
        path, depth = pending.popleft()
        try:
            model, names = _examine_folder(files, models_dir, path)
        except OSError as error:
            unread = unread or sanitize(f"models: {models_dir}/{path}: {error.strerror or error}")
            continue
        models += [model] if model else []
        pending.extend((f"{path}/{name}", depth + 1) for name in names if depth < DEPTH)
    return tuple(models), unread or _describe_excess("models", len(models), MOST_MODELS)


def _examine_folder(files: Files, models_dir: str, path: str) -> tuple[Model | None, tuple[str, ...]]:
    """The model in a folder; without one, the names in it, which may be models. Raises OSError."""
    folder = model_folder.examine(files, f"{models_dir}/{path}")
    if folder.has_config or folder.format:
        return Model(path, folder.size_bytes, _find_fault(folder)), ()
    names = files.names(f"{models_dir}/{path}") if folder.exists else ()
    return None, tuple(name for name in names if name not in NOT_MODELS)


def _find_fault(folder: model_folder.ModelFolder) -> str:
    if folder.flaws:
        return f"{folder.flaws[0].name} {folder.flaws[0].wrong}"
    return "" if folder.format else "it has no weights"


def _read_images(host: Host) -> tuple[tuple[Image, ...], str]:
    """The images, and why there may be more of them (empty where these are all)."""
    try:
        images = docker.query(host, _find_images)
    except DockerError as error:
        return (), sanitize(f"images: {error}")
    if images is None:
        return (), "images: docker is not running"
    return images, _describe_excess("images", len(images), MOST_IMAGES)


def _find_images(reader: DockerReader) -> tuple[Image, ...]:
    """The first images that have an identity. Raises DockerError."""
    names = docker_image.read_names(reader)[:MOST_IMAGES]
    images = ((name, docker_image.image_identity(reader, name)) for name in names)
    return tuple(Image(name, identity) for name, identity in images if identity)


def _describe_excess(kind: str, count: int, most: int) -> str:
    return f"{kind}: there are {most} or more" if count >= most else ""
