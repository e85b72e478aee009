"""No line makes a regular expression of sparkd slow: the interpreter's lock is held while it searches."""

import ast
import importlib
import pkgutil
import re
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from tests import hostile

import sparkd
from sparkd.base.lib.redactor import Redactor
from sparkd.base.vllm.log_lines import LINE_LIMIT_BYTES, LogForwarder

LIMIT_SECONDS = 0.03
"""Under 9 ms each on a core of their own (4 ms on a faster one); the other thread of the core and other tests take
more than half of it. What is quadratic takes 50 ms and more."""
SOURCES = {path: path.read_text() for path in Path(sparkd.__path__[0]).rglob("*.py")}
READERS = (
    *("sparkd.agent.daemon", "sparkd.agent.engine", "sparkd.agent.cluster", "sparkd.agent.status"),
    *("sparkd.agent.preflight.checks.kernel_log", "sparkd.base.lib", "sparkd.base.cluster", "sparkd.base.status"),
    *(
        "sparkd.base.host.kernel",
        "sparkd.base.host.oom_kills",
        "sparkd.base.vllm.known_errors",
        "sparkd.base.vllm.counters",
        "sparkd.base.vllm.log_lines",
    ),
    *("sparkd.tools.cli.status", "sparkd.tools.measure.traffic", "sparkd.tools.setup.join"),
    "sparkd.tools.importers.download",
)
"""What reads the engine's log and answers, the kernel's log, or other nodes' text."""
PARTS = 4
"""For several workers."""
SEARCHES = {"match", "fullmatch", "search", "findall", "finditer", "sub", "split"}


class Used(NamedTuple):
    pattern: re.Pattern[str] | re.Pattern[bytes]
    anchored: bool
    """It is tried at the beginning of a line only."""


def patterns_in(value: object) -> Iterator[re.Pattern[str] | re.Pattern[bytes]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list | frozenset):
        for one in value:
            yield from patterns_in(one)
    elif isinstance(value, dict):
        yield from patterns_in(list(value.values()))


@cache
def searches(text: str) -> dict[str, set[str]]:
    """Methods that search, by the name of what they are called on."""
    calls = re.findall(rf"\b(\w+)\.({'|'.join(SEARCHES)})\b", text)
    return {name: {method for called_on, method in calls if called_on == name} for name, _ in calls}


def is_anchored(name: str, text: str) -> bool:
    """Whether all of its uses are at the beginning; one of a table is called `pattern` where it is used."""
    methods = searches(text).get(name, set())
    return bool(methods) and methods <= {"match", "fullmatch"}


def called(text: str) -> Iterator[Used]:
    """Of calls such as `re.search("...", text)`."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(
                func=ast.Attribute(ast.Name("re"), method), args=[ast.Constant(str() | bytes() as raw), *more]
            ):
                if method in SEARCHES:
                    flags = re.MULTILINE if any("MULTILINE" in ast.unparse(one) for one in more) else 0
                    yield Used(re.compile(raw, flags), method in ("match", "fullmatch"))


@cache
def all_patterns() -> list[Used]:
    return list(dict.fromkeys(_patterns()))


def _patterns() -> Iterator[Used]:
    """Those of each reading module, of its calls, and of the objects that read the engine's log."""
    everything = "\n".join(SOURCES.values())
    for module_info in pkgutil.walk_packages(sparkd.__path__, "sparkd."):
        if not module_info.name.startswith(READERS):
            continue
        module = importlib.import_module(module_info.name)
        text = SOURCES[Path(str(module.__file__))]
        for name, value in vars(module).items():
            for pattern in patterns_in(value):
                direct = isinstance(value, re.Pattern)
                in_other_modules = direct and is_anchored(name, everything)
                anchored = is_anchored(name if direct else "pattern", text) or in_other_modules
                yield Used(pattern, anchored)
        yield from called(text)
    for reader in (LogForwarder(Redactor(), "127.0.0.1"), Redactor(("s3cret-value", "hunter22"))):
        for name, value in vars(reader).items():
            yield from (Used(pattern, is_anchored(name, everything)) for pattern in patterns_in(value))


def seconds(used: Used, line: str, limit: float) -> float:
    """CPU time; the shortest of five tries where it is too long."""
    data = line if isinstance(used.pattern.pattern, str) else line.encode("latin-1", "replace")
    tries = []
    for _ in range(5):
        began = time.thread_time()
        (used.pattern.match if used.anchored else used.pattern.search)(data)  # type: ignore[arg-type]  # of its own kind
        tries.append(time.thread_time() - began)
        if tries[-1] < limit:
            break
    return min(tries)


def slow_lines(used: Used, length: int) -> Iterator[str]:
    """A search that grows by the square takes 64 times as long as one of an eighth, and a linear one 8 times."""
    for part, line in zip(hostile.lines(used.pattern, length // 8), hostile.lines(used.pattern, length), strict=True):
        if seconds(used, part, LIMIT_SECONDS / 64) < LIMIT_SECONDS / 64:
            continue
        if (took := seconds(used, line, LIMIT_SECONDS)) >= LIMIT_SECONDS:
            yield f"{took:.3f} s for {line[:80]!r}... of {used.pattern.pattern!r}"


@pytest.mark.parametrize("part", range(PARTS))
def test_no_line_of_16_kib_takes_a_pattern_long(part: int) -> None:
    for used in all_patterns()[part::PARTS]:
        assert not next(slow_lines(used, LINE_LIMIT_BYTES), "")


def test_the_lines_find_a_slow_pattern() -> None:
    """The pattern that once took 16 s for 4,961 characters, and others that are at least quadratic."""
    for slow, length in (
        (r"^Capturing CUDA graphs.*?: +\d+%.*?(\d+)/(\d+)", 8000),
        (r"\d+%\|.*\[\d\d:\d\d", LINE_LIMIT_BYTES),
        (r"/ray/session_\S+/logs/raylet\.", 2 * LINE_LIMIT_BYTES),
    ):
        assert next(slow_lines(Used(re.compile(slow), anchored=False), length), "")
