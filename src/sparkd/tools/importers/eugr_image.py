"""Images of eugr's spark-vllm-docker: the published one behind a name of its tool, or the command to build one."""

import shlex
from contextlib import suppress
from pathlib import Path

from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.text_file import read_file
from sparkd.tools.importers.bundle import Bundle, is_published
from sparkd.tools.importers.mods import list_trees
from sparkd.tools.importers.source import Source

REPOSITORY = "https://github.com/eugr/spark-vllm-docker"
_CHECKOUT = REPOSITORY.rpartition("/")[2]
_BUILD_TOOL = "build-and-copy.sh"
_PUBLISHED, _B12X = "eugr/spark-vllm:latest", "eugr/spark-vllm-b12x:latest"
_PULLED = {"vllm-node": _PUBLISHED, "vllm-node-tf5": _PUBLISHED, "vllm-node-b12x": _B12X}
"""Published image by the tool's name for it. The tool pulls it if all arguments are of _PULL_FLAGS (028b7ce, 2026)."""
_BUILT_NAMES = ("vllm-node", "sparkrun-eugr-vllm")
"""Beginnings of the names of images that this tool builds, also for sparkrun."""
_EXP_B12X = {"--exp-b12x", "--experimental-b12x"}
_PULL_FLAGS = {"--tf5", "--pre-tf", "--pre-transformers", *_EXP_B12X}
_CUDA_TORCH = """\
python3 -c 'from importlib.util import find_spec; from runpy import run_path
torch = find_spec("torch"); assert torch, "torch is missing"
assert run_path(torch.origin.replace("__init__", "version"))["cuda"], "torch is built without CUDA"'
"""
"""Check of a built image: a build that resolves torch from Python's package index gets its wheel for the CPU."""


def set_image(source: Source, bundle: Bundle) -> None:
    """Set the command that builds the image, or the name of the published one that the tool would pull.

    Neither where a registry has the image. One that no registry has and no known tool builds becomes a note.
    """
    image, arguments = bundle.base, [str(word) for word in source.all_items("build_args")]
    if source.has_local_image or (is_published(image) and not arguments):
        return
    checkouts = [folder for folder in list_trees(source.path) if (folder / _BUILD_TOOL).is_file()]
    is_built_by_compose = any(note.text.startswith("build: not done") for note in source.notes)
    if is_built_by_compose or not (image.startswith(_BUILT_NAMES) or _is_built(source, checkouts, arguments)):
        if not bundle.is_here:
            source.need(("container",), f"container: {image}: no registry has it, nor is a build known: build it first")
        return
    if not bundle.is_here and (pulled := _find_pulled_image(image, arguments, checkouts)):
        source.note(("container",), f"container: {image}: {pulled}, which its tool gives this name: a tag that moves")
        bundle.base, bundle.is_here = pulled, bundle.place.find_image(pulled) is not None
        bundle.update("image", ref=pulled)
        return
    command = _format_build(image, arguments, checkouts)
    if command.isprintable():
        bundle.build = command
        bundle.update("image", build=command, asserts=(_CUDA_TORCH,))
    else:
        source.need(("build_args",), "build_args: left out: not plain words")


def _is_built(source: Source, checkouts: list[Path], arguments: list[str]) -> bool:
    """Whether the tool builds the recipe's image, whatever its name: so it does in a checkout of its own."""
    is_in_checkout = bool(checkouts) and source.text("recipe_version") == "1"
    return is_in_checkout or bool(arguments) or source.document.data.get("builder") == "eugr"


def _format_build(image: str, arguments: list[str], checkouts: list[Path]) -> str:
    """The command that builds the image, in the nearest checkout of the tool, or in a new one."""
    build = shlex.join([f"./{_BUILD_TOOL}", "-t", image, *arguments])
    if checkouts:
        return f"(cd {shlex.quote(str(checkouts[0]))} && {build})"
    return f"[ -d {_CHECKOUT} ] || git clone {REPOSITORY} && (cd {_CHECKOUT} && {build})"


def _find_pulled_image(name: str, arguments: list[str], checkouts: list[Path]) -> str:
    """The image that the tool pulls; empty where it builds.

    A copy of the tool beside the recipe may be older, or a fork: then it must name the same image.
    """
    image = _PULLED.get(name, "") if _EXP_B12X.isdisjoint(arguments) else _B12X
    with suppress(OSError, ConfigError):
        is_named = not checkouts or f'"{image}"' in read_file(checkouts[0] / _BUILD_TOOL)
        return image if is_named and _PULL_FLAGS.issuperset(arguments) else ""
    return ""
