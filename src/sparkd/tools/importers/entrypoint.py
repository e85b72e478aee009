"""Entrypoints of images: the program that an image starts, and the shell that extends the image's variables."""

import re
import shlex
from collections.abc import Mapping

from sparkd.base.recipes.types import REPO
from sparkd.tools.importers.command import VLLM_SERVE
from sparkd.tools.importers.marks import shown, unknown
from sparkd.tools.importers.options import Launch
from sparkd.tools.importers.variables import SET_BY_IMAGE

_EXTENDS_IMAGE = re.compile(rf"(?:[\w/.:+-]|\$(?:{'|'.join(SET_BY_IMAGE)})(?!\w))+", re.ASCII)
"""A value that consists of plain text and variables that the image sets."""


def put_program_first(words: list[str], image: str) -> list[str]:
    """The command that the entrypoint of vLLM's images makes of at least one word."""
    folder = "/" if "vllm-openai" in image else "/models"  # in another image a path may be a program
    if words[0] == "serve":
        return ["vllm", *words]
    is_taken = words[0].startswith(("-", folder)) or REPO.fullmatch(words[0]) or unknown(words[0])
    return [*VLLM_SERVE, *words] if is_taken else words


def find_extended(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that extend those of the image, such as PATH=/x:$PATH: a shell in the container computes them."""
    unknown_texts = {name: shown(text) for name, text in env.items() if name.isidentifier() and unknown(text)}
    return {name: text for name, text in unknown_texts.items() if _EXTENDS_IMAGE.fullmatch(text)}


def make_entrypoint(launch: Launch, entrypoint: tuple[str, ...], extended: Mapping[str, str]) -> tuple[str, ...]:
    """The entrypoint; behind a shell where the launch needs a login shell, or extends variables of the image."""
    first_words = [*(launch.entrypoint or []), *launch.words][:3]
    # A login shell reads the image's profile, which may set PATH.
    login_flags = [word for word in first_words if re.fullmatch(r"-[a-z]*l[a-z]*c", word)]
    if not login_flags and not extended:
        return entrypoint
    # A single export: each text gets the image's values, and none that an earlier variable has changed.
    export = " ".join(["export", *(f"{name}={text}" for name, text in extended.items())]) + "; " if extended else ""
    return "bash", (login_flags or ["-c"])[0], f'{export}exec {shlex.join(entrypoint)} "$@"', "vllm"
