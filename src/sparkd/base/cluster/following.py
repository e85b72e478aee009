"""A worker that follows its head: the head's recipe and shared settings as this node's own, judged before their use.

What `cluster.allow` refuses is never launched. Nothing here changes the machine: agent.daemon.head_follower
fetches and keeps.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace
from pydantic import ValidationError

from sparkd.base.cluster.membership import NodeContext, check_owners, find_place, follows_head, load_own_recipe
from sparkd.base.config import LoadedSettings, Settings, load_with_origins
from sparkd.base.host import Host, caches
from sparkd.base.host.files import Files
from sparkd.base.host.ownership import find_writable_parent
from sparkd.base.lib.errors import AddressAwaitedError, AwaitedError, ConfigError, HeadAwaitedError, HeadRefusedError
from sparkd.base.lib.text import validator_message
from sparkd.base.plan.allowed import find_refusals, is_permitted
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import LaunchPlan, Node
from sparkd.base.recipes.lookup import find_recipes, recipe_folders
from sparkd.base.recipes.schema import Recipe
from sparkd.base.state import shared_config
from sparkd.base.state.known_good import read_known_good
from sparkd.base.state.shared_config import Kept
from sparkd.base.vllm.args import API_KEY

AT_HEAD = "correct it on the head"
"""The hint where nothing that is changed on this node helps."""
MOST_NAMED = 3
"""The most refusals that one reason names."""


def read_kept(host: Host, place: Node) -> Kept:
    """The head's configuration, as this node has kept it. Raises HeadAwaitedError where there is none."""
    faults = list[str]()
    if (kept := shared_config.FILE.read(host.files, faults.append)) is None:
        hint = "sudo systemctl start sparkd-worker here, which fetches it, and sparkd-head there"
        missing = f"no configuration of {_name_head(place)} is on this node yet"
        raise HeadAwaitedError("; ".join((missing, *faults)), hint)
    return kept


def followed_context(kept: Kept, settings: Settings, host: Host, place: Node) -> NodeContext:
    """This worker with the recipe and settings of its head, judged by the worker's own `cluster.allow`.

    `settings`: as configured on this node. Raises HeadRefusedError where the head wants what they do not permit or what
    can't be, AwaitedError where this node lacks something that may come.
    """
    recipe, shared, plan = _make_followed_plan(kept, settings, host, place)
    _require_secrets(shared, place)
    prefixes = permitted_image_prefixes(settings, host)
    _refuse_forbidden(plan, settings, prefixes, host.files, place)
    check_owners(plan.named_files)
    image_id = _find_proven_image(kept.config.image_id, prefixes, host)
    head_caches = tuple(replace(cache, name=f"{caches.HEAD}/{cache.name}") for cache in plan.caches)
    return NodeContext(replace(plan, image_id=image_id, caches=head_caches), shared, recipe, settings, followed=kept)


def _make_followed_plan(kept: Kept, settings: Settings, host: Host, place: Node) -> tuple[Recipe, Settings, LaunchPlan]:
    """The head's recipe as it is used here, this node's settings with the head's shared ones, and their plan.

    None of it is judged yet. Raises HeadRefusedError where no plan can be made of them, and AwaitedError.
    """
    try:
        shared = followed_settings(kept, settings, place)
        recipe = kept.config.recipe_here(_load_recipe_here(kept.config.recipe.name, host))
        if not settings.cluster.allow.privileged:
            recipe = _forbid_new_privileges(recipe)
        return recipe, shared, make_plan(recipe, shared, find_place(shared, host))
    except AwaitedError:  # HeadRefusedError is one
        raise
    except ConfigError as error:
        raise HeadRefusedError(f"what {_name_head(place)} wants can't be: {error.reason}", AT_HEAD) from None


def _forbid_new_privileges(recipe: Recipe) -> Recipe:
    """The recipe, with sparkd's default in place of `no_new_privileges: false`.

    It is not refused for that: every entry of known good plans that an earlier version wrote has false.
    """
    if recipe.container.no_new_privileges is not False:
        return recipe
    container = recipe.container.model_copy(update={"no_new_privileges": None})
    return recipe.model_copy(update={"container": container})


def _require_secrets(shared: Settings, place: Node) -> None:
    """Raise HeadRefusedError where the head wants a secret of which this node names no file."""
    # The head alone serves the endpoint, so a worker needs no file of its key.
    for name, file in shared.engine.secrets.items():
        if not file and name != API_KEY:
            reason = f"{_name_head(place)} wants the secret {name}, and engine.secrets of this node names no file of it"
            raise HeadRefusedError(reason, f'{name} = "/etc/sparkd/..." under [engine.secrets] of this node')


def _refuse_forbidden(
    plan: LaunchPlan, settings: Settings, image_prefixes: Collection[str], files: Files, place: Node
) -> None:
    """Raise HeadRefusedError where the plan wants what `cluster.allow` of `settings` does not permit."""
    resolve, describe_changeable = partial(_resolve, files), partial(_describe_changeable, files)
    refusals = list(find_refusals(plan, settings, image_prefixes, resolve, describe_changeable))
    if refusals:
        hint = "change the recipe on the head, or, if that is meant, cluster.allow in /etc/sparkd/sparkd.toml here"
        more = f"; and {len(refusals) - MOST_NAMED} more" if refusals[MOST_NAMED:] else ""
        raise HeadRefusedError(f"{_name_head(place)} wants {'; and '.join(refusals[:MOST_NAMED])}{more}", hint)


def followed_settings(kept: Kept, settings: Settings, place: Node) -> Settings:
    """This node's settings with the head's shared ones.

    Raises HeadRefusedError where the head's values contradict this node's, and where the head's cluster.nodes lack this
    node, or begin with another head.
    """
    nodes, head = kept.config.cluster.nodes, _name_head(place)
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


def load_effective(env: Mapping[str, str], host: Host) -> LoadedSettings:
    """The settings with their origins. Where this node follows its head, the head's values are in them, not judged yet.

    Raises ConfigError as `load_settings`, HeadRefusedError.
    """
    own = load_with_origins(env, Path(host.files.root))
    try:
        place = find_place(own.settings, host)
    except AddressAwaitedError:
        return own
    if not follows_head(own.settings, place) or (kept := shared_config.FILE.read(host.files)) is None:
        return own
    shared = followed_settings(kept, own.settings, place)
    own_origins = {key: origin for key, origin in own.origins.items() if not shared_config.is_shared(key)}
    head_origins = dict.fromkeys(_shared_keys(shared), f"head {place.head_address}")
    return LoadedSettings(shared, own_origins | head_origins, own.files)


def _shared_keys(settings: Settings) -> Iterator[str]:
    """Dotted keys that the head decides, with those of each mapping's entries, such as `engine.env.NAME`."""
    for section, values in settings:
        for name, value in values:
            key = f"{section}.{name}"
            if shared_config.is_shared(key):
                yield key
                yield from (f"{key}.{inner}" for inner in value) if isinstance(value, Mapping) else ()


def permitted_image_prefixes(settings: Settings, host: Host) -> tuple[str, ...]:
    """Beginnings of image names: those of cluster.allow.images, or if there are none, the images of own recipes."""
    if settings.cluster.allow.images:
        return settings.cluster.allow.images
    files = find_recipes(recipe_folders(Path(host.files.root))).values()
    own_recipes = (_load_recipe_here(str(file), host) for file in files)
    return tuple(sorted({recipe.image.ref for recipe in own_recipes if recipe}))


def _load_recipe_here(name: str, host: Host) -> Recipe | None:
    """This node's recipe of a name; None without a valid one that root alone may change."""
    with suppress(ConfigError):
        return load_own_recipe(name, host).recipe
    return None


def _find_proven_image(image_id: str, prefixes: tuple[str, ...], host: Host) -> str:
    """The id, if this node has served with it under a permitted name; else empty, since it may be any image's."""
    if not image_id:
        return ""
    names = [plan.image for plan in read_known_good(host.files) if plan.image_id == image_id]
    return image_id if any(is_permitted(name, prefix) for name in names for prefix in prefixes) else ""


def _resolve(files: Files, path: str) -> str:
    """The path without symlinks; empty where that can't be found."""
    with suppress(OSError):
        return files.resolved(path)
    return ""


def _describe_changeable(files: Files, path: str) -> str:
    """The folder of `find_writable_parent`; where the mounts can't be read, the path and a remark, which refuses it."""
    try:
        return find_writable_parent(files, path)
    except OSError:
        return f"{path}, as far as is known"


def _name_head(place: Node) -> str:
    return f"the head {place.head_address}"
