"""What a foreign recipe would run beside the engine: never run, but told, with what it means for the image."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sparkd.recipes.imports.source import Source

_MODS = "not run: it would change each container before the engine starts; build an image in which it is done"
_HOOKS = {
    "pre_exec": "not run: it would run before the engine; build an image in which it is done, or do it on the node",
    "post_exec": "not run: it would run in the container once the engine serves",
    "post_commands": "not run: it would run on the machine that started it once the engine serves",
}
_BUILDER = ("builder", "builder_config")


def tell(source: Source, image: str) -> None:
    runtime_config = source.document.data.get("runtime_config")
    for mod in source.items("mods"):
        source.note(("mods",), f"mods: {_said(mod)}: {_MODS}, and name it under image.ref")
    for key, meaning in _HOOKS.items():
        for step in source.items(key):
            source.note((key,), f"{key}: {_said(step)}: {meaning}")
    if isinstance(runtime_config, Mapping):
        for key in ("mods", "build_args"):
            if runtime_config.get(key):
                source.note(("runtime_config", key), f"runtime_config.{key}: not run: {_said(runtime_config[key])}")
    if source.has("build_args"):
        words = " ".join(str(word) for word in source.items("build_args"))
        source.note(("build_args",), f"build_args: not run: {image} must be on every node, built with: {words}")
    for key in _BUILDER:
        if source.has(key):
            source.note((key,), f"{key}: not run: {_said(source.document.data[key])}: sparkd builds no image")


def _said(step: object) -> str:
    text = step if isinstance(step, str) else json.dumps(step, default=str)
    text = " ".join(text.split())
    return text if len(text) <= 200 else f"{text[:197]}..."
