"""What a node could serve with: its whole models, its images, its memory, and what it lets a head want.

The head requests it of each worker before it changes the plan. It is bounded, and proves nothing: the worker judges a
plan again before it launches it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from shlex import quote
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import replace

from sparkd.base.cluster.auth import KeyRing
from sparkd.base.cluster.following import permitted_images
from sparkd.base.cluster.membership import NodeContext, Peer, check_inputs, peers_of
from sparkd.base.config import Settings
from sparkd.base.config.settings import Allow
from sparkd.base.host import Host, docker, docker_image, model_folder
from sparkd.base.host.files import Files
from sparkd.base.lib.dockerd.reader import DockerError, DockerReader
from sparkd.base.lib.text import sanitize, size
from sparkd.base.plan.allowed import find_refusals
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.state.file import StateFile

PATH = "/inventory"
MOST_MODELS, MOST_IMAGES, MOST_FOLDERS = 100, 100, 400
DEPTH = 4
"""Depth of a model below models_dir: models--ORG--NAME/snapshots/REVISION has three parts."""
FRESH_SECONDS = 5.0
TRIES = 3
"""A slow read times out, and the page cache serves the retry."""
NOT_MODELS = ("blobs", "refs", ".no_exist")
"""Each folder of Hugging Face's cache has them: hundreds of files, to which those of the snapshots are links."""
Text = Annotated[str, Meta(max_length=1000)]
Bytes = Annotated[int, Meta(ge=0, lt=1 << 60)]


class Model(Struct, frozen=True):
    path: Text
    """Below models_dir."""
    size_bytes: Bytes
    fault: Text = ""
    """Empty where it is whole."""


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
    """Beginnings of images' names."""
    models_dir: Text
    models: Annotated[tuple[Model, ...], Meta(max_length=MOST_MODELS)]
    images: Annotated[tuple[Image, ...], Meta(max_length=MOST_IMAGES)]
    unread: Annotated[tuple[Text, ...], Meta(max_length=8)] = ()
    """What could not be read, or not all of it, with the reason."""


_DOCUMENT = StateFile("inventory", Inventory)
"""The codec of an answer. No file is written."""


def dump(inventory: Inventory) -> bytes:
    return _DOCUMENT.encode(inventory).encode()


def parse(body: bytes) -> Inventory:
    """Raises ValueError."""
    return _DOCUMENT.decode(body)


def read_inventory(settings: Settings, host: Host) -> Inventory:
    """Takes seconds on a slow disk. What is unreadable is named in it."""
    unread: list[str] = []
    models: list[Model] = []
    images: tuple[Image, ...] | None = ()
    memory_bytes = 0
    try:
        models.extend(islice(_models(host.files, settings.engine.models_dir), MOST_MODELS))
    except OSError as error:
        unread.append(f"models: {settings.engine.models_dir}: {error.strerror or error}")
    try:
        images = docker.query(host, _images)
    except DockerError as error:
        unread.append(sanitize(f"images: {error}"))
    if images is None:
        unread.append("images: docker is not running")
    images = images or ()
    try:
        memory_bytes = host.meminfo().total_bytes
    except (OSError, ValueError) as error:
        unread.append(sanitize(f"memory: {error}"))
    for name, count, most in (("models", len(models), MOST_MODELS), ("images", len(images), MOST_IMAGES)):
        if count >= most:
            unread.append(f"{name}: there are {most} or more")
    return Inventory(
        node=host.name(),
        memory_bytes=memory_bytes,
        follows=settings.cluster.follow_head,
        allow=settings.cluster.allow,
        permitted=permitted_images(settings, host),
        models_dir=settings.engine.models_dir,
        models=tuple(models),
        images=images,
        unread=tuple(unread),
    )


def _models(files: Files, root: str) -> Iterator[Model]:
    """Raises OSError where the folder itself is unreadable, and at last where there are too many below it."""
    waiting, count = [(name, 1) for name in files.names(root)], 0
    while waiting and count < MOST_FOLDERS:
        (path, depth), count = waiting.pop(0), count + 1
        with suppress(OSError):
            folder = model_folder.examine(files, f"{root}/{path}")
            if folder.config or folder.format:
                fault = f"{folder.flaws[0].name} {folder.flaws[0].wrong}" if folder.flaws else ""
                yield Model(path, folder.size_bytes, fault or ("" if folder.format else "it has no weights"))
            elif folder.there and depth < DEPTH:
                inside = (name for name in files.names(f"{root}/{path}") if name not in NOT_MODELS)
                waiting += [(f"{path}/{name}", depth + 1) for name in inside]
    if waiting:
        raise OSError(f"only the first {MOST_FOLDERS} names below it were looked at")


def _images(reader: DockerReader) -> tuple[Image, ...]:
    """Raises DockerError."""
    names = docker_image.read_names(reader)[:MOST_IMAGES]
    images = ((name, docker_image.image_identity(reader, name)) for name in names)
    return tuple(Image(name, identity) for name, identity in images if identity)


def find_missing(
    plan: LaunchPlan, need_bytes: Callable[[int], int], settings: Settings, here: Inventory, there: Inventory
) -> Iterator[tuple[str, str]]:
    """What keeps a worker from the plan, each with what to do about it on the head. Pure.

    `plan`, `settings` and `here` are the head's. `need_bytes` takes the memory of a node.
    """
    if not there.follows:
        yield "it has a configuration of its own", "there: follow_head = true under [cluster] of sparkd.toml"
        return
    path = plan.model_path.removeprefix(f"{here.models_dir}/")
    own, model = (next((model for model in node.models if model.path == path), None) for node in (here, there))
    own_ids, other_ids = (_identities(plan.image, node) for node in (here, there))
    present = {"models": model is not None, "images": bool(other_ids)}
    read_errors = {error.partition(":")[0]: error for error in there.unread}
    relevant_errors = {kind: error for kind, error in read_errors.items() if not present.get(kind)}
    for error in relevant_errors.values():
        yield f"not all of it is readable: {error}", "see the journal there"
    if path.startswith("/"):
        reason = f"whether it has {path} is not known: it lies outside of models_dir of the head"
        yield reason, "model.path of the recipe: a folder below engine.models_dir"
    elif "models" not in relevant_errors and (fault := _judge_model(own, model, there.models_dir)):
        yield f"the model {path} {fault}", f"sparkd model sync {quote(path)}"
    may_differ = settings.cluster.allow_image_difference
    if "images" not in relevant_errors and (fault := _judge_image(own_ids, other_ids, may_differ=may_differ)):
        yield f"image {plan.image} {fault}", f"sparkd image sync {quote(plan.image)}"
    if there.memory_bytes and need_bytes(there.memory_bytes) > there.memory_bytes:
        needed = size(need_bytes(there.memory_bytes))
        yield f"it has {size(there.memory_bytes)} of memory in all, {needed} needed", "use a smaller recipe"
    cluster = settings.cluster.model_copy(update={"allow": there.allow})
    judged = settings.model_copy(update={"cluster": cluster})
    # Its mounts are judged there alone: files of the head are kept in another folder, and symlinks are its own.
    spec = plan.container.model_copy(update={"volumes": (), "devices": ()})
    for refused in find_refusals(replace(plan, container=spec), judged, there.permitted):
        yield f"it permits no {refused}", "there, if that is meant: cluster.allow in sparkd.toml"


def _judge_model(own: Model | None, model: Model | None, models_dir: str) -> str:
    """What is wrong with the other node's, beside the head's own; empty where nothing is."""
    if model is None:
        return f"is not in its {models_dir}"
    if model.fault:
        return f"is not whole: {model.fault}"
    if own is not None and own.size_bytes != model.size_bytes:
        return f"has {size(model.size_bytes)} there, {size(own.size_bytes)} here"
    return ""


def _judge_image(own_ids: set[str], other_ids: set[str], *, may_differ: bool) -> str:
    if not other_ids:
        return "is not there"
    return "is another one there" if own_ids and own_ids != other_ids and not may_differ else ""


def _identities(image: str, node: Inventory) -> set[str]:
    names = {image, f"{image}:latest"}
    return {own.identity for own in node.images if own.name in names}


class Inventories(NamedTuple):
    here: Inventory | None
    there: Sequence[tuple[Peer, Inventory | str]]
    """The inventory of each other node; where one does not answer, the reason."""


def request_inventories(settings: Settings, host: Host) -> Inventories:
    """Request all on the head. Takes seconds."""
    import asyncio

    from sparkd.agent.cluster.client import PeerReader, Source, UnsignedError
    from sparkd.base.lib.http_client import HttpError
    from sparkd.base.lib.slow_document import ANSWER_SECONDS

    if not (peers := peers_of(settings, 0)):
        return Inventories(None, ())
    keys, port = KeyRing(host.files, settings.cluster.key_file).keys, settings.cluster.report_port
    own = settings.cluster.nodes[0]

    async def request(peer: Peer) -> Inventory | str:
        reader, reason = PeerReader(Source(*peer, port, own, 0, ANSWER_SECONDS + 2), keys, lambda: None), ""
        for _ in range(TRIES):
            try:
                return parse(await reader.fetch(PATH))
            except (HttpError, UnsignedError, ValueError) as error:
                reason = str(error)
        return reason

    async def request_all() -> list[Inventory | str]:
        return await asyncio.gather(*map(request, peers))

    return Inventories(read_inventory(settings, host), list(zip(peers, asyncio.run(request_all()), strict=True)))


def find_missing_elsewhere(node: NodeContext, nodes: Inventories) -> Iterator[str]:
    """One line for each thing that another node lacks for the head's plan."""
    for peer, there in nodes.there:
        if isinstance(there, str) or nodes.here is None:
            reason = f"rank {peer.rank} on {peer.address} does not say what it has: {sanitize(str(there))}"
            yield f"{reason} (there: systemctl start sparkd-worker, with this version of sparkd)"
            continue
        need = check_inputs(node).need.all_bytes
        for reason, hint in find_missing(node.plan, need, node.settings, nodes.here, there):
            yield f"rank {peer.rank} on {sanitize(there.node, 64)} ({peer.address}): {sanitize(reason)} ({hint})"
