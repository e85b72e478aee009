"""Reads files beside a form that it names: the `.env` of a compose file, and what a script sources."""

import re
from collections.abc import Iterator
from contextlib import suppress
from glob import escape
from os.path import normpath, realpath
from pathlib import Path
from shlex import quote

from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.text import printable
from sparkd.base.lib.text_file import read_owned_file
from sparkd.base.vllm.container_paths import is_below
from sparkd.tools.importers.marks import mark
from sparkd.tools.importers.options import make_fault
from sparkd.tools.importers.variables import CommandError, Variables

_ENV_LINE = re.compile(
    r"(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(?:'([^']*)'|\"((?:[^\"\\]|\\.)*+)\"|(.*?))(?:(?<!\s)\s+#.*)?", re.ASCII
)


_MERGED = {
    "compose": ("*compose.override.y*ml", "docker compose config"),
    "systemd unit": ("{}.d/*.conf", "systemctl cat {}"),
}
"""By kind of form: the files beside it that its tool merges into it, and the command that prints the result."""


def list_merged(path: Path, kind: str) -> Iterator[str]:
    """Notes on the files beside a form that its tool merges into it: they are not read."""
    pattern, command = _MERGED[kind]
    files = path.parent.glob(pattern.format(escape(path.name)))
    for name in sorted(file.name for file in files if file != path):
        yield f"{name}: not read, and may change this: import what `{command.format(quote(path.name))}` prints"


def read_env_file(path: Path, owner: int, variables: Variables) -> dict[str, str]:
    """Read the file that docker reads beside a compose file. Raises ConfigError."""
    try:
        return _parse_env_file(_read_beside(path, path, owner), variables)
    except CommandError as error:
        raise make_fault(str(path), 1, str(error)) from None


def read_sourced(form: Path, path: str, owner: int | None) -> str:
    """Read a file that a script sources, if it lies in the script's folder or below; empty text for any other."""
    with suppress(OSError, ConfigError):
        if is_below(path, normpath(form.absolute().parent)):
            return _read_beside(form, Path(path), owner)
    return ""


def _read_beside(form: Path, path: Path, owner: int | None) -> str:
    """Read a file in the folder of a form or below it; empty text where there is none. Raises ConfigError.

    A link is not followed. It must belong to `owner`, as the form does: else a user who puts another folder in the
    place of their own could have root's values written into a recipe that all may read. None: the form is no file.
    """
    if owner is None or not path.is_file() or path.is_symlink():
        return ""
    text, uid = read_owned_file(path, realpath(form.parent))
    if uid != owner:
        reason = f"{path}: is of uid {uid}, what reads it of {owner}: its values are not taken"
        raise ConfigError(printable(reason), "copy both into a folder of your own")
    return text


def _parse_env_file(text: str, variables: Variables) -> dict[str, str]:
    """Read an env file. Its variables are assigned, too, so that later texts can use them. Raises CommandError."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        if match := _ENV_LINE.fullmatch(line.strip()):
            name, single, double, bare = match.groups()
            if double is not None:
                bare = re.sub(r"\\([\"\\n])", lambda sign: sign[1].replace("n", "\n"), double)
            elif bare and bare[0] in "\"'":  # its quote ends on a later line
                bare = mark(f"${name}")
            values[name] = single if single is not None else variables.fill(bare)
            variables.assign(name, values[name])
    return values
