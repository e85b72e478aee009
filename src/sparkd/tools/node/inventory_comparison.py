"""What other nodes lack for the head's plan, by their inventories."""

from collections.abc import Callable, Iterator, Sequence
from shlex import quote
from typing import NamedTuple

from msgspec.structs import replace

from sparkd.agent.cluster.inventory import Inventory, Model
from sparkd.base.cluster.membership import NodeContext, Peer, check_inputs
from sparkd.base.config import Settings
from sparkd.base.lib.text import sanitize, size
from sparkd.base.plan.allowed import find_refusals
from sparkd.base.plan.model import LaunchPlan


class Inventories(NamedTuple):
    here: Inventory | None
    there: Sequence[tuple[Peer, Inventory | str]]
    """The inventory of each other node; where one does not answer, the reason."""


class Lack(NamedTuple):
    reason: str
    hint: str
    """What to do about it on the head."""


def find_missing_elsewhere(node: NodeContext, nodes: Inventories) -> Iterator[str]:
    """One line for each thing that another node lacks for the head's plan."""
    for peer, inventory in nodes.there:
        if isinstance(inventory, str) or nodes.here is None:
            reason = f"rank {peer.rank} on {peer.address} does not say what it has: {sanitize(str(inventory))}"
            yield f"{reason} (there: sudo systemctl start sparkd-worker, with this version of sparkd)"
            continue
        need_bytes = check_inputs(node).need.all_bytes
        for lack in find_missing(node.plan, need_bytes, node.settings, nodes.here, inventory):
            where = f"rank {peer.rank} on {sanitize(inventory.node, 64)} ({peer.address})"
            yield f"{where}: {sanitize(lack.reason)} ({lack.hint})"


def find_missing(
    plan: LaunchPlan, need_bytes: Callable[[int], int], settings: Settings, here: Inventory, there: Inventory
) -> Iterator[Lack]:
    """What a worker lacks for the plan. Pure.

    `plan`, `settings` and `here` are the head's, `there` is the worker's. `need_bytes` returns the plan's demand on a
    node with this much memory.
    """
    if not there.follows:
        yield Lack("it has a configuration of its own", "there: follow_head = true under [cluster] of sparkd.toml")
        return
    model_path = plan.model_path.removeprefix(f"{here.models_dir}/")
    head_model, model = _find_model(model_path, here), _find_model(model_path, there)
    head_images, images = _find_images(plan.image, here), _find_images(plan.image, there)
    # Where it has what the plan needs, what else was not read does not matter.
    is_there = {"models": model is not None, "images": bool(images)}
    unread = {kind: line for line in there.unread if not is_there.get(kind := line.partition(":")[0])}
    for line in unread.values():
        yield Lack(f"not all of it is readable: {line}", "see the journal there")
    if model_path.startswith("/"):
        reason = f"whether it has {model_path} is not known: it lies outside of models_dir of the head"
        yield Lack(reason, "model.path of the recipe: a folder below engine.models_dir")
    elif "models" not in unread and (fault := _judge_model(head_model, model, there.models_dir)):
        yield Lack(f"the model {model_path} {fault}", f"sparkd model sync {quote(model_path)}")
    may_differ = settings.cluster.allow_image_difference
    if "images" not in unread and (fault := _judge_image(head_images, images, may_differ=may_differ)):
        yield Lack(f"image {plan.image} {fault}", f"sparkd image sync {quote(plan.image)}")
    if there.memory_bytes and (needed := need_bytes(there.memory_bytes)) > there.memory_bytes:
        reason = f"it has {size(there.memory_bytes)} of memory in all, {size(needed)} needed"
        yield Lack(reason, "use a smaller recipe")
    for refused in _find_refusals(plan, settings, there):
        yield Lack(f"it permits no {refused}", "there, if that is meant: cluster.allow in sparkd.toml")


def _find_model(path: str, node: Inventory) -> Model | None:
    return next((model for model in node.models if model.path == path), None)


def _find_images(ref: str, node: Inventory) -> set[str]:
    """Identities of the images with this name."""
    return {image.identity for image in node.images if image.name in (ref, f"{ref}:latest")}


def _judge_model(head_model: Model | None, model: Model | None, models_dir: str) -> str:
    """What is wrong with a node's model, compared with the head's; empty where nothing is."""
    if model is None:
        return f"is not in its {models_dir}"
    if model.fault:
        return f"is not whole: {model.fault}"
    if head_model is not None and head_model.size_bytes != model.size_bytes:
        return f"has {size(model.size_bytes)} there, {size(head_model.size_bytes)} here"
    return ""


def _judge_image(head_images: set[str], images: set[str], *, may_differ: bool) -> str:
    if not images:
        return "is not there"
    return "is another one there" if head_images and head_images != images and not may_differ else ""


def _find_refusals(plan: LaunchPlan, settings: Settings, there: Inventory) -> Iterator[str]:
    """What the other node's `cluster.allow` forbids of the plan.

    Mounts are left for that node to judge: it keeps the head's files in another folder, and has its own symlinks.
    """
    cluster = settings.cluster.model_copy(update={"allow": there.allow})
    container = plan.container.model_copy(update={"volumes": (), "devices": ()})
    permitting = settings.model_copy(update={"cluster": cluster})
    return iter(find_refusals(replace(plan, container=container), permitting, there.permitted))
