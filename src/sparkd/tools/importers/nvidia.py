"""Reads recipes of NVIDIA's catalogue (local-ai-inference-recipes, recipe.yaml of schema 3 and 4), for DGX Sparks.

The measurement beside one, performance.yaml, names the image by digest and the model by revision.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sparkd.base.lib.text import read_file
from sparkd.base.recipes.additions import BETWEEN_GPUS, BETWEEN_NODES
from sparkd.base.recipes.yaml import YamlError, parse_as_pyyaml
from sparkd.tools.importers.command import split_commands
from sparkd.tools.importers.source import CommandError, Foreign, Overrides, Source, Unusable, Values
from sparkd.tools.importers.sparkrun import convert_option

_OF_RANKS = re.compile(r"""(--(?:node-rank|master-addr|master-port)[= ])"?\$\{?\w+\}?"?""")
"""Flags that sparkd sets, with values of the shell's."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REVISION = re.compile(r"[0-9a-f]{40}")
_SWITCHES = ("--rm", "-it", "-d", "--init")
"""Options of `docker run` without meaning for the engine."""
_OPTIONS = {"shm-size": "shm_size", "cap-add": "cap_add", "device": "devices"}
_REPEATED = ("ulimit", "devices", "cap_add")
_CACHES = ("/root/.cache/", "/root/.triton")
"""sparkd keeps them for each image, and mounts models from the node."""
_SHOWN = ("security", "limitations", "notes", "validation")


def catalogue_name(source: Source) -> str:
    """Of model and hardware, since every file there is recipe.yaml; empty for another tool's."""
    if source.document.data.get("schema_version") not in (3, 4) or not source.has("serve"):
        return ""
    return f"{source.document.data.get('model')}-{source.document.data.get('hardware')}".rpartition("/")[2]


def read_nvidia(source: Source, overrides: Overrides) -> Foreign | None:
    """None for another tool's. Raises Unusable, or CommandError for the command."""
    if not catalogue_name(source):
        return None
    if source.text("backend") != "vllm":
        raise source.fault(("backend",), source.text("backend"), "sparkd runs vLLM alone")
    Values({}).check_overrides(overrides)
    serve, runtime, measured = source.mapping("serve"), source.mapping("runtime"), _read_measurement(source)
    nodes = source.mapping("topology").get("node_count") or 1
    if not isinstance(nodes, int) or not 1 <= nodes <= 64:  # as the schema
        raise source.fault(("topology", "node_count"), nodes, "must be a number of nodes")
    if not re.match(r"dgx-spark(-|\Z)", source.text("hardware")):
        source.miss(("hardware",), f"hardware: {source.text('hardware')[:60]}: is no DGX Spark: choose another recipe")
    for key in _SHOWN:
        for value in source.items(key):
            source.note((key,), f"{key}: {value if isinstance(value, str) else _flatten(value)}"[:400])
    software = _mapping(measured.get("software"))
    digest, revision = str(software.get("runtime_revision")), str(software.get("model_revision"))
    image = str(runtime.get("image") or "")
    if _DIGEST.fullmatch(digest):
        image = f"{image.partition('@')[0].rpartition(':')[0] or image}@{digest}"
    elif "@" not in image:
        source.note(("runtime",), f"runtime.image: {image}: no performance.yaml has its digest, and the tag may move")
    env, container = _read_docker_run(source, str(runtime.get("setup_command") or ""))
    return Foreign(
        format="NVIDIA catalogue",
        description=source.text("title"),
        image=image,
        command=_OF_RANKS.sub(r"\g<1>0", str(serve.get("command") or "")),
        revision=revision if _REVISION.fullmatch(revision) else "",
        env=env,
        container=container,
        nodes=(nodes, nodes),
        expect=_read_figures(measured),
    )


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _flatten(value: object) -> str:
    fields = _mapping(value).items()
    return ", ".join(_flatten(one) if isinstance(one, dict) else f"{name} {one}" for name, one in fields) or str(value)


def _read_measurement(source: Source) -> Mapping[str, object]:
    """Content of performance.yaml beside the recipe; empty without one."""
    if source.beside is None:
        return {}
    try:
        return _mapping(parse_as_pyyaml(read_file(source.beside.with_name("performance.yaml"))).data)
    except FileNotFoundError:
        return {}
    except YamlError as error:
        source.note((), f"performance.yaml: not read: {error}")
        return {}


def _read_figures(measured: Mapping[str, object]) -> dict[str, object]:
    """Tokens a second by the number of parallel requests, as recipes of sparkd have them."""
    found: dict[str, dict[str, object]] = {}
    profiles = measured.get("profiles")
    for profile in map(_mapping, profiles if isinstance(profiles, list) else []):
        parallel, results = _mapping(profile.get("workload")).get("concurrency"), _mapping(profile.get("results"))
        for name in ("decode_tokens_per_second", "prefill_tokens_per_second"):
            figure = results.get(f"{name}_mean")
            if isinstance(parallel, int) and isinstance(figure, int | float) and 0 < figure < 1e9:
                found.setdefault(name, {})[str(parallel)] = figure
    return dict(found)


def _read_docker_run(source: Source, text: str) -> tuple[dict[str, str], dict[str, object]]:
    """Variables and keys of schema 1's `container` of its `docker run`. Notes what has no counterpart."""
    env, container, lists = dict[str, str](), dict[str, object](), dict[str, list[str]]()
    try:
        runs = [command.words[2:] for command in split_commands(text) if command.words[:2] == ["docker", "run"]]
    except CommandError as error:
        raise Unusable(("runtime",), f"runtime.setup_command: {error}") from None
    if len(runs) != 1:
        raise Unusable(("runtime",), f"runtime.setup_command: has `docker run` {len(runs)} times, and once is needed")
    for name, value in _options(runs[0]):
        key, variable = _OPTIONS.get(name, name), value.partition("=")
        if name in ("e", "env"):
            if "$" not in variable[2] and variable[1]:
                env[variable[0]] = variable[2]
            elif variable[0] not in (*BETWEEN_NODES, *BETWEEN_GPUS):
                source.note(
                    ("runtime",), f"runtime.setup_command: {variable[0][:60]}: left out: a value of the shell's"
                )
        elif key in _REPEATED:
            lists.setdefault(key, []).append(value)
        elif name != "entrypoint" and not (name in ("v", "volume") and value.partition(":")[2].startswith(_CACHES)):
            converted = convert_option(key, value)
            if converted is None:
                source.miss(("runtime",), f"runtime.setup_command: --{name} {value[:60]}: left out: write it yourself")
            container |= converted or {}
    for key, values in lists.items():
        container |= convert_option(key, values) or {}
    return env, container


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    """Those before the image, by their names without dashes."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            return
        name, equals, value = word.lstrip("-").partition("=")
        if word == "--privileged":
            yield name, "true"
        elif word not in _SWITCHES:
            yield name, value if equals else next(rest, "")
