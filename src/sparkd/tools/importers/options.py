"""A launch, as options of `docker run`, and what the readers of launches share."""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, field

from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.text import printable
from sparkd.base.vllm.args import SECRET_NAME
from sparkd.tools.importers.source import Note

OF_RANK = "sparkd sets what a node's rank needs"
SWITCHES = ("", "0", "1", "true", "false", "yes", "no", "on", "off", "enabled", "disabled")
"""Values that switch something, and are no secrets."""
redact = Redaction()


class LineError(Exception):
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
    folder: str = ""
    """The folder where relative paths begin; empty, or with a mark, where it is not known."""

    def note(self, at: int | Option, text: str, *, is_missing: bool = False) -> None:
        """Add a note. `at`: a line of the launch, or the option."""
        line, file = (at, "") if isinstance(at, int) else (at.line, at.file)
        self.notes.append(Note(line, text, is_missing, file))


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


def is_secret(name: str, value: str) -> bool:
    """Whether a variable is a secret, by its name or its value."""
    if SECRET_NAME.search(name):
        return True
    # TIKTOKEN has TOKEN in it.
    return value.lower() not in SWITCHES and redact.document(value, name.removeprefix("TIKTOKEN_")) != value


def secret_file(name: str) -> str:
    """The path that a recipe names for a secret's file."""
    return f"/etc/sparkd/{name.lower()}"


def port_text(address: str, published: str, target: str) -> str:
    """The value of --publish. `address`: of the node, or empty; IPv6 stands in brackets there."""
    where = f"[{address}]:" if ":" in address else f"{address}:" if address else ""
    return f"{where}{published}:{target}"
