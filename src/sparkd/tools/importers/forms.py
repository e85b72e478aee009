"""Recognises and reads command lines, scripts, compose files, units and containers: what each of them starts."""

import errno
import os
import pwd
import re
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from sparkd.base.host import Host
from sparkd.base.host.docker import query
from sparkd.base.host.files import Files, Kind
from sparkd.base.lib.dockerd.reader import DockerError
from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.text import printable, sanitize
from sparkd.base.lib.text_file import LIMIT_BYTES
from sparkd.tools.importers.compose import parse_env_file, read_compose
from sparkd.tools.importers.container import read_container
from sparkd.tools.importers.docker_line import read_script
from sparkd.tools.importers.options import Launch, LaunchError, redact
from sparkd.tools.importers.source import Overrides
from sparkd.tools.importers.systemd_unit import is_unit, read_unit
from sparkd.tools.importers.variables import CommandError, Variables

CONTAINER = "container"
SUFFIXES = (".yaml", ".yml")
_MAPPING = re.compile(r"(?:[ \t\r]*(?:[#%].*|---.*)?\n)*[\"']?[\w.-]+[\"']?[ \t]*:\s")
"""The beginning of a YAML file. A script that writes such a file begins in another way."""
_COMPOSE = re.compile(r"^services[ \t]*:", re.MULTILINE)
_BEGIN = r"\s*+(?:#.*(?:\n\s*+|\Z))*+"
"""Comments and empty lines before the first of a file."""
_NEVER_READ = (
    ("an empty file", rf"{_BEGIN}\Z", "name the one that starts vLLM"),
    ("a Dockerfile", r"\s*+(?:(?:#|ARG ).*\n\s*+)*+FROM[ \t]", "import what starts its image"),
    ("a Python script", rf'#!.*python[\d.]*(?:\s|\Z)|(?!#!){_BEGIN}(?:import |from .* import |""")',
     "write what it starts as a `vllm serve` line"),
    ("a quadlet of podman", r"\s*+(?:[#;].*\n\s*+)*+(?=\[[A-Za-z-]+\]\s*\n)(?:.*\n)*?\[Container\]",
     "import the unit that podman makes of it: systemctl cat NAME"),
    ("a Kubernetes manifest", rf"{_BEGIN}(?:---\s+)?(?:kind:.*\n)?apiVersion:",
     "write image and command as a `docker run` line"),
)  # fmt: skip
"""Kinds that are never read, whatever commands they have: name, how a file of it begins, and what to do instead."""
_FENCED = r"(?!#!)(?:(?!.*<<).*\n)*?```"
"""Text with a fenced block of Markdown, unless it lies in a script's here-document."""
_UNREADABLE = (
    *_NEVER_READ,
    ("a shell script without vLLM", r"#!.*sh\b", "import the script or compose file that it runs, by its path"),
    ("Markdown", rf"(?!{_MAPPING.pattern})(?:#+ |{_FENCED})", "save the command in it as a file of its own"),
    ("plain text", rf"(?!{_MAPPING.pattern}|[-{{\[])", "write the command that starts vLLM"),
)
READ = "what is read: recipes of eugr, sparkrun and NVIDIA, command lines, scripts, compose files, units, containers"
_COMMAND = re.compile(r"\b(?:docker|podman)\b|\bvllm\b[\w/.-]{0,80}[ \t]{1,80}serve\b|vllm\.entrypoints\.openai")


class Form(Struct, frozen=True):
    """A file with what it starts; or a container, whose name is `path`."""

    path: str
    kind: str
    launches: list[Launch]
    folder: str
    """The folder where relative paths begin; empty where the text is no file's."""


def unreadable_error(text: str, path: Path, fault: str, hint: str = READ) -> ConfigError:
    """The error for a text: what it looks like and what to do instead; else the fault, with its line, and the hint."""
    for kind, begin, instead in _NEVER_READ if path.suffix in SUFFIXES else _UNREADABLE:
        if re.match(begin, text):
            return ConfigError(printable(f"{path}: line 1: looks like {kind}: {instead}"), READ)
    return ConfigError(printable(f"{path}: {fault}"), hint)


def _find_kind(text: str) -> str:
    """The kind of form that the text is; empty for none."""
    if any(re.match(begin, text) for _, begin, _ in _NEVER_READ):
        return ""
    if _MAPPING.match(text):
        return "compose" if _COMPOSE.search(text) else ""
    return "systemd unit" if is_unit(text) else "command line" if _COMMAND.search(text) else ""


def read_form(text: str, path: Path, overrides: Overrides, service: str = "", *, owner: int | None) -> Form | None:
    """Read a form; None for another text. `owner`: uid of the owner of the text's file `path`; None for no file.

    Raises ConfigError with the line.
    """
    kind = _find_kind(text)
    if not kind:
        return None
    if unused := [name for name in overrides if not re.search(rf"\b{re.escape(name)}\b", text)]:
        raise ConfigError(f"-o {sanitize(unused[0])}: nothing in {path} is filled in by that name")
    is_markdown = kind == "command line" and path.suffix not in SUFFIXES and bool(re.match(_FENCED, text))
    folder = str(path.absolute().parent) if owner is not None else ""
    values = {"HOME": _find_home(), **({"PWD": folder} if folder else {}), **overrides}
    variables = Variables(values, frozenset(overrides))
    try:
        launches = _read_launches(text, kind, variables, service, path, owner)
    except LaunchError as error:
        fault = make_fault(str(path), error.line, str(error))
        raise (unreadable_error(text, path, "") if is_markdown else fault) from None
    if is_markdown and not launches:
        raise unreadable_error(text, path, "")
    for launch in launches:
        launch.overrides = overrides
    return Form(str(path), kind, launches, folder)


def _read_launches(
    text: str, kind: str, variables: Variables, service: str, path: Path, owner: int | None
) -> list[Launch]:
    """Read the launches; for a compose file also the file `.env` beside it. Raises LaunchError."""
    if kind == "systemd unit":
        return read_unit(text, variables)
    if kind == "command line":
        return read_script(text, variables)
    env_file = {} if owner is None else _read_env_file(path.parent / ".env", owner, variables)
    return read_compose(text, variables, service, env_file)


def _find_home() -> str:
    """The home of the user who imports, also under sudo, where HOME is root's."""
    if os.geteuid() == 0 and (user := os.environ.get("SUDO_USER")):
        with suppress(KeyError):
            return pwd.getpwnam(user).pw_dir
    return str(Path.home())


def _read_env_file(path: Path, owner: int, variables: Variables) -> dict[str, str]:
    """Read the file that docker reads beside a compose file. A link is not followed.

    It must belong to `owner`, as the compose file does: else a user who puts another folder in the place of their own
    could have root's values written into a recipe that all may read.
    """
    try:
        file = Files().itself(str(path.absolute()), LIMIT_BYTES)
        if file.facts.kind is not Kind.FILE:
            return {}
        if file.facts.uid != owner:
            reason = f"{path}: is of uid {file.facts.uid}, the compose file of {owner}: its values are not taken"
            raise ConfigError(printable(reason), "copy both into a folder of your own")
        return parse_env_file(file.content.decode("utf-8-sig"), variables)
    except FileNotFoundError:
        return {}
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR):
            return {}
        raise ConfigError(printable(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}")) from None
    except UnicodeDecodeError:
        raise ConfigError(printable(f"{path}: is no UTF-8 text")) from None
    except CommandError as error:
        raise make_fault(str(path), 1, str(error)) from None


def form_of_container(name: str, host: Host) -> Form:
    """Read what a container of this machine's docker runs. Raises ConfigError."""
    try:
        launch = query(host, lambda docker: read_container(docker, name))
    except DockerError as error:
        raise ConfigError(f"docker: {error}") from None
    if launch is None:
        raise ConfigError(printable(f"docker has no container {name[:80]}"), "sudo docker ps -a")
    return Form(name, CONTAINER, [launch], "")


def make_fault(path: str, line: int, reason: str) -> ConfigError:
    """The error for a line of a file. The reason is printed without secrets."""
    return ConfigError(printable(f"{path}: line {line}: {redact(reason)}"))
