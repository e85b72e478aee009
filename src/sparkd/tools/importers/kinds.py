"""Recognises by its beginning what a text is: a form that is read, or a kind that is not."""

import re
from pathlib import Path
from typing import NamedTuple

from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.text import printable
from sparkd.tools.importers.systemd_unit import is_unit

SUFFIXES = (".yaml", ".yml")
READ = "what is read: recipes of eugr, sparkrun and NVIDIA, command lines, scripts, compose files, units, containers"
_MAPPING = re.compile(r"(?:[ \t\r]*(?:[#%].*|---.*)?\n)*[\"']?[\w.-]+[\"']?[ \t]*:\s")
"""The beginning of a YAML file. A script that writes such a file begins in another way."""
_COMPOSE = re.compile(r"^services[ \t]*:", re.MULTILINE)
_COMMAND = re.compile(
    r"\b(?:docker|podman|nerdctl)\b|\bvllm\b[\w/.-]{0,80}[ \t]{1,80}serve\b|vllm\.entrypoints\.openai"
)
_BEGIN = r"\s*+(?:#.*(?:\n\s*+|\Z))*+"
"""Comments and empty lines before the first of a file."""


class UnreadKind(NamedTuple):
    """A kind of file that is not read."""

    name: str
    pattern: str
    """Matches its beginning."""
    instead: str
    """What to do instead."""


NEVER_COMMANDS = (
    UnreadKind("an empty file", rf"{_BEGIN}\Z", "name the one that starts vLLM"),
    UnreadKind("a Dockerfile", r"\s*+(?:(?:#|ARG ).*\n\s*+)*+FROM[ \t]", "import what starts its image"),
    UnreadKind("a Python script", rf'#!.*python[\d.]*(?:\s|\Z)|(?!#!){_BEGIN}(?:import |from .* import |""")',
               "write what it starts as a `vllm serve` line"),
    UnreadKind("a quadlet of podman", r"\s*+(?:[#;].*\n\s*+)*+(?=\[[A-Za-z-]+\]\s*\n)(?:.*\n)*?\[Container\]",
               "import the unit that podman makes of it: systemctl cat NAME"),
    UnreadKind("a Kubernetes manifest", rf"{_BEGIN}(?:---\s+)?(?:kind:.*\n)?apiVersion:",
               "write image and command as a `docker run` line"),
)  # fmt: skip
"""Kinds that are not read, whatever commands they have."""
_FENCED = r"(?!#!)(?:(?!.*<<).*\n)*?```"
"""Text with a fenced block of Markdown, unless it lies in a script's here-document."""
WITHOUT_COMMANDS = (
    UnreadKind("a shell script without vLLM", r"#!.*sh\b",
               "import the script or compose file that it runs, by its path"),
    UnreadKind("Markdown", rf"(?!{_MAPPING.pattern})(?:#+ |{_FENCED})", "save the command in it as a file of its own"),
    UnreadKind("plain text", rf"(?!{_MAPPING.pattern}|[-{{\[])", "write the command that starts vLLM"),
)  # fmt: skip
"""What a text is in which no command starts vLLM. A YAML file is none of these."""


def find_kind(text: str) -> str:
    """The kind of form that the text is; empty for none."""
    if any(re.match(kind.pattern, text) for kind in NEVER_COMMANDS):
        return ""
    if _MAPPING.match(text):
        return "compose" if _COMPOSE.search(text) else ""
    return "systemd unit" if is_unit(text) else "command line" if _COMMAND.search(text) else ""


def may_be_markdown(text: str, path: Path) -> bool:
    """Whether a text with commands looks like Markdown, too."""
    return path.suffix not in SUFFIXES and bool(re.match(_FENCED, text))


def unreadable_error(text: str, path: Path, fault: str, hint: str = READ) -> ConfigError:
    """The error for a text: what it looks like and what to do instead; else the fault, with its line, and the hint."""
    kinds = NEVER_COMMANDS if path.suffix in SUFFIXES else (*NEVER_COMMANDS, *WITHOUT_COMMANDS)
    for kind in kinds:
        if re.match(kind.pattern, text):
            return ConfigError(printable(f"{path}: line 1: looks like {kind.name}: {kind.instead}"), READ)
    return ConfigError(printable(f"{path}: {fault}"), hint)
