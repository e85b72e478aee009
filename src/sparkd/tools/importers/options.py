"""Converts options of `docker run` to keys of a recipe. One without a counterpart becomes a note with its line."""

import re
from collections.abc import Collection, Mapping
from os.path import normpath
from typing import NamedTuple

from msgspec import Struct, field
from pydantic import ValidationError

from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.text import printable, validator_message
from sparkd.base.recipes.additions import BETWEEN_GPUS, BETWEEN_NODES
from sparkd.base.recipes.schema import Container
from sparkd.base.vllm.args import SECRET_NAME
from sparkd.base.vllm.container_paths import RESERVED_TARGETS, is_below, kept_caches
from sparkd.base.vllm.lint.environment import has_node_address
from sparkd.tools.importers.command import Flag
from sparkd.tools.importers.container_options import convert_option, explain_reach, is_true, why_unused
from sparkd.tools.importers.source import Note
from sparkd.tools.importers.variables import SET_BY_IMAGE, unknown

_RANK_VARIABLES = (*BETWEEN_NODES, *BETWEEN_GPUS, "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "HEADLESS", "RAY_ADDRESS")
"""Variables that launchers set on each node."""
OF_RANK = "sparkd sets what a node's rank needs"
_SPARKRUN_NAMES = {
    "net": "network", "device": "devices", "volume": "volumes", "mount": "volumes", "shm-size": "shm_size",
    "memory": "memory_limit", "security-opt": "security_opt", "cap-add": "cap_add",
}  # fmt: skip
"""Names that `convert_option` has for docker's."""
_IGNORED_OPTIONS = (
    "name", "rm", "detach", "interactive", "tty", "restart", "pull", "label", "log-driver", "log-opt", "runtime",
    "stop-timeout", "stop-signal", "hostname", "no-healthcheck", "quiet", "expose", "publish", "replace",
    "sdnotify", "cgroups",
)  # fmt: skip
"""Options that sparkd sees to itself, or that mean nothing on the node's network. `publish` has its own method."""
_MOUNTS = ("volume", "mount")
_HUB_CACHE = re.compile(r".*/\.?cache/hugging_?face(?:/hub)?", re.IGNORECASE)
_PORT = re.compile(r"(?:([0-9.]+|\[[0-9a-f:]+\]):)?(\d{1,5}):(\d{1,5})(?:/tcp)?")
redact = Redaction()


class LaunchError(Exception):
    def __init__(self, line: int, reason: str, file: str = "") -> None:
        """`file`: the file of the line, where the caller has several."""
        super().__init__(reason)
        self.line, self.file = line, file


def make_fault(path: str, line: int, reason: str) -> ConfigError:
    """The error for a line of a file. The reason is printed without secrets."""
    return ConfigError(printable(f"{path}: line {line}: {redact(reason)}"))


class Option(NamedTuple):
    name: str
    """Docker's long form, without dashes."""
    value: str
    line: int
    file: str = ""
    """The file of the line, where it is not the launch's."""


class Launch(Struct):
    """One start of a container, or of a program without one, in options of `docker run`. `line`: where it begins."""

    line: int
    image: str = ""
    words: list[str] = field(default_factory=list)
    """The words behind the entrypoint."""
    entrypoint: list[str] | None = None
    env: dict[str, Option] = field(default_factory=dict)
    options: list[Option] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    service: str = ""
    """The name in a compose file; empty elsewhere."""

    def note(self, at: int | Option, text: str, *, is_missing: bool = False) -> None:
        """Add a note. `at`: a line of the launch, or the option."""
        line, file = (at, "") if isinstance(at, int) else (at.line, at.file)
        self.notes.append(Note(line, text, is_missing, file))


class KeptSettings(Struct):
    """What a recipe keeps of a launch's options and variables. The rest becomes notes of the launch."""

    launch: Launch
    folder: str
    """The folder where relative paths begin; empty where there is none."""
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)

    def take_secret(self, name: str, at: int | Option) -> None:
        """Name the file of a secret, whose value is not taken."""
        self.secrets[name] = secret_file(name)
        self.launch.note(at, f"{name}: its value is not taken: put it into {self.secrets[name]}")

    def take_env(self, inner: dict[str, str]) -> None:
        """Sort variables into secrets, notes and `env`. `inner`: what a shell in the container sets."""
        line = self.launch.line
        variables = {**self.launch.env, **{name: Option(name, value, line) for name, value in inner.items()}}
        for name, option in variables.items():
            value = option.value
            if name in _RANK_VARIABLES or has_node_address(name, value):
                self.launch.note(option, f"{name}: left out: {OF_RANK}")
            elif is_secret(name, value):
                if value:
                    self.take_secret(name, option)
            elif missing := unknown(value):
                text = f"{name}: left out: what {redact(missing)} stands for is not known: write its value under env"
                self.launch.note(option, text, is_missing=name in SET_BY_IMAGE)
            else:
                self.env[name] = value

    def container(self, flag_values: Collection[str], model: str) -> dict[str, object]:
        """Keys of schema 1's `container`.

        `flag_values`: of the engine, which may name files in a mount. `model`: the path or name that is served.
        """
        keys: dict[str, object] = {}
        # --privileged comes first, since it includes others.
        for option in sorted(self.launch.options, key=lambda option: option.name != "privileged"):
            if option.name in _IGNORED_OPTIONS or option.value.startswith(("nvidia.com/gpu", "label=")):
                continue
            if keys.get("privileged") and (option.name == "cap-add" or option.value.endswith("unconfined")):
                continue
            converted, reason = self._convert(option)
            if converted is None:
                self._leave_out(option, reason, flag_values, model)
                continue
            if converted.get("privileged"):
                self.launch.note(option, "--privileged: kept: root in the container is root on the node")
            merge_keys(keys, converted)
        if "shm_bytes" in keys and "ipc" not in keys:
            keys["ipc"] = "private"  # docker's default, and where a size counts
        return keys

    def _leave_out(self, option: Option, reason: str, flag_values: Collection[str], model: str) -> None:
        """Note an option that is left out. Missing are --platform, and a mount that the engine's flags need."""
        is_mount = option.name in _MOUNTS
        # A volume-opt may hold a share's password; any other path is no secret.
        is_plain = (is_mount or option.name == "device") and "volume-opt" not in option.value
        printed = (option.value if is_plain else redact(option.value))[:100]
        target = self._read_mount(option)[1] if is_mount else ""
        if target and not _HUB_CACHE.fullmatch(target):
            is_missing = any(is_below(value, target) for value in flag_values)
        else:  # an unknown platform is mostly the machine's own
            is_missing = option.name == "platform" and not unknown(option.value)
        holds_model = is_below(target, RESERVED_TARGETS[0]) and is_below(model, target)
        if holds_model and not is_missing and self.on_the_node(model) != model:
            return  # sparkd mounts the model there by itself
        self.launch.note(option, f"--{option.name} {printed}: left out: {reason}", is_missing=is_missing)

    def _convert(self, option: Option) -> tuple[dict[str, object] | None, str]:
        """The keys and empty text; or None, and why there are none."""
        name, value = _SPARKRUN_NAMES.get(option.name, option.name), option.value
        if missing := unknown(value):
            return None, f"what {redact(missing)} stands for is not known"
        if name == "volumes":
            value, reason = self._convert_volume(option)
            if reason:
                return None, reason
        value = "all" if name == "gpus" else value  # a Spark has one
        converted = dict[str, object](init=is_true(value)) if name == "init" else convert_option(name, value)
        if converted is None:
            default = "ranks use the node's own network" if name == "network" else "a recipe cannot say it"
            return None, why_unused(name, value) or default
        try:
            container = Container.model_validate(converted)
        except ValidationError as error:
            return None, validator_message(error.errors()[0]["msg"])
        reason = "" if name == "privileged" else explain_reach(container)
        return (None, reason) if reason else (converted, "")

    def _convert_volume(self, option: Option) -> tuple[str, str]:
        """The volume as a recipe has it, and empty text; or empty text, and why it is left out."""
        source, target, mode = self._read_mount(option)
        kept = kept_caches({}, {name: value for name, value in self.env.items() if value}, (), gpu=True).values()
        if _HUB_CACHE.fullmatch(target) or target == self.env.get("HF_HOME", "-"):
            return "", "sparkd downloads the model and mounts it itself (sudo sparkd model pull)"
        if target and any(is_below(cache, target) or is_below(target, cache) for cache in kept):
            return "", "sparkd keeps the compile caches itself"
        if not source.startswith("/"):
            return "", "it is no folder of the node: name one by its absolute path under container.volumes"
        return f"{source}:{target}:{mode}", ""

    def on_the_node(self, model: str) -> str:
        """The node's path of a model that is in a mount, since sparkd mounts it by itself; any other model as it is."""
        mounts = [self._read_mount(option) for option in self.launch.options if option.name in _MOUNTS]
        holding = [mount for mount in mounts if mount[1] and is_below(model, mount[1])]
        source, target, _ = max(holding, key=lambda mount: len(mount[1]), default=("", "", ""))  # the innermost counts
        return source.rstrip("/") + model[len(target) :] if source.startswith("/") else model

    def _read_mount(self, option: Option) -> tuple[str, str, str]:
        """Source, target and mode as of `_split_mount`, with an absolute source, and no slash at the target's end."""
        source, target, mode = _split_mount(option)
        is_relative = source.startswith(".") and self.folder
        return normpath(f"{self.folder}/{source}") if is_relative else source, target.rstrip("/"), mode

    def publish(self, flags: tuple[Flag, ...]) -> tuple[Flag, ...]:
        """Replace the engine's port by the node's published one, since the engine will use the node's network."""
        if any(option.name in ("net", "network") and option.value == "host" for option in self.launch.options):
            return flags
        published = flags
        for option in self.launch.options:
            if option.name != "publish":
                continue
            ports = [flag.values[-1] for flag in flags if flag.name == "port" and flag.values]
            port = ports[-1] if ports else "8000"  # vLLM's own; of several, it takes the last
            match = _PORT.fullmatch(option.value)
            if match and match[3] == port and published is flags:  # the first that leads to the engine
                address = [Flag("port", (match[2],)), *([Flag("host", (match[1].strip("[]"),))] if match[1] else [])]
                names = [flag.name for flag in address]
                published = (*(flag for flag in flags if flag.name not in names), *address)
            else:
                text = f"--publish {option.value[:60]}: left out: the engine listens on one port, {port}"
                self.launch.note(option, text)
        return published


def merge_keys(container: dict[str, object], added: Mapping[str, object]) -> None:
    """Add keys to those of schema 1's `container`: a list or a mapping grows, any other value is replaced."""
    for key, value in added.items():
        present = container.get(key)
        if isinstance(present, list) and isinstance(value, list):
            container[key] = [*present, *(member for member in value if member not in present)]
        elif isinstance(present, dict) and isinstance(value, dict):
            container[key] = {**present, **value}
        else:
            container[key] = value


def secret_file(name: str) -> str:
    """The path that a recipe names for a secret's file."""
    return f"/etc/sparkd/{name.lower()}"


def is_secret(name: str, value: str) -> bool:
    """Whether a variable is a secret, by its name or its value."""
    if SECRET_NAME.search(name):
        return True
    return redact.document(value, name.removeprefix("TIKTOKEN_")) != value  # TIKTOKEN has TOKEN in it


def port_text(address: str, published: str, target: str) -> str:
    """The value of --publish. `address`: of the node, or empty; IPv6 stands in brackets there."""
    where = f"[{address}]:" if ":" in address else f"{address}:" if address else ""
    return f"{where}{published}:{target}"


def _split_mount(option: Option) -> tuple[str, str, str]:
    """Source, target and mode of --volume and --mount; a source that is no path is docker's own volume."""
    if option.name == "volume":
        source, _, rest = option.value.partition(":")
        target, _, modes = rest.partition(":")
        return source, target, "ro" if "ro" in modes.split(",") else "rw"
    parts = dict(part.partition("=")[::2] for part in option.value.split(","))
    source, target = parts.get("source", parts.get("src", "")), parts.get("target", parts.get("dst", ""))
    mode = "ro" if {"readonly", "ro"} & parts.keys() else "rw"
    return source if parts.get("type") == "bind" else "", target or parts.get("destination", ""), mode
