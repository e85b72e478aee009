"""Flags, variables and secrets of the engine, as recipes and settings write them: bad input until checked here.

Every function raises ValueError with a sentence for a person; whoever calls knows the file and the key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]

OWNED = {
    "nnodes": "cluster.nodes",
    "node-rank": "cluster.nodes",
    "master-addr": "cluster.nodes",
    "master-port": "cluster.master_port",
    "headless": "the node's rank",
    "distributed-executor-backend": "the recipe's executor",
}
"""Flags that sparkd sets itself, each with what decides it."""

OTHER_HOMES = {
    "model": "model.path of the recipe says it",
    "served-model-name": "model.served_name of the recipe says it",
    "api-key": "an argument is readable by every user of the machine; use secrets: VLLM_API_KEY",
    "hf-token": "an argument is readable by every user of the machine; use secrets: HF_TOKEN",
    "ssl-certfile": "sparkd asks the engine over plain HTTP; put a proxy with the certificate before it",
    "ssl-keyfile": "sparkd asks the engine over plain HTTP; put a proxy with the key before it",
    "uds": "sparkd asks the engine over TCP; args.host and args.port say where",
    "config": "a file of flags could set those that belong to sparkd; write its flags under args",
}

LONGEST_TEXT_BYTES = 100_000
"""Linux refuses to execute with one argument or variable of 128 KiB."""

_FLAG = re.compile(r"[a-z][a-z0-9]*(?:-[a-zA-Z0-9]+)*(?:\.[A-Za-z0-9_-]+)*\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SECRET_NAME = re.compile(r"(?:\A|_)(?:API_?KEY|TOKEN|PASSWORD|PASSWD|SECRET|ACCESS_KEY)\Z", re.IGNORECASE)
_SHELL_OWNED = frozenset(
    ("_", "COMP_WORDBREAKS", "DIRSTACK", "EPOCHREALTIME", "EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS", "HISTCMD",
     "IFS", "LINENO", "OLDPWD", "OPTIND", "PIPESTATUS", "POSIXLY_CORRECT", "PPID", "PWD", "RANDOM", "SECONDS",
     "SHELLOPTS", "SHLVL", "SRANDOM", "UID")
)  # fmt: skip
"""Variables, beside all of BASH*, that bash would not pass on as they were given."""
_DEEPEST = 20
_LONGEST_INTEGER_BITS = 512


def flag_name(raw: str) -> str:
    """The flag in kebab case, without dashes before it; snake_case means the same.

    Behind a dot stands a field of a JSON flag, which vLLM takes as it is written: `compilation-config.cudagraph_mode`.
    """
    head, dot, fields = raw.partition(".")
    name = head.replace("_", "-") + dot + fields
    if not _FLAG.match(name):
        raise ValueError(
            f"{raw!r} is no flag name: write it as vLLM does, such as max-model-len, without dashes before it"
        )
    # `nnodes.x` sets nnodes as well.
    positive = name.partition(".")[0].removeprefix("no-")
    if positive in OWNED:
        raise ValueError(f"--{name} belongs to sparkd, which sets it from {OWNED[positive]}: take it out")
    if positive in OTHER_HOMES:
        raise ValueError(f"--{name} is not set here: {OTHER_HOMES[positive]}")
    return name


def text(value: str, what: str = "text") -> str:
    """The text itself, if a program can be given it."""
    if "\0" in value:
        raise ValueError(f"{what} holds a NUL byte, which no program can be given")
    try:
        size_bytes = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} is not valid Unicode") from None
    if size_bytes > LONGEST_TEXT_BYTES:
        raise ValueError(f"{what} is {size_bytes} bytes long, at most {LONGEST_TEXT_BYTES} can be passed")
    return value


def value(raw: object, depth: int = 0) -> JsonValue:
    """A JSON value; refuses what only YAML or TOML can say, such as dates and infinity."""
    if depth > _DEEPEST:
        raise ValueError(f"nested deeper than {_DEEPEST} levels")
    if raw is None or isinstance(raw, bool):
        return raw
    if isinstance(raw, int):
        if raw.bit_length() > _LONGEST_INTEGER_BITS:
            raise ValueError("a number of more digits than any flag takes")
        return raw
    if isinstance(raw, str):
        return text(raw)
    if isinstance(raw, float):
        if raw != raw or raw in (float("inf"), float("-inf")):
            raise ValueError(f"{raw} is no number that JSON knows")
        return raw
    if isinstance(raw, list | tuple):
        return [value(one, depth + 1) for one in raw]
    if isinstance(raw, Mapping):
        return {_key(key): value(one, depth + 1) for key, one in raw.items()}
    raise ValueError(f"{raw!r} is a {type(raw).__name__}: put it in quotes")


def _key(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError(f"key {raw!r} is not text: put it in quotes")
    return text(raw, "a key")


def flags(raw: Mapping[str, object]) -> dict[str, JsonValue]:
    """Flags by kebab-case name, in the order they were written."""
    found: dict[str, JsonValue] = {}
    for key, one in raw.items():
        name = flag_name(_key(key))
        if name in found:
            raise ValueError(f"--{name} is given twice, once as {name.replace('-', '_')}")
        try:
            found[name] = value(one)
        except ValueError as error:
            raise ValueError(f"--{name}: {error}") from None
        if isinstance(one, list):
            _list(name, one)
    return found


def _list(name: str, items: list[object]) -> None:
    if not items:
        raise ValueError(f"--{name}: an empty list says nothing; null leaves the flag out")
    if any(isinstance(item, list | dict | bool) or item is None for item in items):
        raise ValueError(f"--{name}: a list holds only text and numbers, each one value after the flag")
    if any(isinstance(item, str) and item.startswith("-") for item in items):
        raise ValueError(f"--{name}: a value that starts with a dash would be read as the next flag")


def variable_name(raw: str) -> str:
    if not _VARIABLE.match(raw):
        raise ValueError(f"{raw!r} is no name of an environment variable: letters, digits and _ only")
    if raw in _SHELL_OWNED or raw.startswith("BASH"):
        raise ValueError(f"{raw} belongs to the shell that runs the launch script: take it out")
    return raw


def variables(raw: Mapping[str, object]) -> dict[str, str | None]:
    """Environment by name. Numbers become their text; None leaves an inherited variable out."""
    found: dict[str, str | None] = {}
    for key, one in raw.items():
        name = variable_name(_key(key))
        if _SECRET_NAME.search(name):
            raise ValueError(f"{name} looks like a secret: give its file under secrets, not its value here")
        checked = value(one)
        if isinstance(checked, bool | list | dict):
            raise ValueError(f"{name} is {one!r}: put the text that the program shall see in quotes")
        found[name] = None if checked is None else text(str(checked), name)
    return found


def secret_files(raw: Mapping[str, object]) -> dict[str, str]:
    """Absolute path of each secret's file, by the name of the variable that the engine gets it in."""
    found: dict[str, str] = {}
    for key, one in raw.items():
        name = variable_name(_key(key))
        if not isinstance(one, str):
            raise ValueError(f"{name} is a {type(one).__name__}: the path of a file that holds the secret is needed")
        found[name] = absolute_path(one, name)
    return found


def absolute_path(raw: str, what: str = "a path") -> str:
    """An absolute path that docker can mount, without a trailing slash."""
    text(raw, what)
    if not raw.startswith("/"):
        # What was found is not repeated: a person may have written the secret itself.
        raise ValueError(f"{what} must be an absolute path, such as /etc/sparkd/name")
    if ".." in raw.split("/") or any(ord(letter) < 32 for letter in raw) or ":" in raw:
        raise ValueError(f"{what} may hold no .., no colon and no control character")
    return raw.rstrip("/") or "/"


TABLES: Mapping[str, Callable[[Mapping[str, object]], Mapping[str, object]]] = {
    "args": flags,
    "env": variables,
    "secrets": secret_files,
}
"""What recipes and settings have tables of, each with the check of its entries."""
