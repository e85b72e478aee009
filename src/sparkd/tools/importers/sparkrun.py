"""Reads recipes of sparkrun, of any version, by the rules of sparkrun 0.4."""

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, toml
from pydantic import ValidationError

from sparkd.base.lib import read_data
from sparkd.base.lib.text import validator_message
from sparkd.base.recipes.reach import find_reach
from sparkd.base.recipes.schema import Container
from sparkd.base.vllm.args import SECRET_NAME
from sparkd.base.vllm.container_paths import is_below
from sparkd.tools.importers.source import ForeignRecipe, Overrides, Source, UnusableRecipeError, shorten, whole_number
from sparkd.tools.importers.templates import Values, substitute

EXECUTOR = "executor_config"
_SPACE_BEHIND_BACKSLASH = re.compile(r"\\[ \t]+\n")
_SERVED_NAME = re.compile(r"(?<!\S)--served-model-name(?=[=\s]|$)")
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d{1,15})(?:\.(\d{1,9}))?\s*([kmgt]?)i?b?", re.IGNORECASE)
_ULIMIT = re.compile(r"([a-z]+)=(-?\d{1,18})(?::(-?\d{1,18}))?")
_VOLUME = re.compile(r"([^:]+)(?::([^:]+))?(?::(ro|rw))?")
_PROVIDED = re.compile(r"gpus all|network host|platform (?i:(?:linux/)?(?:arm64|aarch64)(?:/v\d)?|linux)?")
"""Options that hold on a Spark anyway. Docker takes from the machine what a platform leaves out."""
_NO_NEW_PRIVILEGES = ("no-new-privileges", "no-new-privileges:true", "no-new-privileges=true")


class _Tables(Struct, frozen=True, forbid_unknown_fields=True):
    """Content of sparkrun.toml.

    `image`, `defaults`, `env` and `container` are what sparkrun takes on a DGX Spark where a recipe says nothing.
    """

    flags: tuple[str, ...]
    """Keys of `defaults` that become flags of a recipe without a command, behind the model and tensor_parallel."""
    sizes: dict[str, str]
    """Flags whose name differs from their key."""
    switches: tuple[str, ...]
    """Keys of switches, besides those that begin with enable or disable."""
    negated: tuple[str, ...]
    """Switches whose false is a --no- flag."""
    refused: dict[str, str]
    """Keys that can't be left out, since the recipe would mean something else; each with the reason."""
    keys: tuple[str, ...]
    """Other keys of sparkrun that eugr's tool does not know."""
    unused: dict[str, str]
    image: str
    defaults: dict[str, float]
    env: dict[str, str]
    container: dict[str, object]
    registries: dict[str, str]
    """Repositories of the registries that sparkrun has from the start, by name."""


TABLES = toml.decode(read_data("sparkrun.toml"), type=_Tables)


def read_sparkrun(source: Source, overrides: Overrides) -> ForeignRecipe:
    """Read a recipe, also of an unknown tool. Raises UnusableRecipeError, or CommandError for the command."""
    runtime = source.text("runtime")
    if runtime not in ("", "vllm", "vllm-distributed", "vllm-ray", "eugr-vllm"):
        raise source.fault(("runtime",), runtime, "sparkd runs vLLM alone")
    for key, reason in TABLES.refused.items():
        if source.has(key) and source.document.data[key] != "docker":
            raise UnusableRecipeError((key,), f"{key}: {reason}")
    values = _make_values(source, overrides)
    command = _make_command(source, values)
    _check_replicas(values)
    values.check_overrides(overrides, command)
    return ForeignRecipe(
        format="sparkrun",
        description=source.text("description") or str(source.mapping("metadata").get("description") or ""),
        image=source.text("container").strip() or TABLES.image,
        command=command,
        revision=source.text("model_revision"),
        env={**TABLES.env, **_read_environment(source)},
        container=_read_container(source, command),
        nodes=_count_nodes(source),
        executor="ray" if runtime == "vllm-ray" else "mp",
    )


def _make_values(source: Source, overrides: Overrides) -> Values:
    """The values of the command's placeholders: sparkrun's defaults, the recipe's own, and overrides."""
    model, revision = source.needed_text("model"), source.text("model_revision")
    defaults = {
        name: value.replace("{{", "{").replace("}}", "}") if isinstance(value, str) and "{{" in value else value
        for name, value in source.mapping("defaults").items()
    }
    text = source.text("command")
    shell_names = {name for name in overrides if text.count(f"{{{name}}}") == text.count(f"${{{name}}}") > 0}
    shell_names -= {*TABLES.defaults, *defaults}
    chosen = {name: _parse_override(text.strip()) for name, text in overrides.items() if name not in shell_names}
    model_path = source.mapping("cluster_config").get("resolved_model_path") or model
    model_values = {
        "model": model_path,
        "resolved_model_path": model_path,
        **({"model_revision": revision} if revision else {}),
    }
    return Values({**TABLES.defaults, **model_values, **defaults, **chosen})


def _parse_override(text: str) -> object:
    if text.lower() in ("true", "yes", "false", "no"):
        return text.lower() in ("true", "yes")
    for kind in (whole_number, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _make_command(source: Source, values: Values) -> str:
    """The recipe's command, or one of its defaults, with a served name."""
    filled = substitute(source.text("command").strip(), values)
    text = _SPACE_BEHIND_BACKSLASH.sub("\\\n", filled) or _make_command_from_defaults(source, values)
    served = values.get("served_model_name")
    if _SERVED_NAME.search(text):
        return text
    return text.rstrip().rstrip("\\") + f" --served-model-name {source.text('model') if served is None else served}"


def _make_command_from_defaults(source: Source, values: Values) -> str:
    model, revision = str(values.get("resolved_model_path")), source.text("model_revision")
    parts = ["vllm", "serve", model]
    if revision and not model.startswith("/") and ":" not in model:
        parts += ["--revision", shlex.quote(revision)]
    if values.get("tensor_parallel"):
        parts += ["-tp", str(values.get("tensor_parallel"))]
    for name in TABLES.flags:
        flag, value = TABLES.sizes.get(name) or f"--{name.replace('_', '-')}", values.get(name)
        if value is None:
            continue
        if name not in TABLES.switches and not name.startswith(("enable_", "disable_")):
            parts += [flag, _quote_json(value)]
        elif _is_true(value):
            parts.append(flag)
        elif name in TABLES.negated:
            parts.append(f"--no-{flag[2:]}")
    return " ".join(parts)


def _quote_json(value: object) -> str:
    """Quote JSON for the shell. Any other text is the shell's own."""
    text = json.dumps(value, separators=(",", ":"), default=str) if isinstance(value, dict | list) else str(value)
    return shlex.quote(text.strip()) if text.strip().startswith(("{", "[")) else text


def _is_true(value: object) -> bool:
    """Whether sparkrun takes the value for true: so it does any text with 1, t or y."""
    return value is True or (bool(value) and any(letter in str(value).lower() for letter in "1ty"))


def _check_replicas(values: Values) -> None:
    """Raise UnusableRecipeError for several replicas of the engine."""
    values.used.update(("tensor_parallel", "pipeline_parallel", "data_parallel"))
    if str(values.get("data_parallel") or 1) != "1":
        reason = "sparkrun gives each replica flags of its own, and sparkd runs one engine"
        raise UnusableRecipeError(("defaults", "data_parallel"), f"defaults.data_parallel: {reason}")


def _count_nodes(source: Source) -> tuple[int, int | None]:
    """Fewest and most nodes."""
    fewest, most, mode = source.count("min_nodes"), source.count("max_nodes"), source.text("mode")
    fewest = 1 if fewest is None else fewest
    if mode == "solo" or source.has("solo_only"):
        return 1, 1
    return max(fewest, 2) if source.has("cluster_only") else fewest, most


def _read_environment(source: Source) -> Mapping[str, str]:
    variables: dict[str, str] = {}
    for name, value in source.mapping("env").items():
        text = str(value)
        if re.search(r"\{(?:config|launch)\.", text):
            source.note(("env", name), f"env.{name}: left out: sparkrun fills it in at each launch: write its value")
            continue
        if re.search(r"\$(?:\w|\{)", text) and not SECRET_NAME.search(name):
            note = f"env.{name}: is passed as it stands, as sparkrun does: write its value"
            source.note(("env", name), note)
        variables[name] = text
    return variables


def _read_container(source: Source, command: str) -> Mapping[str, object]:
    """Keys of schema 1's `container`, starting from sparkrun's defaults. Notes options without a counterpart."""
    keys = dict(TABLES.container)
    for name, value in source.mapping(EXECUTOR).items():
        if value is None:
            continue
        if name not in ("volumes", "devices"):
            keys.update(_convert_or_note(source, name, value, command))
            continue
        entries = value if isinstance(value, list) else [value]
        taken = [kept for entry in entries for kept in _convert_or_note(source, name, [entry], command).get(name, [])]
        if taken or not entries:
            keys[name] = taken
    return keys


def _convert_or_note(source: Source, name: str, value: object, command: str) -> dict[str, Any]:
    """Convert an option to keys of `container`.

    One that a recipe can't have, or by which the container would reach too much, is noted, and gives no key.
    """
    converted = convert_option(name, value)
    try:
        container = Container.model_validate(converted)
    except ValidationError as error:
        fault = validator_message(error.errors()[0]["msg"]) if converted else "a recipe cannot say it"
        reason = why_unused(name, value) or fault
    else:
        reason = "" if name == "privileged" else explain_reach(container)
    if reason:
        shown = "".join(f" {shorten(str(entry))}:" for entry in value) if isinstance(value, list) else ""
        is_used = name == "volumes" and any(_is_used(volume, command) for volume in shown.split())
        leave_out = source.need if is_used or name == "platform" else source.note
        leave_out((EXECUTOR, name), f"{EXECUTOR}.{name}:{shown} left out: {reason}")
    return {} if reason else converted or {}


def _is_used(volume: str, command: str) -> bool:
    """Whether a word of the command is a path in the volume's target."""
    target = (volume.rstrip(":").split(":")[1:] or [volume.rstrip(":")])[0].rstrip("/")
    return any(is_below(word, target) for word in re.split(r"[\s'\"=,]+", command)) if target else False


def explain_reach(container: Container) -> str:
    """Describe what the container would reach of the node beyond what an engine needs; empty for nothing."""
    return next((issue.reason for issue in find_reach(container, {})), "")


def why_unused(name: str, value: object) -> str:
    """Why the engine does without an option; empty for an option that it may need."""
    is_apparmor = name == "security_opt" and "apparmor" in str(value) and "seccomp" not in str(value)
    return TABLES.unused.get("apparmor" if is_apparmor else name, "")


def convert_option(name: str, value: object) -> dict[str, object] | None:
    """Keys of `container`; None for an option or a value without a counterpart."""
    text, words = str(value), [str(item) for item in value] if isinstance(value, list) else [str(value)]
    limits, volumes = [_parse_limit(word) for word in words], [_parse_volume(word) for word in words]
    match name:
        case "privileged":
            return {name: _is_true(value)}
        case "gpus" if text in ("none", ""):
            return {name: "none"}
        case "gpus" | "network" | "platform" if _PROVIDED.fullmatch(f"{name} {text}"):
            return {}
        case "entrypoint" | "cap_add" if not value:
            return {}
        case "ipc":
            return {name: text or "private"}
        case "shm_size" | "memory_limit" if size_bytes := _parse_size(text):
            return {f"{name.removesuffix('_size')}_bytes": size_bytes}
        case "devices":
            return {name: [re.sub(r"\A([^:]+):\1\Z", r"\1", word) for word in words]}
        case "volumes" if all(volumes):
            return {name: volumes}
        case "ulimit" if all(limits):
            return {"ulimits": dict(filter(None, limits))}
        case "security_opt" if all(word in _NO_NEW_PRIVILEGES for word in words):
            return {"no_new_privileges": bool(words)}
    return None


def _parse_limit(word: str) -> tuple[str, dict[str, int]] | None:
    match = _ULIMIT.fullmatch(word)
    return (match[1], {"soft": int(match[2]), "hard": int(match[3] or match[2])}) if match else None


def _parse_volume(word: str) -> str:
    """`SOURCE:TARGET:MODE`, with what the text leaves out; empty for text that is no volume."""
    match = _VOLUME.fullmatch(word)
    return f"{match[1]}:{match[2] or match[1]}:{match[3] or 'rw'}" if match else ""


def _parse_size(text: str) -> int:
    """The size in bytes; 0 for text that is no size, or one out of bounds."""
    size = _SIZE.fullmatch(text)
    if size is None:
        return 0
    size_bytes = int(float(f"{size[1]}.{size[2] or 0}") * _UNITS[size[3].lower()])
    return size_bytes if size_bytes <= 2**50 else 0
