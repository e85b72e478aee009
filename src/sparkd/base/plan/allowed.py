"""What a plan that another node wrote may do to this one: the judgement of `cluster.allow`.

Everything in a plan that has an effect outside of the container is judged here: its image, what it gets of the node's
files and devices, its privileges. A container without them has the node's network and GPU, and shared memory, like
every rank. Secrets never come from the other node: it names variables, and this node's settings name their files.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from posixpath import normpath

from sparkd.base.config import Settings
from sparkd.base.config.types import WRITABLE
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.recipes.additions import VERBS
from sparkd.base.recipes.reach import DEVICES, HEAD_FILES, given_paths
from sparkd.base.recipes.schema import Container
from sparkd.base.vllm.container_paths import is_below

MOST_CACHES = 32
"""Each is a folder of its own on the node."""
NO_DEVICES = ("/dev/shm", "/dev/mqueue", "/dev/hugepages")  # noqa: S108  # permits less
"""Folders of memory below /dev, where containers, and in the first each user, may make links."""
URGENT_LIMITS = ("nice", "rtprio", "rttime")
"""Limits that let a program of the container run before the node's own."""


def find_refusals(
    plan: LaunchPlan,
    settings: Settings,
    image_prefixes: Collection[str],
    resolve: Callable[[str], str] = str,
    find_writable_parent: Callable[[str], str] = str,
) -> Iterator[str]:
    """What the plan wants beyond `cluster.allow` of `settings`, each with the key and what that permits.

    `image_prefixes`: beginnings of permitted names. `resolve` follows the node's symlinks. `find_writable_parent`
    returns a folder on the path that users other than root may change, or nothing: docker follows the path again later.
    """
    allow, spec = settings.cluster.allow, plan.container
    if not any(is_permitted(plan.image, prefix) for prefix in image_prefixes):
        permits = (
            f"permits {', '.join(allow.images)}" if allow.images else "is empty, and no recipe on this node has it"
        )
        yield f"image {plan.image}: cluster.allow.images {permits}"
    if not allow.privileged:
        privileges = ["a privileged container"] if spec.privileged else []
        privileges += [f"ulimit {name}" for name in URGENT_LIMITS if name in spec.limits]
        yield from (f"{privilege}: cluster.allow.privileged is false" for privilege in privileges)
    if len(plan.caches) > MOST_CACHES:
        yield f"{len(plan.caches)} caches: at most {MOST_CACHES} are made for a head"
    yield from _refuse_paths(spec, settings, resolve, find_writable_parent)


def _refuse_paths(
    spec: Container, settings: Settings, resolve: Callable[[str], str], find_writable_parent: Callable[[str], str]
) -> Iterator[str]:
    models, mounts = settings.engine.models_dir, ", ".join(settings.cluster.allow.mounts) or "none"
    for key, path, written in given_paths(spec):
        folders = _permitted_folders(key, settings, written=written)
        plain, real = f"/{normpath(path).lstrip('/')}", resolve(path)
        if not (_lies_in(plain, folders) and _lies_in(real, [*filter(None, map(resolve, folders))])):
            device = f"as a device (only a path below /dev that ends with {WRITABLE}, not {', '.join(NO_DEVICES)})"
            mode = device if key == DEVICES else "to read and write" if written else "to read"
            readable = f"{models} and what the head sends (files of up to 1 MiB) to read"
            yield f"{path} {mode}: cluster.allow.mounts permits {mounts}, beside {readable}"
        elif outer := _find_writable_above(plain, real, settings, resolve):
            yield f"{path}: containers may write to {outer}, so nothing in it is permitted, only {outer} itself"
        elif plain not in folders and not is_below(plain, HEAD_FILES) and (folder := find_writable_parent(plain)):
            reason = f"others than root may change what is in {folder}"
            yield f'{path}: {reason}; to permit it: cluster.allow.mounts = [..., "{path}"] on this node'


def _permitted_folders(key: str, settings: Settings, *, written: bool) -> list[str]:
    """Folders in which a path of the option `key` may lie. VERBS is permitted as a device, never mounted writable.

    Of a folder docker gives every device in it: as a node, which a share's server may make, and by a link into /dev
    (DevicesFromPath in moby's daemon/pkg/oci), which a container that writes there may make.
    """
    writable = _list_mounts(settings, writable=True)
    if key == DEVICES:
        return [VERBS, *(path for path in writable if is_below(path, "/dev") and not _lies_in(path, NO_DEVICES))]
    read_only = (settings.engine.models_dir, HEAD_FILES, VERBS, *_list_mounts(settings, writable=False))
    return [*writable, *(() if written else read_only)]


def _list_mounts(settings: Settings, *, writable: bool) -> list[str]:
    mounts = settings.cluster.allow.mounts
    return [mount.removesuffix(WRITABLE) for mount in mounts if mount.endswith(WRITABLE) == writable]


def _find_writable_above(plain: str, real: str, settings: Settings, resolve: Callable[[str], str]) -> str:
    """The folder that contains the path and that containers may write to; empty where there is none."""
    for folder in _list_mounts(settings, writable=True):
        if _is_inside(plain, folder) or _is_inside(real, resolve(folder) or folder):
            return folder
    return ""


def is_permitted(image: str, prefix: str) -> bool:
    """Whether the image's name begins with `prefix`, which ends where a part of the name does.

    Beside a digest docker ignores the tag, which may be of any version on the node: a permitted tag permits no digest.
    """
    rest = image.removeprefix(prefix)
    if not image.startswith(prefix) or (rest.startswith("@") and ":" in prefix.rpartition("/")[2]):
        return False
    return prefix[-1] in "/:@" or rest[:1] in ("", *"/:@")


def _lies_in(path: str, folders: Sequence[str]) -> bool:
    return any(is_below(path, folder) for folder in folders)


def _is_inside(path: str, folder: str) -> bool:
    return path != folder and is_below(path, folder)
