"""A worker that follows its head: the head's recipe and shared settings as this node's own, judged before their use.

What `cluster.allow` refuses is never launched. Nothing here changes the machine: agent.daemon.head_config
fetches and keeps.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace
from pydantic import ValidationError

from sparkd.base.cluster.membership import NodeContext, check_owners, find_place, follows_head, load_own_recipe
from sparkd.base.config import Loaded, Settings, load_with_origins
from sparkd.base.host import Host, caches
from sparkd.base.host.files import Files
from sparkd.base.host.ownership import find_writable_parent
from sparkd.base.lib.errors import AddressAwaitedError, AwaitedError, ConfigError, HeadAwaitedError, HeadRefusedError
from sparkd.base.lib.text import validator_message
from sparkd.base.plan.allowed import find_refusals, is_permitted
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import Node
from sparkd.base.recipes.lookup import find_recipes, recipe_folders
from sparkd.base.recipes.schema import Recipe
from sparkd.base.state.known_good import read_known_good
from sparkd.base.state.shared_config import FILE, Kept, is_shared
from sparkd.base.vllm.args import API_KEY

AT_HEAD = "correct it on the head"
MOST_NAMED = 3
"""The most refusals that one reason names."""


def read_kept(host: Host, place: Node) -> Kept:
    """The head's configuration, as this node has kept it. Raises HeadAwaitedError where there is none."""
    faults = list[str]()
    if (kept := FILE.read(host.files, faults.append)) is None:
        hint = "sudo systemctl start sparkd-worker here, which fetches it, and sparkd-head there"
        missing = f"no configuration of the head {place.head_address} is on this node yet"
        raise HeadAwaitedError("; ".join((missing, *faults)), hint)
    return kept


def followed_context(kept: Kept, settings: Settings, host: Host, place: Node) -> NodeContext:
    """This worker with the recipe and settings of its head, judged by the worker's own `cluster.allow`.

    Raises HeadRefusedError where they are not allowed, AwaitedError where this node lacks something that may come.
    """
    head = f"the head {place.head_address}"
    try:
        shared = followed_settings(kept, settings, place)
        recipe = kept.config.recipe_here(_load_recipe_here(kept.config.recipe.name, host))
        if not settings.cluster.allow.privileged and recipe.container.no_new_privileges is False:
            # Not refused: every entry of known good plans that an earlier version wrote has false.
            spec = recipe.container.model_copy(update={"no_new_privileges": None})
            recipe = recipe.model_copy(update={"container": spec})
        plan = make_plan(recipe, shared, find_place(shared, host))
    except AwaitedError:
        raise
    except ConfigError as error:
        raise HeadRefusedError(f"what {head} wants can't be: {error.reason}", AT_HEAD) from None
    # The head alone serves the endpoint, so a worker needs no file of its key.
    missing = [name for name, file in shared.engine.secrets.items() if not file and name != API_KEY]
    if missing:
        reason = f"{head} wants the secret {missing[0]}, and engine.secrets of this node names no file of it"
        raise HeadRefusedError(reason, f'{missing[0]} = "/etc/sparkd/..." under [engine.secrets] of this node')
    images = permitted_images(settings, host)
    path_readers = (partial(_resolve, host.files), partial(_describe_changeable, host.files))
    refusals = list(find_refusals(plan, settings, images, *path_readers))
    if refusals:
        hint = "change the recipe on the head, or, if that is meant, cluster.allow in /etc/sparkd/sparkd.toml here"
        more = f"; and {len(refusals) - MOST_NAMED} more" if refusals[MOST_NAMED:] else ""
        raise HeadRefusedError(f"{head} wants {'; and '.join(refusals[:MOST_NAMED])}{more}", hint)
    check_owners(plan.named_files)
    image_id = _find_proven_image(kept.config.image_id, images, host)
    head_caches = tuple(replace(cache, name=f"{caches.HEAD}/{cache.name}") for cache in plan.caches)
    return NodeContext(replace(plan, image_id=image_id, caches=head_caches), shared, recipe, settings, followed=kept)


def followed_settings(kept: Kept, settings: Settings, place: Node) -> Settings:
    """This node's settings with the head's shared ones.

    Raises HeadRefusedError, also where the head's cluster.nodes lack this node, or begin with another head.
    """
    nodes, head = kept.config.cluster.nodes, f"the head {place.head_address}"
    if nodes[:1] != (place.head_address,) or place.address not in nodes[1:]:
        named = f"cluster.nodes of {head} are {', '.join(nodes) or 'empty'}"
        raise HeadRefusedError(f"{named}, and {place.address} is no worker of it there", AT_HEAD)
    try:
        return kept.config.apply_to(settings)
    except ValidationError as error:
        text = "; ".join(validator_message(fault["msg"]) for fault in error.errors())
    except ValueError as error:
        text = str(error)
    raise HeadRefusedError(f"what {head} wants can't be: {text}", AT_HEAD)


def load_effective(env: Mapping[str, str], host: Host) -> Loaded:
    """The settings with their origins. Where this node follows its head, the head's values are in them, not judged yet.

    Raises ConfigError as `load_settings`, HeadRefusedError.
    """
    loaded = load_with_origins(env, Path(host.files.root))
    place = None
    with suppress(AddressAwaitedError):
        place = find_place(loaded.settings, host)
    kept = FILE.read(host.files) if place and follows_head(loaded.settings, place) else None
    if place is None or kept is None:
        return loaded
    shared, origin_name = followed_settings(kept, loaded.settings, place), f"head {place.head_address}"
    origins = {key: origin for key, origin in loaded.origins.items() if not is_shared(key)}
    for section, values in shared:
        for name, value in values:
            key = f"{section}.{name}"
            if is_shared(key):
                origins |= {key: origin_name} | (
                    {f"{key}.{inner}": origin_name for inner in value} if isinstance(value, Mapping) else {}
                )
    return Loaded(shared, origins, loaded.files)


def permitted_images(settings: Settings, host: Host) -> tuple[str, ...]:
    """Beginnings of names: cluster.allow.images, or what the recipes on this node name."""
    if settings.cluster.allow.images:
        return settings.cluster.allow.images
    own_recipes = (_load_recipe_here(name, host) for name in find_recipes(recipe_folders(Path(host.files.root))))
    return tuple(sorted({recipe.image.ref for recipe in own_recipes if recipe}))


def _load_recipe_here(name: str, host: Host) -> Recipe | None:
    """This node's recipe of a name; None without a valid one that root alone may change."""
    with suppress(ConfigError):
        return load_own_recipe(name, host)
    return None


def _find_proven_image(image_id: str, permitted: tuple[str, ...], host: Host) -> str:
    """The id where this node has served with it under a permitted name, else empty: any image may have the id."""
    if not image_id:
        return ""
    names = [plan.image for plan in read_known_good(host.files) if plan.image_id == image_id]
    return image_id if any(is_permitted(name, beginning) for name in names for beginning in permitted) else ""


def _resolve(files: Files, path: str) -> str:
    """The path without symlinks; empty where that can't be found."""
    with suppress(OSError):
        return files.resolved(path)
    return ""


def _describe_changeable(files: Files, path: str) -> str:
    """The folder of `find_writable_parent`, or, where the mounts can't be read, words about that."""
    try:
        return find_writable_parent(files, path)
    except OSError:
        return f"{path}, as far as is known"
