"""Reads recipes of sparkrun, of any version, by the rules of sparkrun 0.4."""

import json
import re
import shlex
from collections.abc import Mapping

from msgspec import Struct, toml

from sparkd.base.lib import read_data
from sparkd.base.vllm.container_paths import is_below
from sparkd.tools.importers.container_options import convert_for_recipe, is_true
from sparkd.tools.importers.options import is_secret, redact
from sparkd.tools.importers.source import ForeignRecipe, Overrides, Source, UnusableRecipeError, shorten
from sparkd.tools.importers.templates import Values, substitute

_EXECUTOR = "executor_config"
_SPACE_BEHIND_BACKSLASH = re.compile(r"\\[ \t]+\n")
_SERVED_NAME = re.compile(r"(?<!\S)--served-model-name(?=[=\s]|$)")


class _Tables(Struct, frozen=True, forbid_unknown_fields=True):
    """Content of sparkrun.toml.

    `image`, `defaults`, `env` and `container` are what sparkrun takes on a DGX Spark where a recipe says nothing.
    """

    flags: tuple[str, ...]
    """Keys of `defaults` that become flags of a recipe without a command, behind the model and tensor_parallel."""
    flag_names: dict[str, str]
    """Flags whose name differs from their key."""
    switches: tuple[str, ...]
    """Keys of switches, besides those that begin with enable or disable."""
    negated: tuple[str, ...]
    """Switches whose false is a --no- flag."""
    refused: dict[str, str]
    """Keys that can't be left out, since the recipe would mean something else; each with the reason."""
    own_keys: tuple[str, ...]
    """Other keys of sparkrun that eugr's tool does not know."""
    shared_keys: tuple[str, ...]
    """Keys of both tools, and of the recipe's publisher for people."""
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
    note_unknown_keys(source)
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


def note_unknown_keys(source: Source) -> None:
    known_keys = {*TABLES.own_keys, *TABLES.shared_keys, *TABLES.refused}
    if keys := [str(key) for key in source.document.data if key not in known_keys]:
        source.note((keys[0],), f"{shorten(', '.join(keys))}: left out: no key of eugr's tool or of sparkrun")


def _make_values(source: Source, overrides: Overrides) -> Values:
    """The values of the command's placeholders: sparkrun's defaults, the recipe's own, and overrides."""
    model, revision = source.needed_text("model"), source.text("model_revision")
    defaults = {
        name: value.replace("{{", "{").replace("}}", "}") if isinstance(value, str) and "{{" in value else value
        for name, value in source.mapping("defaults").items()
    }
    command = source.text("command")
    # What the command has only as ${NAME}, and no default, is a variable of the shell: that gets the override.
    shell_names = {name for name in overrides if command.count(f"{{{name}}}") == command.count(f"${{{name}}}") > 0}
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
    """A truth value, a number or text, as sparkrun reads the value of -o."""
    if text.lower() in ("true", "yes", "false", "no"):
        return text.lower() in ("true", "yes")
    for kind in (int, float):
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
    """The command that sparkrun makes of a recipe's `defaults` where it has no command."""
    model, revision = str(values.get("resolved_model_path")), source.text("model_revision")
    parts = ["vllm", "serve", model]
    if revision and not model.startswith("/") and ":" not in model:
        parts += ["--revision", shlex.quote(revision)]
    if values.get("tensor_parallel"):
        parts += ["-tp", str(values.get("tensor_parallel"))]
    for name in TABLES.flags:
        flag, value = TABLES.flag_names.get(name) or f"--{name.replace('_', '-')}", values.get(name)
        if value is None:
            continue
        if name not in TABLES.switches and not name.startswith(("enable_", "disable_")):
            parts += [flag, _quote_json(value)]
        elif is_true(value):
            parts.append(flag)
        elif name in TABLES.negated:
            parts.append(f"--no-{flag[2:]}")
    return " ".join(parts)


def _quote_json(value: object) -> str:
    """Quote JSON for the shell. Any other text is the shell's own."""
    text = json.dumps(value, separators=(",", ":"), default=str) if isinstance(value, dict | list) else str(value)
    return shlex.quote(text.strip()) if text.strip().startswith(("{", "[")) else text


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
        if re.search(r"\$(?:\w|\{)", text) and not is_secret(name, text):
            note = f"env.{name}: is passed as it stands, as sparkrun does: write its value"
            source.note(("env", name), note)
        variables[name] = text
    return variables


def _read_container(source: Source, command: str) -> Mapping[str, object]:
    """Keys of schema 1's `container`, starting from sparkrun's defaults. Notes options without a counterpart."""
    keys = dict(TABLES.container)
    for name, value in source.mapping(_EXECUTOR).items():
        if value is None:
            continue
        if name not in ("volumes", "devices"):
            keys.update(_convert_or_note(source, name, value, command))
            continue
        entries = value if isinstance(value, list) else [value]
        taken = list[object]()
        for entry in entries:
            converted = _convert_or_note(source, name, [entry], command).get(name)
            taken += converted if isinstance(converted, list) else []
        if taken or not entries:
            keys[name] = taken
    return keys


def _convert_or_note(source: Source, name: str, value: object, command: str) -> dict[str, object]:
    """Convert an option to keys of `container`.

    One that a recipe can't have, or by which the container would reach too much, is noted, and gives no key.
    """
    converted, reason = convert_for_recipe(name, value)
    if reason:
        entries = [str(entry) for entry in value] if isinstance(value, list) else []
        shown = "".join(f" {redact(shorten(entry))}:" for entry in entries)
        is_used = name == "volumes" and any(_is_used(volume, command) for volume in entries)
        leave_out = source.need if is_used or name == "platform" else source.note
        leave_out((_EXECUTOR, name), f"{_EXECUTOR}.{name}:{shown} left out: {reason}")
    return converted or {}


def _is_used(volume: str, command: str) -> bool:
    """Whether a word of the command is a path in the volume's target."""
    target = (volume.split(":")[1:] or [volume])[0].rstrip("/")
    return any(is_below(word, target) for word in re.split(r"[\s'\"=,]+", command)) if target else False
