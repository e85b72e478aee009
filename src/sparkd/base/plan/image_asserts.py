"""The bash program that checks what a recipe asserts of its image, and what its log says of the image."""

import re
from collections.abc import Iterable
from shlex import quote

from sparkd.base.recipes.image import Lines

ASSERT_FAILED = 64
"""Exit code of the program, and of the launch script, where the image is not what the recipe needs."""
NOT_AS_NEEDED = "the image is not what the recipe needs"
"""Prefix of the log line of a failed assertion."""
SHOWN_COMMAND = 120
"""Characters of an assertion in that line."""
_COUNT_LINES = (
    # grep exits with 1 without a match, and with 2 on an unreadable file.
    'found=$(grep -c -e "$1" -- "$2") || test $? = 1 || found=unread; test "$found" = "$3" || '
    f'{{ echo "{NOT_AS_NEEDED}: lines of $2 that match $1: $found, and $3 needed" >&2; exit 1; }}'
)
"""Bash program: $1 is the pattern, $2 the file, $3 the number of lines."""
_LIST_PACKAGES = (
    "shopt -s nullglob; for one in "
    "/{usr,usr/local,opt/*,{,.}venv,*/{,.}venv}/lib/python3*/{site,dist}-packages/flashinfer_*.dist-info; "
    'do echo "$one"; done'
)
_FLASHINFER = re.compile(r"/flashinfer_(python|jit_cache)-([\w.+]{1,40})\.dist-info$", re.ASCII | re.MULTILINE)


def render_asserts(asserts: Iterable[str | Lines]) -> str:
    """A bash program that ends at the first assertion that fails; empty without assertions.

    Where all hold it prints which packages of FlashInfer the image has.
    """
    lines = [*map(_render_assert, asserts)]
    return "\n".join([*lines, _LIST_PACKAGES] if lines else [])


def _render_assert(assertion: str | Lines) -> str:
    if isinstance(assertion, str):
        message = quote(f"{NOT_AS_NEEDED}: {' '.join(assertion.split())[:SHOWN_COMMAND]}")
        # A command that was killed, such as by a lack of memory, says nothing about the image.
        failure = f"{{ code=$?; test $code -lt 128 || exit $code; echo {message} >&2; exit {ASSERT_FAILED}; }}"
        return f"bash -c -- {quote(assertion)} >/dev/null || {failure}"
    words = " ".join(quote(word) for word in (assertion.pattern, assertion.file, str(assertion.times)))
    return f"bash -c {quote(_COUNT_LINES)} count {words} || exit {ASSERT_FAILED}"


def find_fault(log: str) -> str:
    """The fault that the program of `render_asserts` found, by the end of its log.

    The line above a failed assertion is the last output of its command.
    """
    lines = [line for line in log.splitlines() if line.strip()]
    fault = max((number for number, line in enumerate(lines) if line.startswith(f"{NOT_AS_NEEDED}: ")), default=None)
    if fault is None:
        return lines[-1] if lines else "the check printed nothing"
    assertion = lines[fault].removeprefix(f"{NOT_AS_NEEDED}: ")
    return f"{lines[fault - 1]} ({assertion})" if fault else assertion


def find_unbuilt(log: str) -> str:
    """FlashInfer's version by the log of `render_asserts`, where the image lacks flashinfer-jit-cache; else empty.

    flashinfer-cubin does not help a GB10: 0.6.11 has kernels for 10.0 and 10.3 (flashinfer-ai/flashinfer issue 3294).
    """
    packages = dict(_FLASHINFER.findall(log))
    return "" if "jit_cache" in packages else packages.get("python", "")
