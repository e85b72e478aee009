"""What a plan that another node wrote may do to this one: the judgement of `cluster.allow`.

Everything in a plan that has an effect outside of the container is judged here: its image, what it gets of the node's
files and devices, its privileges. A container without them has the node's network and GPU, and shared memory, like
every rank. Secrets never come from the other node: it names variables, and this node's settings name their files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from posixpath import normpath

from sparkd.base.config import Settings
from sparkd.base.config.types import WRITABLE
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.recipes.additions import VERBS
from sparkd.base.recipes.reach import HEAD_FILES, given_paths
from sparkd.base.recipes.schema import Container
from sparkd.base.vllm.container_paths import is_below

MOST_CACHES = 32
"""Each is a folder of its own on the node."""
URGENT_LIMITS = ("nice", "rtprio", "rttime")
"""Limits that let a program of the container run before the node's own."""


def find_refusals(
    plan: LaunchPlan, settings: Settings, images: Collection[str], resolve: Callable[[str], str] = str
) -> Iterator[str]:
    """What the plan wants beyond `cluster.allow` of `settings`, each with the key and what that permits.

    `images`: those that are permitted. `resolve` follows the node's symlinks.
    """
    allow, spec = settings.cluster.allow, plan.container
    if not any(is_permitted(plan.image, one) for one in images):
        permits = (
            f"permits {', '.join(allow.images)}" if allow.images else "is empty, and no recipe on this node has it"
        )
        yield f"image {plan.image}: cluster.allow.images {permits}"
    if not allow.privileged:
        urgent = (f"ulimit {name}" for name in URGENT_LIMITS if name in spec.limits)
        for one in (*(("a privileged container",) if spec.privileged else ()), *urgent):
            yield f"{one}: cluster.allow.privileged is false"
    if len(plan.caches) > MOST_CACHES:
        yield f"{len(plan.caches)} caches: at most {MOST_CACHES} are made for a head"
    yield from _refuse_paths(spec, settings, resolve)


def _refuse_paths(spec: Container, settings: Settings, resolve: Callable[[str], str]) -> Iterator[str]:
    allow = settings.cluster.allow
    models, mounts = settings.engine.models_dir, ", ".join(allow.mounts) or "none"
    read = [one for one in (models, HEAD_FILES, *allow.mounts) if not one.endswith(WRITABLE)]
    changed = [VERBS, *(one.removesuffix(WRITABLE) for one in allow.mounts if one.endswith(WRITABLE))]
    for _, path, written in given_paths(spec):
        folders = changed if written else [*read, *changed]
        # An administrator's symlink on the way to a permitted folder is meant; one in a folder that containers write to
        # may be theirs.
        real = [
            one if any(one != other and is_below(one, other) for other in changed) else resolve(one) for one in folders
        ]
        if not (_lies_in(path, folders) and _lies_in(resolve(path), real)):
            mode = "to read and write" if written else "to read"
            yield f"{path} {mode}: cluster.allow.mounts permits {mounts}, beside {models} to read"


def is_permitted(image: str, prefix: str) -> bool:
    """Whether the image's name begins with `prefix`, which ends where a part of the name does.

    Beside a digest docker ignores the tag, which may be of any version on the node: a permitted tag permits no digest.
    """
    rest = image.removeprefix(prefix)
    if not image.startswith(prefix) or (rest.startswith("@") and ":" in prefix.rpartition("/")[2]):
        return False
    return prefix[-1] in "/:@" or rest[:1] in ("", *"/:@")


def _lies_in(path: str, folders: Sequence[str]) -> bool:
    plain = f"/{normpath(path).lstrip('/')}"
    return any(is_below(plain, one) for one in folders)
