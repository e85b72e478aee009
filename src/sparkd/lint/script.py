"""A launch script of the user's own, as far as its text tells what it starts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from sparkd.lint.rules import Issue
from sparkd.lint.words import Flags, flags

_PASSED_ON = re.compile(r"\$(?:[@*]|\{[@*][^}]*\})")
_PUNCTUATION = frozenset("();<>|&")
_INNER_HASH = re.compile(r"(?<=[^\s();<>|&])#")
_TALK = ("echo", "printf", "grep", "pgrep", "pkill", ":")
"""Commands that name an engine and start none."""
_MOST_JOINED = 20
"""Lines that one open quote may join: a stray one must not swallow the rest."""
_READERS = frozenset(("cat", "eval", "mapfile", "read", "readarray", "xargs"))
"""Commands that bring words from elsewhere."""
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")


class Place(Struct, frozen=True):
    """What a rank must be told."""

    rank: int
    size: int
    head_address: str
    master_port: int


class Script(Struct, frozen=True):
    """`serves`: the flags of each `vllm serve` in it. What a variable gives has no value there."""

    serves: tuple[Flags, ...]
    env: Mapping[str, str]
    """Set as plain text."""
    passes_on: bool
    """Whether it hands on the words that sparkd gives it, which are the whole command."""
    may_be_headless: bool
    """It says --headless somewhere, reads words that may, or starts Ray, whose workers start no vLLM."""

    def told_by(self, env: Mapping[str, str]) -> Script:
        """With variables that are there before it begins: one of them may hold --headless."""
        return replace(self, may_be_headless=self.may_be_headless or any("--headless" in one for one in env.values()))


def read(text: str) -> Script:
    serves: list[Flags] = []
    env: dict[str, str] = {}
    passes_on = may_be_headless = False
    for words in _commands(text):
        passes_on |= any(_PASSED_ON.search(word) for word in words)
        may_be_headless |= words[:1] in (["."], ["source"]) or not _READERS.isdisjoint(words)
        may_be_headless |= ("ray", "start") in pairwise(words) or any("--headless" in word for word in words)
        env |= _exported(words)
        start = _after_serve(words)
        said = {flag: _known(value) for flag, value in flags(words[start:]).items()} if start else {}
        if start and "help" not in said:
            serves.append(said)
            may_be_headless |= "config" in said
    return Script(tuple(serves), env, passes_on, may_be_headless)


def misplaced(script: Script, place: Place) -> Iterator[Issue]:
    """Where the engine that the script starts itself would take another place than this node's."""
    if script.passes_on or not script.serves:
        return
    if place.rank and not script.may_be_headless:
        reason = f"this node's rank is {place.rank}, and the `vllm serve` of engine.script has no --headless"
        yield _blocked("script-headless", f"{reason}: the head would wait for ever")
    if not place.rank and all("headless" in serve for serve in script.serves):
        yield _blocked("script-headless", "this node is the head, and engine.script starts vLLM with --headless")
    for flag, wanted in (
        ("node-rank", str(place.rank)),
        ("nnodes", str(place.size)),
        ("master-addr", place.head_address),
        ("master-port", str(place.master_port)),
    ):
        said = [serve.get(flag) for serve in script.serves]
        if said and all(one is not None and _differ(one, wanted) for one in said):
            yield _blocked("script-rank", f"engine.script says --{flag} {said[0]}, this node needs {wanted}")


def _blocked(rule: str, reason: str) -> Issue:
    return Issue(
        rule, True, "engine.script", reason, 'end the script with: exec "$@" (sparkd gives it the whole command)'
    )


def _differ(said: str, wanted: str) -> bool:
    try:
        return ip_address(said) != ip_address(wanted)
    except ValueError:
        pass
    # The name of a host may mean any address.
    return said.isdecimal() and wanted.isdecimal() and said.lstrip("0") != wanted.lstrip("0")


def _commands(text: str) -> Iterator[list[str]]:
    """Words of each simple command, quotes taken off as a shell does; comments are left out."""
    for line in _lines(text):
        command: list[str] = []
        for word in _words(line):
            if word and _PUNCTUATION.issuperset(word):
                yield command
                command = []
            else:
                command.append(word)
        yield command


def _lines(text: str) -> Iterator[str]:
    """Lines; those that a backslash or an open quote joins are one."""
    held = ""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        held = f"{held}\n{line}" if held else line
        if _whole(held) or held.count("\n") >= _MOST_JOINED:
            yield held
            held = ""
    yield held


def _whole(text: str) -> bool:
    try:
        _split(text)
    except ValueError:
        return False
    return True


def _words(line: str) -> list[str]:
    try:
        return _split(line)
    except ValueError:  # a quote that nothing closes: a shell would not run it either
        return line.split()


def _split(line: str) -> list[str]:
    """Within a word, as in $# and x#y, a # begins no comment: shlex would see one there."""
    lexer = shlex.shlex(_INNER_HASH.sub("\0", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return [word.replace("\0", "#") for word in lexer]


def _after_serve(words: list[str]) -> int:
    """Position of the first word of vLLM's own; 0 where the command is none."""
    if words[:1] and words[0] in _TALK:
        return 0
    for position, word in enumerate(words[:-1]):
        if word.rpartition("/")[2] == "vllm" and words[position + 1] == "serve":
            return position + 2
        if word == "-m" and words[position + 1] in _MODULES:
            return position + 2
    return 0


def _exported(words: list[str]) -> dict[str, str]:
    """Of `export A=b` and `A=b vllm serve`; a variable that is set may be exported later."""
    found: dict[str, str] = {}
    for word in words[1:] if words[:1] == ["export"] else words:
        match = _ASSIGNED.fullmatch(word)
        if match is None:
            break
        if _known(match[2]) is not None:
            found[match[1]] = match[2]
    return found


def _known(value: str | None) -> str | None:
    """The text itself, unless the shell would put something else in its place."""
    return None if value is None or "$" in value or "`" in value else value
