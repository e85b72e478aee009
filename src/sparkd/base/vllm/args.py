"""Validates the engine's arguments, variables and secrets from recipes and settings, and makes words of the arguments.

Raises ValueError with a message for the user, to which the caller adds file and key.
"""

import json
import re
from collections.abc import Callable, Mapping
from math import isfinite

JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]

OWNED = {
    "nnodes": "cluster.nodes",
    "node-rank": "cluster.nodes",
    "master-addr": "cluster.nodes",
    "master-port": "cluster.master_port",
    "headless": "the node's rank",
    "distributed-executor-backend": "the recipe's executor",
}
"""Flags that sparkd sets itself, each with its source."""

API_KEY, KEY_VARIABLE = "VLLM_API_KEY", "SPARK_API_KEY"
"""The variables of the endpoint's secret: of the engine, and of its clients. Not OPENAI_API_KEY: a user who has set
that to a key of OpenAI's would send it here, in clear."""

OTHER_HOMES = {
    "model": "model.path of the recipe says it",
    "served-model-name": "model.served_name of the recipe says it, and model.aliases further names",
    "api-key": f"an argument is readable by every user of the machine; use secrets: {API_KEY}",
    "hf-token": "an argument is readable by every user of the machine; use secrets: HF_TOKEN",
    "ssl-certfile": "sparkd connects to the engine over plain HTTP; put a proxy with the certificate before it",
    "ssl-keyfile": "sparkd connects to the engine over plain HTTP; put a proxy with the key before it",
    "uds": "sparkd connects to the engine over TCP; args.host and args.port say where",
    "config": "a file of flags could set those that belong to sparkd; write its flags under args",
}
"""Flags that are refused, each with the reason or its own place."""

LONGEST_ARGUMENT = 100_000
"""In bytes, or in characters before they are encoded: Linux limits one argument or variable to 128 KiB."""
LONGEST_COMMAND = 2_000_000
"""In characters: Linux limits all arguments and variables together to a quarter of the stack, 2 MiB as a rule."""
LONGEST_PATH = 4095
"""In bytes: PATH_MAX of linux/limits.h, without the NUL at its end."""

_FLAG = re.compile(r"[a-z][a-z0-9]*(?:-[a-zA-Z0-9]+)*(?:\.[A-Za-z0-9_-]+)*\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
SECRET_NAME = re.compile(r"(?:\A|_)(?:API_?KEY|TOKEN|PASSWORD|PASSWD|SECRET|ACCESS_KEY)\Z", re.IGNORECASE)
"""Variables whose values are secrets: their files are named instead."""
_SHELL_OWNED = frozenset(
    ("_", "COMP_WORDBREAKS", "DIRSTACK", "EPOCHREALTIME", "EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS", "HISTCMD",
     "IFS", "LINENO", "OLDPWD", "OPTIND", "PIPESTATUS", "POSIXLY_CORRECT", "PPID", "PWD", "RANDOM", "SECONDS",
     "SHELLOPTS", "SHLVL", "SRANDOM", "UID")
)  # fmt: skip
"""Variables (besides BASH*) that bash does not pass on unchanged."""
_DEEPEST = 20
"""Levels of a value. Its check calls itself for each, and Python allows 1000 calls."""


def kebab_case(name: str) -> str:
    """The flag with dashes. A part after a dot, a field of JSON, stays: `compilation-config.cudagraph_mode`."""
    head, dot, fields = name.partition(".")
    return head.replace("_", "-") + dot + fields


def normalize_flag(raw: str) -> str:
    """The checked flag name in kebab case; snake_case is accepted."""
    name = kebab_case(raw)
    if not _FLAG.match(name):
        raise ValueError(
            f"{raw!r} is no flag name: write it as vLLM does, such as max-model-len, without dashes before it"
        )
    # `nnodes.x` also sets nnodes.
    positive = name.partition(".")[0].removeprefix("no-")
    if positive in OWNED:
        raise ValueError(f"--{name} belongs to sparkd, which sets it from {OWNED[positive]}: take it out")
    if positive in OTHER_HOMES:
        raise ValueError(f"--{name} is not set here: {OTHER_HOMES[positive]}")
    return name


def check_text(text: str, what: str = "text") -> str:
    """The text, if it can be passed to a program."""
    if "\0" in text:
        raise ValueError(f"{what} holds a NUL byte, which no program can be given")
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} is not valid Unicode") from None
    if size_bytes > LONGEST_ARGUMENT:
        raise ValueError(f"{what} is {size_bytes} bytes long, at most {LONGEST_ARGUMENT} can be passed")
    return text


def check_value(raw: object, depth: int = 0) -> JsonValue:
    """A JSON value. Refuses values that exist only in YAML or TOML, such as dates and infinity."""
    if depth > _DEEPEST:
        raise ValueError(f"nested deeper than {_DEEPEST} levels")
    if raw is None or isinstance(raw, bool):
        return raw
    if isinstance(raw, int):
        if raw.bit_length() > 512:  # Python refuses to print numbers of more than 4300 digits
            raise ValueError("a number of more digits than any flag takes")
        return raw
    if isinstance(raw, str):
        return check_text(raw)
    if isinstance(raw, float):
        if not isfinite(raw):
            raise ValueError(f"{raw} is no number that JSON knows")
        return raw
    if isinstance(raw, list | tuple):
        return [check_value(value, depth + 1) for value in raw]
    if isinstance(raw, Mapping):
        return {_check_key(key): check_value(value, depth + 1) for key, value in raw.items()}
    raise ValueError(f"{raw!r} is a {type(raw).__name__}: put it in quotes")


def _check_key(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError(f"key {raw!r} is not text: put it in quotes")
    return check_text(raw, "a key")


def parse_flags(raw: Mapping[str, object]) -> dict[str, JsonValue]:
    """Flags by kebab-case name, in their written order."""
    flags: dict[str, JsonValue] = {}
    for key, value in raw.items():
        name = normalize_flag(_check_key(key))
        if name in flags:
            raise ValueError(describe_repeat(name))
        try:
            flags[name] = check_value(value)
        except ValueError as error:
            raise ValueError(f"--{name}: {error}") from None
        if isinstance(value, list):
            _check_list(name, value)
    return flags


def describe_repeat(name: str) -> str:
    """The fault of a flag that is given in both spellings, such as max-num-seqs and max_num_seqs."""
    return f"--{name} is given twice, once as {name.replace('-', '_')}"


def _check_list(name: str, values: list[object]) -> None:
    if not values:
        raise ValueError(f"--{name}: an empty list says nothing; null leaves the flag out")
    if any(isinstance(value, list | dict | bool) or value is None for value in values):
        raise ValueError(f"--{name}: a list holds only text and numbers, each one value after the flag")
    if any(isinstance(value, str) and value.startswith("-") for value in values):
        raise ValueError(f"--{name}: a value that starts with a dash would be read as the next flag")


def check_variable_name(raw: str) -> str:
    if not _VARIABLE.match(raw):
        raise ValueError(f"{raw!r} is no name of an environment variable: letters, digits and _ only")
    if raw in _SHELL_OWNED or raw.startswith("BASH"):
        raise ValueError(f"{raw} belongs to the shell that runs the launch script: take it out")
    return raw


def parse_variables(raw: Mapping[str, object]) -> dict[str, str | None]:
    """Environment by name. Numbers become text; None removes an inherited variable."""
    variables: dict[str, str | None] = {}
    for key, value in raw.items():
        name = check_variable_name(_check_key(key))
        if SECRET_NAME.search(name):
            raise ValueError(f"{name} looks like a secret; give its file under secrets, not its value here")
        checked = check_value(value)
        if isinstance(checked, bool | list | dict):
            raise ValueError(f"{name} is {value!r}: put the text that the program shall see in quotes")
        variables[name] = None if checked is None else check_text(str(checked), name)
    return variables


def parse_secret_files(raw: Mapping[str, object]) -> dict[str, str]:
    """Absolute path of each secret's file, by the name of its variable."""
    files: dict[str, str] = {}
    for key, path in raw.items():
        name = check_variable_name(_check_key(key))
        if not isinstance(path, str):
            raise ValueError(f"{name} is a {type(path).__name__}: the path of a file that holds the secret is needed")
        files[name] = check_path(path, name)
    return files


def check_path(raw: str, what: str = "a path") -> str:
    """An absolute path that docker can mount, without a trailing slash."""
    if len(check_text(raw, what).encode()) > LONGEST_PATH:
        raise ValueError(f"{what} is longer than {LONGEST_PATH} bytes, and no file can be opened by it")
    if not raw.startswith("/"):
        # The value is not repeated: it may be the secret itself.
        raise ValueError(f"{what} must be an absolute path, such as /etc/sparkd/name")
    if ".." in raw.split("/") or not raw.isprintable() or ":" in raw:
        raise ValueError(f"{what} may hold no .., no colon and nothing unprintable")
    return raw.rstrip("/") or "/"


TABLE_CHECKS: Mapping[str, Callable[[Mapping[str, object]], Mapping[str, object]]] = {
    "args": parse_flags,
    "env": parse_variables,
    "secrets": parse_secret_files,
}
"""Parsers of the tables in recipes and settings."""


def command_line(args: Mapping[str, JsonValue]) -> list[str]:
    """Flags as words for vLLM's parser, in their order."""
    return [word for flag, value in args.items() for word in _make_words(flag, value)]


def _make_words(flag: str, value: JsonValue) -> list[str]:
    if value is None:
        return []
    if value is True:
        return [f"--{flag}"]
    if value is False:
        return [f"--no-{flag}"]
    if isinstance(value, list):
        return [f"--{flag}", *map(_format_value, value)]
    text = _format_value(value)
    # As a separate word, a value that starts with a dash would be read as the next flag.
    return [f"--{flag}={text}"] if text.startswith("-") else [f"--{flag}", text]


def _format_value(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def parse_count(value: object, highest: int) -> int | None:
    """A number from 0 to `highest`, also where it is written as text; None for any other value."""
    text = str(value)
    is_count = text.isdecimal() and text.isascii() and len(text) <= 9 and int(text) <= highest
    return int(text) if is_count else None
