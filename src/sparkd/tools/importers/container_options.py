"""Converts options of a container to keys of schema 1's `container`. The options have the names of sparkrun's."""

import re

from pydantic import ValidationError

from sparkd.base.lib.text import validator_message
from sparkd.base.recipes.reach import find_reach
from sparkd.base.recipes.schema import Container

_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d{1,15})(?:\.(\d{1,9}))?\s*([kmgt]?)i?b?", re.IGNORECASE)
_ULIMIT = re.compile(r"([a-z]+)=(-?\d{1,18})(?::(-?\d{1,18}))?")
_VOLUME = re.compile(r"([^:]+)(?::([^:]+))?(?::(ro|rw))?")
_PROVIDED = re.compile(r"gpus all|network host|platform (?i:(?:linux/)?(?:arm64|aarch64)(?:/v\d)?|linux)?")
"""Options that hold on a Spark anyway. Docker takes from the machine what a platform leaves out."""
_NO_NEW_PRIVILEGES = ("no-new-privileges", "no-new-privileges:true", "no-new-privileges=true")
_UNUSED = {
    "auto_remove": "sparkd removes its containers itself",
    "restart_policy": "restarting is systemd's job",
    "labels": "sparkd sets its own",
    "user": "the image's own user stays",
    "security_opt": "docker's own seccomp profile stays, and what needs io_uring fails, such as "
    "VLLM_PLE_TABLE_MEMORY=disk; container.privileged has none",
    "apparmor": "docker's own AppArmor profile stays; container.privileged has none",
    "entrypoint": "sparkd starts its own script",
    "platform": "a Spark is arm64: name an image for it",
}
"""Why the engine does without an option."""


def convert_option(name: str, value: object) -> dict[str, object] | None:
    """Keys of `container`; None for an option or a value without a counterpart."""
    text, words = str(value), [str(item) for item in value] if isinstance(value, list) else [str(value)]
    limits, volumes = [_parse_limit(word) for word in words], [_parse_volume(word) for word in words]
    match name:
        case "privileged":
            return {name: is_true(value)}
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


def convert_for_recipe(name: str, value: object) -> tuple[dict[str, object] | None, str]:
    """Keys of `container` that a recipe may have, and empty text; or None, and why the option is left out."""
    converted = convert_option(name, value)
    if converted is None:
        return None, why_unused(name, value) or "a recipe cannot say it"
    try:
        container = Container.model_validate(converted)
    except ValidationError as error:
        return None, validator_message(error.errors()[0]["msg"])
    reason = "" if name == "privileged" else explain_reach(container)
    return (None, reason) if reason else (converted, "")


def is_true(value: object) -> bool:
    """Whether sparkrun takes the value for true: so it does any text with 1, t or y."""
    return value is True or (bool(value) and any(letter in str(value).lower() for letter in "1ty"))


def explain_reach(container: Container) -> str:
    """Describe what the container would reach of the node beyond what an engine needs; empty for nothing."""
    return next((issue.reason for issue in find_reach(container, {})), "")


def why_unused(name: str, value: object) -> str:
    """Why the engine does without an option; empty for an option that it may need."""
    is_apparmor = name == "security_opt" and "apparmor" in str(value) and "seccomp" not in str(value)
    return _UNUSED.get("apparmor" if is_apparmor else name, "")


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
