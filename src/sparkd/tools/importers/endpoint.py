"""Completes an imported recipe: its models, its mods as files to write beside it, and how its image is made."""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from pydantic import ValidationError

from sparkd.base.config.settings import MAX_NODES
from sparkd.base.host.docker_image import digest_of
from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.text import read_file, sanitize, size
from sparkd.base.recipes.image import MOST_BYTES, MOST_FILES, MOST_STEPS, Build, Step
from sparkd.base.recipes.schema import Recipe, Volume
from sparkd.base.recipes.types import REPO, REVISION
from sparkd.base.vllm.container_paths import FILE_FLAGS, RESERVED_TARGETS, is_below, kept_caches
from sparkd.base.vllm.flag import parse_json
from sparkd.base.vllm.lint.values import is_for_x86
from sparkd.base.vllm.releases import name_release
from sparkd.tools.importers import mods
from sparkd.tools.importers.bundle import Bundle, Place, is_published
from sparkd.tools.importers.options import redact
from sparkd.tools.importers.source import Source, as_mapping, shorten
from sparkd.tools.importers.sparkrun import TABLES
from sparkd.tools.importers.templates import NAMED

MODELS = RESERVED_TARGETS[0]
DRAFT = "speculative-config"
EUGR = "https://github.com/eugr/spark-vllm-docker"
_CHECKOUT = EUGR.rpartition("/")[2]
_BUILD_TOOL = "build-and-copy.sh"
_USUAL, _B12X = "eugr/spark-vllm:latest", "eugr/spark-vllm-b12x:latest"
_PULLED = {"vllm-node": _USUAL, "vllm-node-tf5": _USUAL, "vllm-node-b12x": _B12X}
"""Published image by the tool's name for it. The tool pulls it if all arguments are of _PULL_FLAGS (028b7ce, 2026)."""
_BUILT_NAMES = ("vllm-node", "sparkrun-eugr-vllm")
"""Beginnings of the names of images that this tool builds, also for sparkrun."""
_EXP_B12X = {"--exp-b12x", "--experimental-b12x"}
_PULL_FLAGS = {"--tf5", "--pre-tf", "--pre-transformers", *_EXP_B12X}
_IN_HUB_CACHE = re.compile(
    r"(?:/root/\.cache|/cache)/huggingface/hub/models--([A-Za-z0-9][\w.-]*?)--([A-Za-z0-9][\w.-]*)"
    r"/snapshots/([0-9a-f]{7,40})/?",
    re.ASCII,
)
_OTHER_MOUNTS = ("/root/.cache/huggingface", "/cache/huggingface")
"""Folders of a container to which eugr's tool and sparkrun mount the hub's cache of their node."""
MOST_MODS = 24
_CUDA_TORCH = """\
python3 -c 'from importlib.util import find_spec; from runpy import run_path
torch = find_spec("torch"); assert torch, "torch is missing"
assert run_path(torch.origin.replace("__init__", "version"))["cuda"], "torch is built without CUDA"'
"""
"""Check of a built image: a build that resolves torch from Python's package index gets its wheel for the CPU."""


def complete(source: Source, recipe: Recipe, place: Place) -> Bundle:
    """Complete the recipe with its models, mods and image. What stays open becomes a note."""
    bundle, recipe_file = Bundle(recipe, place, recipe.image.ref), source.beside
    if recipe.nodes.min > MAX_NODES:
        source.need((), f"it needs {recipe.nodes.min} nodes, and with sparkd at most {MAX_NODES} serve together")
    if is_for_x86(recipe.image.ref):
        source.need(("container",), f"container: {recipe.image.ref}: is for x86_64, and a Spark is arm64: name another")
    bundle.container = source.container
    bundle.is_here = source.is_running_here or place.find_image(bundle.base) is not None
    bundle.build = _build_command(source, bundle, recipe_file)
    if bundle.build:
        bundle.update("image", build=bundle.build, asserts=(_CUDA_TORCH,))
    _find_model(source, bundle)
    _find_drafts(source, bundle)
    _take_mods(source, bundle, recipe_file)
    _note_files(source, bundle)
    _note_other_mounts(source, bundle.recipe)
    return bundle


def _build_command(source: Source, bundle: Bundle, recipe_file: Path | None) -> str:
    """The command that builds the image; empty where a registry has it, and where no command is known.

    Where the tool would pull the image under another name, the bundle gets that name.
    """
    image = bundle.base
    arguments = [str(word) for word in _list_entries(source, "build_args")]
    if source.is_running_here or (is_published(image) and not arguments):
        return ""
    if not arguments and not image.startswith(_BUILT_NAMES) and source.document.data.get("builder") != "eugr":
        if not bundle.is_here:
            source.need(("container",), f"container: {image}: no registry has it, nor is a build known: build it first")
        return ""
    checkouts = [folder for folder in mods.trees(recipe_file) if (folder / _BUILD_TOOL).is_file()]
    if not bundle.is_here and (pulled := _find_pulled_image(image, arguments, checkouts)):
        source.note(("container",), f"container: {image}: {pulled}, which its tool gives this name: a tag that moves")
        bundle.base, bundle.is_here = pulled, bundle.place.find_image(pulled) is not None
        bundle.update("image", ref=pulled)
        return ""
    checkout, clone = (
        (str(checkouts[0]), "") if checkouts else (_CHECKOUT, f"[ -d {_CHECKOUT} ] || git clone {EUGR} && ")
    )
    build = shlex.join([f"./{_BUILD_TOOL}", "-t", image, *arguments])
    command = f"{clone}(cd {shlex.quote(checkout)} && {build})"
    if not command.isprintable():
        source.need(("build_args",), "build_args: left out: not plain words")
        return ""
    return command


def _list_entries(source: Source, key: str) -> list[object]:
    """Entries of the key, also below `runtime_config`, to which sparkrun moves keys that it does not know."""
    inner = as_mapping(source.document.data.get("runtime_config")).get(key)
    return [*source.items(key), *(inner if isinstance(inner, list) else [])]


def _find_pulled_image(name: str, arguments: list[str], checkouts: list[Path]) -> str:
    """The image that the tool pulls; empty where it builds.

    A copy of the tool beside the recipe may be older, or a fork: then it must name the same image.
    """
    image = _PULLED.get(name, "") if _EXP_B12X.isdisjoint(arguments) else _B12X
    with suppress(OSError, ConfigError):
        is_named = not checkouts or f'"{image}"' in read_file(checkouts[0] / _BUILD_TOOL)
        return image if is_named and _PULL_FLAGS.issuperset(arguments) else ""
    return ""


def _find_model(source: Source, bundle: Bundle) -> None:
    """Set the model's path on the node, repository and revision. Notes where its files come from, if not the hub."""
    if cached := _IN_HUB_CACHE.fullmatch(bundle.recipe.model.path):
        bundle.update("model", path=cached[2], repo=f"{cached[1]}/{cached[2]}", revision=cached[3])
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
    if not bundle.recipe.model.repo and path.startswith("/") and Path(path).is_dir():
        source.note(("model",), f"model: no repository is named: it is read from {path}")
    elif not bundle.recipe.model.repo:
        place = path if path.startswith("/") else f"{path} below engine.models_dir"
        source.need(("model",), f"model: no repository is named: put it into {place}")


def _find_drafts(source: Source, bundle: Bundle) -> None:
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
        config["model"] = f"{MODELS}/{name}"
        args[flag] = json.dumps(config) if flag == DRAFT else config["model"]
    bundle.recipe = bundle.recipe.model_copy(update={"args": args})


def _read_draft(config: Mapping[str, object]) -> tuple[str, str]:
    """The draft's name on the hub and its revision, which may be empty. Both are empty for a model of no hub."""
    draft, revision = str(config.get("model")), str(config.get("revision") or "")
    if cached := _IN_HUB_CACHE.fullmatch(draft):
        draft, revision = f"{cached[1]}/{cached[2]}", cached[3]
    good = REPO.fullmatch(draft) and (not revision or REVISION.fullmatch(revision))
    return (draft, revision) if good else ("", "")


def _find_mods(source: Source, bundle: Bundle, recipe_file: Path | None) -> Iterable[mods.Mod]:
    references = _list_entries(source, "mods")
    taken: dict[str, mods.Mod] = {}
    for reference in references[:MOST_MODS]:
        try:
            mod = mods.find_mod(reference, recipe_file, bundle.place.mods)
            if taken.get(mod.name, mod).files != mod.files:
                raise mods.ModError("another one of that name is taken")
            taken[mod.name] = mod
        except mods.ModError as error:
            shown = " ".join(str(reference).split())[:100]
            source.need(("mods",), f"mods: {shown}: {error}: left out; {_explain_where_mods_are(str(reference))}")
    if references[MOST_MODS:]:
        source.need(("mods",), f"mods: only the first {MOST_MODS} are taken")
    return taken.values()


def _take_mods(source: Source, bundle: Bundle, recipe_file: Path | None) -> None:
    """Take mods and `pre_exec`. A mod that only copies templates becomes mounts; all else becomes steps of a build."""
    runs = _take_pre_exec(source, bundle)
    taken = _find_mods(source, bundle, recipe_file)
    digest = sha256()
    for mod in taken:
        for name, file in mod.files.items():
            digest.update(f"{mod.name}/{name}\0{len(file.content)}\0".encode() + file.content)
    folder = f"{bundle.recipe.name[:80]}.mods-{digest.hexdigest()[:12]}"
    built = [mod for mod in taken if not _mount_templates(bundle, mod, folder)]
    files = [file.content for mod in built for file in mod.files.values()]
    if len(files) > MOST_FILES or sum(map(len, files)) > MOST_BYTES:
        most = f"{MOST_FILES} files and {size(MOST_BYTES)}"
        source.need(("mods",), f"mods: left out: together more than the {most} that one build copies")
        built = []
    for mod in built:
        bundle.files |= {
            f"{folder}/{mod.name}/{name}": mods.File(file.content, file.executable or name == mods.SCRIPT)
            for name, file in mod.files.items()
        }
        if mod.starts_background():
            source.note(("mods",), f"mods: {mod.name}: what it starts in the background ends with the build")
    if built or runs:
        _set_build(bundle, (*runs, *mods.build_steps(folder, built)))


def _explain_where_mods_are(reference: str) -> str:
    """The command by which a person gets the mods of the reference's registry."""
    registry = sanitize(mods.registry_and_path(reference)[0])
    advice, url = "import again with --mods", TABLES.registries.get(registry) if registry else EUGR
    if not url:
        return f"{advice} FOLDER: a copy of the registry {registry}, which `sparkrun registry list` names"
    own_advice = "" if registry else f"{advice} FOLDER: a copy of the recipe's repository; for a mod of eugr's: "
    return f"{own_advice}git clone {url}, and {advice} {url.rpartition('/')[2]}"


def _mount_templates(bundle: Bundle, mod: mods.Mod, folder: str) -> bool:
    """Mount the templates of a mod that only copies templates which flags name. Returns whether it is such a mod."""
    templates, args = mod.templates(), dict(bundle.recipe.args)
    users = {flag: name for name in templates for flag in FILE_FLAGS if args.get(flag) in (name, f"./{name}")}
    if not templates or {*users.values()} != {*templates}:
        return False
    volumes = list(bundle.recipe.container.volumes)
    for flag, name in users.items():
        file = templates[name]
        target = f"{mods.CONTAINER_FOLDER}/{mod.name}/{file}"
        args[flag] = target
        bundle.files[f"{folder}/{mod.name}/{file}"] = mod.files[file]
        if target not in [volume.target for volume in volumes]:
            source = f"{bundle.place.folder}/{folder}/{mod.name}/{file}"
            volumes.append(Volume(source=source, target=target, read_only=True))
    bundle.update("container", volumes=tuple(volumes))
    bundle.recipe = bundle.recipe.model_copy(update={"args": args})
    return True


def _take_pre_exec(source: Source, bundle: Bundle) -> list[Step]:
    """The build steps of `pre_exec`, which run before those of mods, as in sparkrun.

    There are none where a command keeps running, or needs a mount or a value of the container.
    """
    volumes = (volume.target for volume in bundle.recipe.container.volumes)
    places = "|".join(map(re.escape, ("/root/.cache", "~/.cache", "$HOME/.cache", *_OTHER_MOUNTS, MODELS, *volumes)))
    variables = "|".join([*map(re.escape, bundle.recipe.env), *bundle.recipe.secrets, "HF_TOKEN"])
    open_pattern = re.compile(
        rf"{NAMED.pattern}|\$\{{?(?:{variables})\b|(?<![\w.-])(?:{places})\b|{mods.BACKGROUND.pattern}|\s&[\s)]", re.M
    )
    texts, steps = source.items("pre_exec"), list[Step]()
    is_open = any(open_pattern.search(text) or redact(text) != text for text in map(str, texts))
    if len(texts) <= MOST_STEPS - 2 * MOST_MODS and not is_open:
        with suppress(ValidationError):
            steps = [Step.model_validate({"run": text}) for text in texts]
    outcome = "done once, to the image" if steps else "not run: do it in an image, or on the node"
    for text in texts:
        source.note(("pre_exec",), f"pre_exec: {redact(shorten(text))}: {outcome}", is_missing=not steps)
    return steps


def _set_build(bundle: Bundle, steps: tuple[Step, ...]) -> None:
    """Set the build. Its image is named by its content, below localhost/, where no stranger can publish it."""
    base, local_image = bundle.base, bundle.place.find_image(bundle.base)
    pinned_digest = digest_of(local_image, base) if local_image and is_published(base) else ""
    build = Build.model_validate({"from": pinned_digest or base, "steps": steps})
    name = re.sub("[._-]+", "-", bundle.recipe.name).strip("-")
    content_digest = sha256(build.dockerfile(build.base).encode()).hexdigest()
    vllm = name_release(base)  # neither the new name nor a digest names the release
    bundle.update("image", ref=f"localhost/{name}:{content_digest[:12]}", build=build, vllm=vllm)


def _note_files(source: Source, bundle: Bundle) -> None:
    """Note templates and repositories of flags that nothing makes or pulls. The model's own becomes its folder."""
    recipe = bundle.recipe
    for flag in FILE_FLAGS if recipe.image.ref == bundle.base else ():  # a mod that is built may make the file
        if "/" not in (name := str(recipe.args.get(flag) or "/")) and name.endswith(".jinja"):
            source.need(("command",), f"args.{flag}: {name}: nothing makes this file: mount it, and name its path")
    for flag in ("tokenizer", "hf-config-path"):
        if REPO.fullmatch(repo := str(recipe.args.get(flag, ""))):
            folder = f"{MODELS}/{repo.rpartition('/')[2]}"
            if folder == f"{MODELS}/{recipe.model.path}" and repo == recipe.model.repo:
                bundle.recipe = bundle.recipe.model_copy(update={"args": {**bundle.recipe.args, flag: folder}})
                continue
            source.need(("command",), f"args.{flag}: {repo}: the engine would fetch it: pull it, and name {folder}")


def _note_other_mounts(source: Source, recipe: Recipe) -> None:
    """Note paths in the other tool's mounts, except those of compile caches, which sparkd keeps at the same place."""
    env = {name: text for name, text in recipe.env.items() if text}
    kept = kept_caches(recipe.caches, env, (), gpu=True).values()
    for key, value in (*((f"args.{key}", value) for key, value in recipe.args.items()), *env.items()):
        is_mounted = isinstance(value, str) and any(f"{mount}/" in value for mount in _OTHER_MOUNTS)
        if is_mounted and not any(is_below(target, str(value)) for target in kept):
            text = f"{key}: {str(value)[:120]}: sparkd mounts nothing there: add a volume, or change it"
            # A compiler that writes to such a folder makes it.
            is_made = key in env and re.search("CACHE|EXTENSIONS|WORKSPACE", key)
            source.note(("command",), text, is_missing=not is_made)
