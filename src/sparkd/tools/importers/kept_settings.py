"""What a recipe keeps of a launch's options and variables. One without a counterpart becomes a note with its line."""

import re
from collections.abc import Collection
from os.path import normpath
from typing import NamedTuple

from msgspec import Struct, field

from sparkd.base.recipes.additions import BETWEEN_GPUS, BETWEEN_NODES
from sparkd.base.vllm.container_paths import RESERVED_TARGETS, is_below, kept_caches
from sparkd.base.vllm.lint.environment import has_node_address
from sparkd.tools.importers.command import Flag
from sparkd.tools.importers.container_options import convert_for_recipe, is_true
from sparkd.tools.importers.marks import unknown
from sparkd.tools.importers.options import OF_RANK, Launch, Option, is_secret, merge_keys, redact, secret_file
from sparkd.tools.importers.variables import SET_BY_IMAGE

_RANK_VARIABLES = (*BETWEEN_NODES, *BETWEEN_GPUS, "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "HEADLESS", "RAY_ADDRESS")
"""Variables that launchers set on each node."""
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
_DISTINCT = re.compile(r"[^/].{7}", re.DOTALL)
"""Begins a secret that is looked for in other texts: a shorter one may be any word, and a path is none itself."""
_MOUNTS = ("volume", "mount")
_HUB_CACHE = re.compile(r".*/\.?cache/hugging_?face(?:/hub)?", re.IGNORECASE)
_PORT = re.compile(r"(?:([0-9.]+|\[[0-9a-f:]+\]):)?(\d{1,5}):(\d{1,5})(?:/tcp)?")


class _Mount(NamedTuple):
    source: str
    """A path, or the name of docker's own volume; empty for a mount of another type."""
    target: str
    mode: str


class KeptSettings(Struct):
    """The settings of one launch, whose notes get what is left out."""

    launch: Launch
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    values: list[str] = field(default_factory=list)
    """The values of those secrets, for a look at where else they stand."""

    def take_secret(self, name: str, at: int | Option) -> None:
        """Name the file of a secret, whose value is not taken."""
        self.secrets[name] = secret_file(name)
        self.launch.note(at, f"{name}: its value is not taken: put it into {self.secrets[name]}")

    def holds_secret(self, text: str) -> bool:
        """Whether the value of a variable that is a secret is in the text, as a script puts it there by $NAME."""
        return any(value in text for value in self.values)

    def take_env(self, inner: dict[str, str]) -> None:
        """Sort variables into secrets, notes and `env`. `inner`: what a shell in the container sets."""
        line = self.launch.line
        variables = {**self.launch.env, **{name: Option(name, value, line) for name, value in inner.items()}}
        secrets = {name: option.value for name, option in variables.items() if is_secret(name, option.value)}
        self.values = [value for value in secrets.values() if _DISTINCT.match(value) and not unknown(value)]
        for name, option in variables.items():
            value = option.value
            if name in _RANK_VARIABLES or has_node_address(name, value):
                self.launch.note(option, f"{name}: left out: {OF_RANK}")
            elif name in secrets or self.holds_secret(value):
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
        target = self._read_mount(option).target if is_mount else ""
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
        if name == "network" and value != "host":
            return None, "ranks use the node's own network"
        return ({"init": is_true(value)}, "") if name == "init" else convert_for_recipe(name, value)

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
        holding = [mount for mount in mounts if mount.target and is_below(model, mount.target)]
        innermost = max(holding, key=lambda mount: len(mount.target), default=_Mount("", "", ""))
        is_path = innermost.source.startswith("/")
        return innermost.source.rstrip("/") + model[len(innermost.target) :] if is_path else model

    def _read_mount(self, option: Option) -> _Mount:
        """The mount with an absolute source, and no slash at the target's end."""
        source, target, mode = _split_mount(option)
        folder = self.launch.folder
        is_relative = source.startswith(".") and folder
        return _Mount(normpath(f"{folder}/{source}") if is_relative else source, target.rstrip("/"), mode)

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
            match = _match_port(option.value, port)
            if match and published is flags:  # the first that leads to the engine
                address = [Flag("port", (match[2],)), *([Flag("host", (match[1].strip("[]"),))] if match[1] else [])]
                names = [flag.name for flag in address]
                published = (*(flag for flag in flags if flag.name not in names), *address)
            else:
                text = f"--publish {option.value[:60]}: left out: the engine listens on one port, {port}"
                self.launch.note(option, text)
        return published


def _match_port(text: str, port: str) -> re.Match[str] | None:
    """The address and the port that lead to the container's `port`; None where none does."""
    match = _PORT.fullmatch(text)
    return match if match and match[3] == port and 0 < int(match[2]) < 1 << 16 else None


def _split_mount(option: Option) -> _Mount:
    """The mount of --volume or --mount."""
    if option.name == "volume":
        source, _, rest = option.value.partition(":")
        target, _, modes = rest.partition(":")
        return _Mount(source, target, "ro" if "ro" in modes.split(",") else "rw")
    parts = dict(part.partition("=")[::2] for part in option.value.split(","))
    source, target = parts.get("source", parts.get("src", "")), parts.get("target", parts.get("dst", ""))
    mode = "ro" if {"readonly", "ro"} & parts.keys() else "rw"
    return _Mount(source if parts.get("type") == "bind" else "", target or parts.get("destination", ""), mode)
