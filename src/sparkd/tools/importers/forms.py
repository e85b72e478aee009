"""Reads command lines, scripts, compose files, units and containers: what each of them starts."""

import os
import pwd
import re
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from sparkd.base.host import Host
from sparkd.base.host.docker import query, running
from sparkd.base.lib.dockerd.reader import DockerError
from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.text import printable, sanitize
from sparkd.tools.importers.compose import read_compose
from sparkd.tools.importers.container import read_container
from sparkd.tools.importers.docker_line import read_script
from sparkd.tools.importers.files_beside import list_merged, read_env_file, read_sourced
from sparkd.tools.importers.kinds import find_kind, may_be_markdown, unreadable_error
from sparkd.tools.importers.options import Launch, LineError, make_fault
from sparkd.tools.importers.source import Overrides
from sparkd.tools.importers.systemd_unit import read_unit
from sparkd.tools.importers.variables import Variables

CONTAINER = "container"


class Form(Struct, frozen=True):
    """A file with what it starts; or a container, whose name is `path`."""

    path: str
    kind: str
    launches: list[Launch]
    overrides: Overrides = {}
    """Variables that the user sets, also for a shell in the container."""


def read_form(text: str, path: Path, overrides: Overrides, service: str = "", *, owner: int | None) -> Form | None:
    """Read a form; None for another text. `owner`: uid of the owner of the text's file `path`; None for no file.

    Raises ConfigError with the line.
    """
    kind = find_kind(text)
    if not kind:
        return None
    if unused := [name for name in overrides if not re.search(rf"\b{re.escape(name)}\b", text)]:
        raise ConfigError(f"-o {sanitize(unused[0])}: nothing in {path} is filled in by that name")
    # A script may hold the fences of Markdown, too, as in a text of several lines. To a shell they are backquotes, so
    # that nothing of a fenced block starts anything.
    is_markdown = kind == "command line" and may_be_markdown(text, path)
    folder = str(path.absolute().parent) if owner is not None else ""
    beside = {"PWD": folder, "0": f"{folder}/{path.name}", "BASH_SOURCE": f"{folder}/{path.name}"} if folder else {}
    values = {"HOME": _find_home(), **beside, **overrides}
    variables = Variables(values, frozenset(overrides))
    try:
        launches = _read_launches(text, kind, variables, service, path, owner)
    except LineError as error:
        fault = make_fault(str(path), error.line, str(error))
        raise (unreadable_error(text, path, "") if is_markdown else fault) from None
    if is_markdown and not launches:
        raise unreadable_error(text, path, "")
    return Form(str(path), kind, launches, overrides)


def _read_launches(
    text: str, kind: str, variables: Variables, service: str, path: Path, owner: int | None
) -> list[Launch]:
    """Read the launches; for a compose file also the file `.env` beside it. Raises LineError."""
    if kind == "command line":
        return read_script(text, variables, lambda name: read_sourced(path, name, owner))
    if kind == "systemd unit":
        launches = read_unit(text, variables)
    else:
        env_file = {} if owner is None else read_env_file(path.parent / ".env", owner, variables)
        launches = read_compose(text, variables, service, env_file)
    for note in () if owner is None else list_merged(path, kind):
        for launch in launches:
            launch.note(1, note)
    return launches


def read_container_form(name: str, host: Host) -> Form:
    """Read what a container of this machine's docker runs. Raises ConfigError."""
    try:
        launch = query(host, lambda docker: read_container(docker, name))
    except DockerError as error:
        raise ConfigError(f"docker: {error}", "with sudo; or look at: systemctl status docker") from None
    if launch is None and not running(host):
        raise ConfigError("docker is not running on this node", "sudo systemctl start docker")
    if launch is None:
        raise ConfigError(printable(f"docker has no container {name[:80]}"), "sudo docker ps -a")
    return Form(name, CONTAINER, [launch])


def _find_home() -> str:
    """The home of the user who imports, also under sudo, where HOME is root's."""
    if os.geteuid() == 0 and (user := os.environ.get("SUDO_USER")):
        with suppress(KeyError):
            return pwd.getpwnam(user).pw_dir
    return str(Path.home())
