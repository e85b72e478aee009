"""The table of flags that an image's own vLLM has, by its own parser. The image's answer is untrusted input."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pkgutil import get_data
from shlex import quote

import msgspec
from msgspec.structs import replace

from sparkd.base.lib import prepared
from sparkd.base.vllm.flag import FlagTable

PROGRAM = "parser_program.py"
"""Beside this file."""
QUERY_SECONDS = 120
"""vLLM 0.32 took 7 s of one core's time; its first import also reads some GB from disk."""
KILL_SECONDS = 5
MOST_BYTES = 1 << 18
"""The table of vLLM 0.32 has 54 KB of JSON. As a state file it takes up to six times as much."""
MOST_NAMES = 2000
"""Limit for flags, for variables and for keys of JSON: names are compared with each. vLLM 0.32: 316, 316, 242."""
EMPTY = FlagTable("", (), {})
"""The table of an image that gave no answer."""
_MARKED = re.compile(r"^sparkd-vllm-parser:(\S{1,8000})\r?$", re.MULTILINE)
_LONG = re.compile(r'"[^"]{201,}"')
"""People see the texts, in sentences and in the journal. The longest of vLLM 0.32 has 38 characters."""
_KNOWN = "max-model-len"
"""Each build has this flag, or what answered is no vLLM."""


def render_query() -> str:
    """A bash program that prints the table. It always succeeds: an image without a vLLM in Python may still serve."""
    program = get_data(__package__, PROGRAM) or b""
    variables = "VLLM_NO_USAGE_STATS=1 TORCHDYNAMO_DISABLE=1 HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR"
    # The python of the program `vllm`, which may be one of a virtual environment. What vLLM writes at its import would
    # push out of the log what the asserts have written.
    return (
        'python=$(sed -n "1s/^#! *//p" "$(command -v vllm)" 2>/dev/null | tr -d "\\0")\n'
        f"{variables} timeout -k {KILL_SECONDS} {QUERY_SECONDS} ${{python:-python3}} "
        f"-c {quote(program.decode())} 2>/dev/null || true"
    )


def parse_answer(log: str, image: str) -> FlagTable:
    """EMPTY where the log has no usable answer."""
    packed = "".join(_MARKED.findall(log))
    try:
        inflate = zlib.decompressobj()
        text = inflate.decompress(base64.b85decode(packed), MOST_BYTES)
        if not inflate.eof:
            return EMPTY
        table = replace(msgspec.json.decode(text, type=prepared(FlagTable)), image=image, unanswered="")
    except (ValueError, zlib.error, RecursionError):
        return EMPTY
    names = max(len(table.flags), len(table.variables), sum(map(len, table.fields.values())))
    return table if names <= MOST_NAMES and _is_plain(table) and _KNOWN in table.by_name else EMPTY


def _is_plain(table: FlagTable) -> bool:
    # JSON escapes all that is not ASCII, and most that is not printable.
    words = json.dumps(msgspec.to_builtins(table))
    return "\\" not in words and words.isprintable() and not _LONG.search(words)
