"""Options of `docker run` and what a recipe has for them; what it has none for becomes a note with its line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from os.path import normpath
from typing import NamedTuple

from msgspec import Struct, field
from pydantic import ValidationError

from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.text import validator_message
from sparkd.base.recipes.additions import BETWEEN_GPUS, BETWEEN_NODES
from sparkd.base.recipes.schema import Container
from sparkd.base.vllm.args import parse_variables
from sparkd.base.vllm.container_paths import RESERVED_TARGETS, is_below, kept_caches
from sparkd.base.vllm.lint.environment import is_of_a_node
from sparkd.tools.importers.command import Flag
from sparkd.tools.importers.shell import OF_IMAGE
from sparkd.tools.importers.source import Note
from sparkd.tools.importers.sparkrun import convert_option, reached, why_unused
from sparkd.tools.importers.variables import unknown

_OF_RANKS = (*BETWEEN_NODES, *BETWEEN_GPUS, "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "HEADLESS", "RAY_ADDRESS")
"""Variables that launchers set on each node."""
OF_RANK = "sparkd sets what a node's rank needs"
_NAMES = {
    "net": "network", "device": "devices", "volume": "volumes", "mount": "volumes", "shm-size": "shm_size",
    "memory": "memory_limit", "security-opt": "security_opt", "cap-add": "cap_add",
}  # fmt: skip
_OWN = (
    "name", "rm", "detach", "interactive", "tty", "restart", "pull", "label", "log-driver", "log-opt", "runtime",
    "stop-timeout", "stop-signal", "hostname", "no-healthcheck", "quiet", "expose", "publish",
)  # fmt: skip
"""What sparkd sees to itself, or what means nothing on the node's network; `publish` is taken apart from these."""
_HUB_CACHE = re.compile(r".*/\.?cache/hugging_?face(?:/hub)?", re.IGNORECASE)
_PORT = re.compile(r"(?:([0-9.]+|\[[0-9a-f:]+\]):)?(\d{1,5}):(\d{1,5})(?:/tcp)?")
_PORT_OF_VLLM = "8000"
redact = Redaction()


class LaunchError(Exception):
    def __init__(self, line: int, reason: str, file: str = "") -> None:
        """`file`: that the line is of, where the caller has several."""
        super().__init__(reason)
        self.line, self.file = line, file


class Option(NamedTuple):
    name: str
    """Long form of docker's, without dashes."""
    value: str
    line: int
    file: str = ""
    """That the line is of, where it is another than the launch's."""


class Launch(Struct):
    line: int
    image: str = ""
    words: list[str] = field(default_factory=list)
    """What the image's entrypoint is given."""
    entrypoint: list[str] | None = None
    env: dict[str, Option] = field(default_factory=dict)
    """By name."""
    options: list[Option] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    given: Mapping[str, str] = {}
    """By its user: variables of a shell in the container."""
    service: str = ""
    """Its name in a compose file."""

    def note(self, at: int | Option, text: str, *, is_missing: bool = False) -> None:
        """`at`: line of the launch, or the option."""
        line, file = (at, "") if isinstance(at, int) else (at.line, at.file)
        self.notes.append(Note(line, text, is_missing, file))


class Options(Struct):
    launch: Launch
    folder: str
    """Of relative paths; empty where there is none."""
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)

    def take_secret(self, name: str, at: int | Option) -> None:
        self.secrets[name] = secret_file(name)
        self.launch.note(at, f"{name}: its value is not taken: put it into {self.secrets[name]}")

    def take_env(self, inner: dict[str, str]) -> None:
        """`inner`: what a shell in the container sets."""
        line = self.launch.line
        given = {**self.launch.env, **{name: Option(name, value, line) for name, value in inner.items()}}
        for name, option in given.items():
            value = option.value
            if name in _OF_RANKS or is_of_a_node(name, value):
                self.launch.note(option, f"{name}: left out: {OF_RANK}")
            elif is_secret(name, value):
                if value:
                    self.take_secret(name, option)
            elif missing := unknown(value):
                text = f"{name}: left out: what {redact(missing)} stands for is not known: write its value under env"
                self.launch.note(option, text, is_missing=name in OF_IMAGE)
            else:
                self.env[name] = value

    def container(self, used: Iterable[str], model: str) -> dict[str, object]:
        """Keys of schema 1's `container`. `used`: the values of the engine's flags, which may name files in a mount."""
        keys: dict[str, object] = {}
        for option in sorted(self.launch.options, key=lambda option: option.name != "privileged"):
            if option.name in _OWN or option.value.startswith(("nvidia.com/gpu", "label=")):
                continue
            if keys.get("privileged") and (option.name == "cap-add" or option.value.endswith("unconfined")):
                continue  # it has them all
            converted, reason = self._convert(option)
            if converted is None:
                self._leave_out(option, reason, used, model)
                continue
            if converted.get("privileged"):
                self.launch.note(option, "--privileged: kept: root in the container is root on the node")
            merge_keys(keys, converted)
        if "shm_bytes" in keys and "ipc" not in keys:
            keys["ipc"] = "private"  # docker's default, and where a size counts
        return keys

    def _leave_out(self, option: Option, reason: str, used: Iterable[str], model: str) -> None:
        is_path = option.name in ("volume", "mount", "device")
        is_plain = is_path and "volume-opt" not in option.value  # which may hold a share's password
        printed = (option.value if is_plain else redact(option.value))[:100]
        target = self._mount(option)[1] if is_path else ""
        is_mount = bool(target) and not _HUB_CACHE.fullmatch(target)
        is_missing = is_mount and any(is_below(value, target) for value in used)
        is_missing |= option.name == "platform" and not unknown(option.value)  # that of the machine, mostly
        if target == RESERVED_TARGETS[0] and not is_missing and self.on_the_node(model) != model:
            return  # sparkd mounts the model there by itself
        self.launch.note(option, f"--{option.name} {printed}: left out: {reason}", is_missing=is_missing)

    def _convert(self, option: Option) -> tuple[dict[str, object] | None, str]:
        """The keys, or None and why there are none."""
        name, value = _NAMES.get(option.name, option.name), option.value
        if missing := unknown(value):
            return None, f"what {redact(missing)} stands for is not known"
        if name == "volumes":
            value, reason = self._volume(option)
            if reason:
                return None, reason
        value = "all" if name == "gpus" else value  # a Spark has one
        converted: dict[str, object] | None = {"init": True} if name == "init" else convert_option(name, value)
        try:
            container = Container.model_validate(converted)
        except ValidationError as error:
            own = "ranks use the node's own network" if name == "network" else "a recipe cannot say it"
            return None, validator_message(error.errors()[0]["msg"]) if converted else why_unused(name, value) or own
        reason = "" if name == "privileged" else reached(container)
        return (None, reason) if reason else (converted, "")

    def _volume(self, option: Option) -> tuple[str, str]:
        """As a recipe has it, or why it is left out."""
        source, target, mode = self._mount(option)
        kept = kept_caches({}, {name: value for name, value in self.env.items() if value}, (), gpu=True).values()
        if _HUB_CACHE.fullmatch(target) or target == self.env.get("HF_HOME", "-"):
            return "", "sparkd downloads the model and mounts it itself (sudo sparkd model pull)"
        if target and any(is_below(one, target) or is_below(target, one) for one in kept):
            return "", "sparkd keeps the compile caches itself"
        if not source.startswith("/"):
            return "", "it is no folder of the node: name one by its absolute path under container.volumes"
        return f"{source}:{target}:{mode}", ""

    def on_the_node(self, model: str) -> str:
        """The folder of a model that is in a mount: sparkd mounts it by itself."""
        for option in self.launch.options:
            if option.name in ("volume", "mount"):
                source, target, _ = self._mount(option)
                if target and is_below(model, target) and source.startswith("/"):
                    return source.rstrip("/") + model[len(target) :]
        return model

    def _mount(self, option: Option) -> tuple[str, str, str]:
        """As `split_volume`, with an absolute source where it is a path, and no slash at the target's end."""
        source, target, mode = split_volume(option)
        is_relative = source.startswith(".") and self.folder
        return normpath(f"{self.folder}/{source}") if is_relative else source, target.rstrip("/"), mode

    def publish(self, flags: tuple[Flag, ...]) -> tuple[Flag, ...]:
        """The port of the node becomes the engine's own, since its network is the node's."""
        if any(option.name in ("net", "network") and option.value == "host" for option in self.launch.options):
            return flags
        published = flags
        for option in self.launch.options:
            if option.name != "publish":
                continue
            port = next((flag.values[-1] for flag in flags if flag.name == "port" and flag.values), _PORT_OF_VLLM)
            match = _PORT.fullmatch(option.value)
            if match and match[3] == port and published is flags:
                address = [Flag("port", (match[2],)), *([Flag("host", (match[1].strip("[]"),))] if match[1] else [])]
                names = [flag.name for flag in address]
                published = (*(flag for flag in flags if flag.name not in names), *address)
            else:
                text = f"--publish {option.value[:60]}: left out: the engine listens on one port, {port}"
                self.launch.note(option, text)
        return published


def merge_keys(container: dict[str, object], added: Mapping[str, object]) -> None:
    """Into keys of schema 1's `container`: a list or a mapping grows, any other value is replaced."""
    for key, value in added.items():
        before = container.get(key)
        if isinstance(before, list) and isinstance(value, list):
            container[key] = [*before, *(item for item in value if item not in before)]
        elif isinstance(before, dict) and isinstance(value, dict):
            container[key] = {**before, **value}
        else:
            container[key] = value


def secret_file(name: str) -> str:
    """Where the file of a secret is named to be."""
    return f"/etc/sparkd/{name.lower()}"


def is_secret(name: str, value: str) -> bool:
    try:
        parse_variables({name: ""})
    except ValueError as error:
        return "secret" in str(error)
    return redact.document(value, name.removeprefix("TIKTOKEN_")) != value  # whose name has TOKEN in it


def port_text(address: str, published: str, target: str) -> str:
    """The value of --publish. `address`: of the node, or empty; IPv6 stands in brackets there."""
    where = f"[{address}]:" if ":" in address else f"{address}:" if address else ""
    return f"{where}{published}:{target}"


def split_volume(option: Option) -> tuple[str, str, str]:
    """Source, target and mode of --volume and --mount; a source that is no path is docker's own volume."""
    if option.name == "volume":
        source, _, rest = option.value.partition(":")
        target, _, modes = rest.partition(":")
        return source, target, "ro" if "ro" in modes.split(",") else "rw"
    parts = dict(part.partition("=")[::2] for part in option.value.split(","))
    source, target = parts.get("source", parts.get("src", "")), parts.get("target", parts.get("dst", ""))
    mode = "ro" if {"readonly", "ro"} & parts.keys() else "rw"
    return source if parts.get("type") == "bind" else "", target or parts.get("destination", ""), mode
