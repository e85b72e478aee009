"""What other tools run in each container before the engine, mods and `pre_exec`, as steps of a build of the image.

The build is done once, on one node. A mod that only copies templates becomes mounts instead.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from hashlib import sha256

from pydantic import ValidationError

from sparkd.base.host.docker_image import digest_of
from sparkd.base.lib.text import sanitize, size
from sparkd.base.recipes.image import MOST_BYTES, MOST_FILES, MOST_STEPS, Build, Step
from sparkd.base.recipes.schema import Volume
from sparkd.base.vllm.container_paths import FILE_FLAGS, RESERVED_TARGETS
from sparkd.base.vllm.releases import name_release
from sparkd.tools.importers import eugr_image
from sparkd.tools.importers.bundle import Bundle, is_published
from sparkd.tools.importers.mods import BACKGROUND, SCRIPT, File, Mod, ModError, find_mod, split_reference
from sparkd.tools.importers.options import redact
from sparkd.tools.importers.source import Source, shorten
from sparkd.tools.importers.sparkrun import TABLES
from sparkd.tools.importers.templates import NAMED

_CONTAINER_FOLDER = "/workspace/mods"
"""The folder of a container to which both tools copy mods."""
HUB_CACHES = ("/root/.cache/huggingface", "/cache/huggingface")
"""Folders of a container to which eugr's tool and sparkrun mount the hub's cache of their node."""
_MOST_MODS = 24
"""Each takes two steps of a build, which has at most MOST_STEPS."""


def set_build(source: Source, bundle: Bundle) -> None:
    """Set mounts, files and the build of the image, if anything needs one. What is left out becomes a note."""
    runs = _take_pre_exec(source, bundle)
    mods = _find_mods(source, bundle)
    digest = sha256()
    for mod in mods:
        for name, file in mod.files.items():
            digest.update(f"{mod.name}/{name}\0{len(file.content)}\0".encode() + file.content)
    folder = f"{bundle.recipe.name[:80]}.mods-{digest.hexdigest()[:12]}"
    built = [mod for mod in mods if not _mount_templates(bundle, mod, folder)]
    files = [file.content for mod in built for file in mod.files.values()]
    if len(files) > MOST_FILES or sum(map(len, files)) > MOST_BYTES:
        most = f"{MOST_FILES} files and {size(MOST_BYTES)}"
        source.need(("mods",), f"mods: left out: together more than the {most} that one build copies")
        built = []
    for mod in built:
        for name, file in mod.files.items():
            is_executable = file.executable or name == SCRIPT
            bundle.files[f"{folder}/{mod.name}/{name}"] = File(file.content, is_executable)
        if mod.starts_background():
            source.note(("mods",), f"mods: {mod.name}: what it starts in the background ends with the build")
    if steps := (*runs, *_list_mod_steps(folder, built)):
        _set_local_image(bundle, steps)


def _take_pre_exec(source: Source, bundle: Bundle) -> list[Step]:
    """The build steps of `pre_exec`, which run before those of mods, as in sparkrun.

    There are none where a command keeps running, or needs a mount or a value of the container.
    """
    volumes = (volume.target for volume in bundle.recipe.container.volumes)
    mounts = ("/root/.cache", "~/.cache", "$HOME/.cache", *HUB_CACHES, RESERVED_TARGETS[0], *volumes)
    places = "|".join(map(re.escape, mounts))
    variables = "|".join([*map(re.escape, bundle.recipe.env), *bundle.recipe.secrets, "HF_TOKEN"])
    of_container = re.compile(
        rf"{NAMED.pattern}|\$\{{?(?:{variables})\b|(?<![\w.-])(?:{places})\b|{BACKGROUND.pattern}|\s&[\s)]", re.M
    )
    texts, steps = source.items("pre_exec"), list[Step]()
    needs_container = any(of_container.search(text) or redact(text) != text for text in map(str, texts))
    if len(texts) <= MOST_STEPS - 2 * _MOST_MODS and not needs_container:
        with suppress(ValidationError):
            steps = [Step.model_validate({"run": text}) for text in texts]
    outcome = "done once, to the image" if steps else "not run: do it in an image, or on the node"
    for text in texts:
        source.note(("pre_exec",), f"pre_exec: {redact(shorten(text))}: {outcome}", is_missing=not steps)
    return steps


def _find_mods(source: Source, bundle: Bundle) -> Collection[Mod]:
    """The recipe's mods, each once. One that cannot be taken becomes a note."""
    references = source.all_items("mods")
    mods: dict[str, Mod] = {}
    for reference in references[:_MOST_MODS]:
        try:
            mod = find_mod(reference, source.path, bundle.place.mods)
            if mods.setdefault(mod.name, mod).files != mod.files:
                raise ModError("another one of that name is taken")
        except ModError as error:
            shown = " ".join(str(reference).split())[:100]
            source.need(("mods",), f"mods: {shown}: {error}: left out; {_explain_where_mods_are(str(reference))}")
    if references[_MOST_MODS:]:
        source.need(("mods",), f"mods: only the first {_MOST_MODS} are taken")
    return mods.values()


def _explain_where_mods_are(reference: str) -> str:
    """The command by which a person gets the mods of the reference's registry."""
    registry = sanitize(split_reference(reference)[0])
    advice = "import again with --mods"
    url = TABLES.registries.get(registry) if registry else eugr_image.REPOSITORY
    if not url:
        return f"{advice} FOLDER: a copy of the registry {registry}, which `sparkrun registry list` names"
    own_advice = "" if registry else f"{advice} FOLDER: a copy of the recipe's repository; for a mod of eugr's: "
    return f"{own_advice}git clone {url}, and {advice} {url.rpartition('/')[2]}"


def _mount_templates(bundle: Bundle, mod: Mod, folder: str) -> bool:
    """Mount the templates of a mod that only copies templates which flags name. Returns whether it is such a mod."""
    templates, args = mod.templates(), dict(bundle.recipe.args)
    users = {flag: name for name in templates for flag in FILE_FLAGS if args.get(flag) in (name, f"./{name}")}
    if not templates or {*users.values()} != {*templates}:
        return False
    volumes = list(bundle.recipe.container.volumes)
    for flag, name in users.items():
        file = templates[name]
        target = f"{_CONTAINER_FOLDER}/{mod.name}/{file}"
        args[flag] = target
        bundle.files[f"{folder}/{mod.name}/{file}"] = mod.files[file]
        if target not in [volume.target for volume in volumes]:
            source = f"{bundle.place.folder}/{folder}/{mod.name}/{file}"
            volumes.append(Volume(source=source, target=target, read_only=True))
    bundle.update("container", volumes=tuple(volumes))
    bundle.recipe = bundle.recipe.model_copy(update={"args": args})
    return True


def _list_mod_steps(folder: str, mods: list[Mod]) -> Iterator[Step]:
    """Steps that do to the image what both tools do to each container. `folder`: of the mods, beside the recipe."""
    for mod in mods:
        place = f"{_CONTAINER_FOLDER}/{mod.name}"
        yield Step.model_validate({"copy": f"{folder}/{mod.name}", "to": place})
        yield Step(run=f"export WORKSPACE_DIR=$PWD && cd {place} && ./{SCRIPT}")


def _set_local_image(bundle: Bundle, steps: tuple[Step, ...]) -> None:
    """Set the build. Its image is named by its content, below localhost/, where no stranger can publish it."""
    base, base_image = bundle.base, bundle.place.find_image(bundle.base)
    pinned_digest = digest_of(base_image, base) if base_image and is_published(base) else ""
    build = Build.model_validate({"from": pinned_digest or base, "steps": steps})
    name = re.sub("[._-]+", "-", bundle.recipe.name).strip("-")
    content_digest = sha256(build.dockerfile(build.base).encode()).hexdigest()
    vllm = name_release(base)  # neither the new name nor a digest names the release
    bundle.update("image", ref=f"localhost/{name}:{content_digest[:12]}", build=build, vllm=vllm)
