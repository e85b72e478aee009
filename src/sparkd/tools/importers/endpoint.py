"""Completes an imported recipe with what leads to an endpoint: its model and drafts, its image, and its files."""

import json
import os
import re
from collections.abc import Mapping

from sparkd.base.config.settings import MAX_NODES
from sparkd.base.recipes.schema import Recipe
from sparkd.base.recipes.types import REPO, REVISION
from sparkd.base.vllm.container_paths import FILE_FLAGS, RESERVED_TARGETS, is_below, kept_caches
from sparkd.base.vllm.flag import parse_json
from sparkd.base.vllm.lint.values import is_for_x86
from sparkd.tools.importers import eugr_image, image_steps
from sparkd.tools.importers.bundle import Bundle, Place
from sparkd.tools.importers.source import Source

_MODELS = RESERVED_TARGETS[0]
"""The container's folder to which sparkd mounts the node's models."""
DRAFT = "speculative-config"
SNAPSHOT = re.compile(
    r"(?a)/(?:[^/]+/)*hub/models--([^\W_][\w.-]{0,95}?)--([^\W_][\w.-]{0,95})/snapshots/([0-9a-f]{7,40})/?"
)
"""The folder of a model in the hub's cache: organisation, name and commit. The hub takes names of 96 letters."""


def complete(source: Source, recipe: Recipe, place: Place) -> Bundle:
    """Complete the recipe with its models, mods and image. What stays open becomes a note."""
    bundle = Bundle(recipe, place, recipe.image.ref)
    if recipe.nodes.min > MAX_NODES:
        source.need((), f"it needs {recipe.nodes.min} nodes, and with sparkd at most {MAX_NODES} serve together")
    if is_for_x86(recipe.image.ref):
        source.need(("container",), f"container: {recipe.image.ref}: is for x86_64, and a Spark is arm64: name another")
    bundle.container = source.container
    bundle.is_here = source.has_local_image or place.find_image(bundle.base) is not None
    eugr_image.set_image(source, bundle)
    _set_model(source, bundle)
    _set_drafts(source, bundle)
    image_steps.set_build(source, bundle)
    _note_templates(source, bundle)
    _name_own_folder(source, bundle)
    _note_hub_caches(source, bundle.recipe)
    return bundle


def _set_model(source: Source, bundle: Bundle) -> None:
    """Set the model's path on the node, repository and revision. Notes where its files come from, if not the hub."""
    if snapshot := SNAPSHOT.fullmatch(bundle.recipe.model.path):
        bundle.update("model", path=snapshot[2], repo=f"{snapshot[1]}/{snapshot[2]}", revision=snapshot[3])
    elif REVISION.fullmatch(revision := str(bundle.recipe.args.get("revision", ""))):
        bundle.update("model", revision=revision)
    model, volumes = bundle.recipe.model, bundle.recipe.container.volumes
    for volume in volumes:
        path = volume.source.rstrip("/") + model.path[len(volume.target) :]
        if is_below(model.path, volume.target) and path:  # sparkd mounts a model where it is on the node
            bundle.update("model", path=path)
            bundle.update("container", volumes=tuple(mount for mount in volumes if mount.target != path))
            break
    path = bundle.recipe.model.path
    # os.path: false also where this user can't look, as in root's home, of which a container's path may be.
    if not bundle.recipe.model.repo and path.startswith("/") and os.path.isdir(path):  # noqa: PTH112
        source.note(("model",), f"model: no repository is named: it is read from {path}")
    elif not bundle.recipe.model.repo:
        place = path if path.startswith("/") else f"{path} below engine.models_dir"
        source.need(("model",), f"model: no repository is named: put it into {place}")


def _set_drafts(source: Source, bundle: Bundle) -> None:
    """Take the hub's models that speculative decoding names: they are read below sparkd's mount of the models."""
    args, model = dict(bundle.recipe.args), bundle.recipe.model
    for flag in (DRAFT, f"{DRAFT}.model"):
        config = parse_json(str(args.get(DRAFT))) if flag == DRAFT else {"model": args.get(flag)}
        if not isinstance(config, dict):
            continue
        draft, revision = _read_draft(config)
        name = draft.rpartition("/")[2]
        if not draft:
            continue
        if model.path.startswith("/") or (name == model.path and draft != model.repo):
            source.need(("command",), f"draft model {draft}: it is not pulled: mount it, and name its folder in {flag}")
            continue
        if draft != model.repo:
            bundle.drafts[draft] = revision
        config["model"] = f"{_MODELS}/{name}"
        args[flag] = json.dumps(config) if flag == DRAFT else config["model"]
    bundle.recipe = bundle.recipe.model_copy(update={"args": args})


def _read_draft(config: Mapping[str, object]) -> tuple[str, str]:
    """The draft's name on the hub and its revision, which may be empty. Both are empty for a model of no hub."""
    draft, revision = str(config.get("model")), str(config.get("revision") or "")
    if snapshot := SNAPSHOT.fullmatch(draft):
        draft, revision = f"{snapshot[1]}/{snapshot[2]}", snapshot[3]
    is_of_hub = REPO.fullmatch(draft) and (not revision or REVISION.fullmatch(revision))
    return (draft, revision) if is_of_hub else ("", "")


def _note_templates(source: Source, bundle: Bundle) -> None:
    """Note templates that a flag names without a folder, and that nothing makes. A build's mods may make them."""
    if bundle.recipe.image.ref != bundle.base:
        return
    for flag in FILE_FLAGS:
        name = str(bundle.recipe.args.get(flag))
        if name.endswith(".jinja") and "/" not in name:
            source.need(("command",), f"args.{flag}: {name}: nothing makes this file: mount it, and name its path")


def _name_own_folder(source: Source, bundle: Bundle) -> None:
    """Name the model's folder in flags that have its repository. Another repository, which nothing pulls, is noted."""
    model, args = bundle.recipe.model, dict(bundle.recipe.args)
    for flag in ("tokenizer", "hf-config-path"):
        repo = str(args.get(flag, ""))
        if not REPO.fullmatch(repo):
            continue
        folder = f"{_MODELS}/{repo.rpartition('/')[2]}"
        if repo == model.repo and folder == f"{_MODELS}/{model.path}":
            args[flag] = folder
        else:
            source.need(("command",), f"args.{flag}: {repo}: the engine would fetch it: pull it, and name {folder}")
    bundle.recipe = bundle.recipe.model_copy(update={"args": args})


def _note_hub_caches(source: Source, recipe: Recipe) -> None:
    """Note paths in the other tool's hub cache, except compile caches there: sparkd keeps these at the same place."""
    env = {name: text for name, text in recipe.env.items() if text}
    kept = kept_caches(recipe.caches, env, (), gpu=True).values()
    for key, value in (*((f"args.{key}", value) for key, value in recipe.args.items()), *env.items()):
        is_in_cache = isinstance(value, str) and any(f"{folder}/" in value for folder in image_steps.HUB_CACHES)
        if is_in_cache and not any(is_below(target, str(value)) for target in kept):
            text = f"{key}: {str(value)[:120]}: sparkd mounts nothing there: add a volume, or change it"
            # A compiler that writes to such a folder makes it.
            is_made = key in env and re.search("CACHE|EXTENSIONS|WORKSPACE", key)
            source.note(("command",), text, is_missing=not is_made)
