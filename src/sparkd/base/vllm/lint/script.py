"""Reads the user's launch script: the engines that its text starts, and their ranks."""

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from itertools import pairwise

from msgspec import Struct

from sparkd.base.vllm.command import API_SERVER, FirstValues, first_values
from sparkd.base.vllm.lint.rules import Issue

_ALL_ARGUMENTS = re.compile(r"\$(?:[@*]|\{[@*][^}]{0,99}\})")
_PUNCTUATION = frozenset("();<>|&")
_HASH_INSIDE_WORD = re.compile(r"(?<=[^\s();<>|&])#")
_MENTIONING = ("echo", "printf", "grep", "pgrep", "pkill", ":")
"""Commands that may mention an engine without starting one."""
_MOST_JOINED_LINES = 20
"""Lines that one open quote may join, so that a stray quote does not hide the rest."""
_LONGEST_JOINED = 16 << 10
"""Characters of joined lines. shlex is slow on more: 100,000 in an open quote took seconds."""
_READERS = frozenset(("cat", "eval", "mapfile", "read", "readarray", "xargs"))
"""Commands that read words from other sources."""
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


class Script(Struct, frozen=True):
    serves: tuple[FirstValues, ...]
    """The flags of each `vllm serve`. A value that the shell would expand is None."""
    env: Mapping[str, str]
    """Variables set to plain text."""
    passes_arguments_on: bool
    """Whether the script passes on its arguments, which are the whole command."""
    may_be_headless: bool
    """Whether --headless is given or may come from elsewhere, or the script starts Ray, whose workers start no vLLM."""


def parse_script(text: str, inherited: Mapping[str, str]) -> Script:
    """Read the script. `inherited`: the environment that it starts with, which may contain --headless."""
    serves: list[FirstValues] = []
    env: dict[str, str] = {}
    commands = [*_split_commands(text)]
    for words in commands:
        env.update(_read_assignments(words))
        if (arguments := _find_serve_arguments(words)) is not None:
            values = {flag: _keep_literal(value) for flag, value in first_values(arguments).items()}
            if "help" not in values:
                serves.append(values)
    return Script(
        serves=tuple(serves),
        env=env,
        passes_arguments_on=any(_ALL_ARGUMENTS.search(word) for words in commands for word in words),
        may_be_headless=any("--headless" in value for value in inherited.values())
        or any("config" in serve for serve in serves)
        or any(map(_may_add_headless, commands)),
    )


def _may_add_headless(words: list[str]) -> bool:
    """Whether a command gives --headless, reads words from elsewhere, or starts Ray."""
    if words[:1] in (["."], ["source"]) or ("ray", "start") in pairwise(words):
        return True
    return not _READERS.isdisjoint(words) or any("--headless" in word for word in words)


def find_misplaced(script: Script, rank: int, size: int, head_address: str, master_port: int) -> Iterator[Issue]:
    """Report where the engine that the script starts itself is not this node's rank. `size`: of the cluster."""
    if script.passes_arguments_on or not script.serves:
        return
    if rank and not script.may_be_headless:
        reason = f"this node's rank is {rank}, and the `vllm serve` of engine.script has no --headless"
        yield _make_issue("script-headless", f"{reason}: the head would wait for ever")
    if not rank and all("headless" in serve for serve in script.serves):
        yield _make_issue("script-headless", "this node is the head, and engine.script starts vLLM with --headless")
    for flag, wanted in (
        ("node-rank", str(rank)),
        ("nnodes", str(size)),
        ("master-addr", head_address),
        ("master-port", str(master_port)),
    ):
        values = [serve.get(flag) for serve in script.serves]
        if all(value is not None and _values_differ(value, wanted) for value in values):
            yield _make_issue("script-rank", f"engine.script says --{flag} {values[0]}, this node needs {wanted}")


def _make_issue(rule: str, reason: str) -> Issue:
    return Issue(
        rule, True, "engine.script", reason, 'end the script with: exec "$@" (sparkd gives it the whole command)'
    )


def _values_differ(written: str, wanted: str) -> bool:
    """Whether the two are surely different addresses or numbers."""
    with suppress(ValueError):
        return ip_address(written) != ip_address(wanted)
    # A host name may resolve to any address.
    return written.isdecimal() and wanted.isdecimal() and written.lstrip("0") != wanted.lstrip("0")


def _split_commands(text: str) -> Iterator[list[str]]:
    """Words of each simple command, unquoted as in a shell; without comments."""
    for line in _join_lines(text):
        command: list[str] = []
        for word in line:
            if word and _PUNCTUATION.issuperset(word):
                yield command
                command = []
            else:
                command.append(word)
        yield command


def _join_lines(text: str) -> Iterator[list[str]]:
    """Words of each line, with lines joined at a backslash or an open quote."""
    joined = ""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        joined = f"{joined}\n{line}" if joined else line
        words = _split_words(joined) if len(joined) <= _LONGEST_JOINED else joined.split()
        if words is None and joined.count("\n") >= _MOST_JOINED_LINES:
            words = joined.split()
        if words is not None:
            yield words
            joined = ""
    yield joined.split()


def _split_words(line: str) -> list[str] | None:
    """Words as in a shell; None for an open quote."""
    # shlex would start a comment at a # inside a word, such as $# and x#y.
    lexer = shlex.shlex(_HASH_INSIDE_WORD.sub("\0", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return [word.replace("\0", "#") for word in lexer]
    except ValueError:
        return None


def _find_serve_arguments(words: list[str]) -> list[str] | None:
    """The words after `serve`; None for another command."""
    if words and words[0] in _MENTIONING:
        return None
    modules = (API_SERVER, "vllm.entrypoints.cli.main")
    for position, (program, word) in enumerate(pairwise(words), 2):
        if (program.rpartition("/")[2] == "vllm" and word == "serve") or (program == "-m" and word in modules):
            return words[position:]
    return None


def _read_assignments(words: list[str]) -> dict[str, str]:
    """Variables of `export A=b`, `A=b vllm serve` and `A=b`, which may be exported later; only plain text."""
    variables: dict[str, str] = {}
    for word in words[1:] if words[:1] == ["export"] else words:
        match = _ASSIGNMENT.fullmatch(word)
        if match is None:
            break
        if _keep_literal(match[2]) is not None:
            variables[match[1]] = match[2]
    return variables


def _keep_literal(value: str | None) -> str | None:
    """The text; None where the shell would expand it."""
    return None if value is None or "$" in value or "`" in value else value
