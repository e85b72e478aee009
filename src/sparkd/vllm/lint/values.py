"""Predicates on flags that need each other, names that vLLM looks up in a registry, and what nothing fills in."""

from __future__ import annotations

import re

from sparkd.lib.text import did_you_mean
from sparkd.vllm.flag_table import FLAGS, VERSION
from sparkd.vllm.lint.predicates import NOTHING, Launch, Matches, about

NEEDS = {"enable-auto-tool-choice": "tool-call-parser", "enable-log-outputs": "enable-log-requests"}
"""Switches, each with the flag without which vLLM ends."""
PLUGINS = {"tool-call-parser": "tool-parser-plugin", "reasoning-parser": "reasoning-parser-plugin"}
"""The flag that loads more names."""
_UNFILLED = re.compile(r"(?<!\$)\{[A-Za-z_][A-Za-z0-9_.-]{0,60}\}|\$\{?[A-Za-z_]\w{0,60}\}?")
"""`{name}`, `$NAME` and `${NAME}`: sparkd fills in its own placeholders alone, and quotes all words for the shell."""
_JINJA = ("{{", "{%")

_REGISTERED = {flag.name: flag.registered for flag in FLAGS if flag.registered}


def incomplete(launch: Launch) -> Matches:
    for switch, other in NEEDS.items():
        if switch in launch.flags and not _has(launch, other):
            yield about(switch, f"needs --{other}, and it is not given")


def unused(launch: Launch) -> Matches:
    if _has(launch, "tool-call-parser") and "enable-auto-tool-choice" not in launch.flags:
        yield about("tool-call-parser", "does nothing without --enable-auto-tool-choice")


def unregistered(launch: Launch) -> Matches:
    for flag, names in _REGISTERED.items():
        value = launch.flags.get(flag) or ""
        unjudged = value in NOTHING or flag in launch.extra or _has(launch, PLUGINS.get(flag, flag + "-plugin"))
        if not unjudged and value not in names:
            known = did_you_mean(value, names) or f": {', '.join(names[:8])}, ..."
            yield about(flag, f"{value[:60]!r} is not registered in vLLM {VERSION}{known}")


def unfilled(launch: Launch) -> Matches:
    named = [(f"args.{flag}", f"--{flag}", text) for flag, text in launch.flags.items()]
    for at, what, text in [*named, *((f"env.{name}", name, text) for name, text in launch.env.items())]:
        if found := find_unfilled(text or ""):
            yield at, f"{what} is given {found} as it stands: nothing fills it in"


def find_unfilled(text: str) -> str:
    """The first placeholder that is none of sparkd's; empty where there is none, and in a template."""
    match = None if any(one in text for one in _JINJA) else _UNFILLED.search(text)
    return match[0] if match else ""


def _has(launch: Launch, flag: str) -> bool:
    """Whether it is given, also with a value that is not known yet."""
    return flag in launch.flags and launch.flags[flag] not in NOTHING
