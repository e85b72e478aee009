"""The flags of an image's own vLLM, queried from its parser in a container. The image's answer is untrusted input."""

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
"""The program that the image's Python runs; a file beside this one."""
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
_LONG_TEXT = re.compile(r'"[^"]{201,}"')
"""Texts are shown in sentences and in the journal. The longest of vLLM 0.32 has 38 characters."""
_FLAG_OF_ALL = "max-model-len"
"""Every build of vLLM has this flag: a table without it is not vLLM's."""


def render_query() -> str:
    """A bash program that prints the table. It always succeeds: an image without a vLLM in Python may still serve."""
    program = get_data(__package__, PROGRAM) or b""
    variables = "VLLM_NO_USAGE_STATS=1 TORCHDYNAMO_DISABLE=1 HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR"
    # The first line of the script `vllm` names its Python, perhaps of a virtual environment. stderr is dropped: what
    # vLLM writes there at its import would push the output of the asserts out of the log.
    return (
        'python=$(sed -n "1s/^#! *//p" "$(command -v vllm)" 2>/dev/null | tr -d "\\0")\n'
        f"{variables} timeout -k {KILL_SECONDS} {QUERY_SECONDS} ${{python:-python3}} "
        f"-c {quote(program.decode())} 2>/dev/null || true"
    )


def parse_answer(log: str, image: str) -> FlagTable:
    """EMPTY where the log has no usable answer."""
    packed = "".join(_MARKED.findall(log))
    try:
        decompressor = zlib.decompressobj()
        text = decompressor.decompress(base64.b85decode(packed), MOST_BYTES)
        if not decompressor.eof:
            return EMPTY
        table = replace(msgspec.json.decode(text, type=prepared(FlagTable)), image=image, unanswered="")
    except (ValueError, zlib.error, RecursionError):
        return EMPTY
    name_count = max(len(table.flags), len(table.variables), sum(map(len, table.fields.values())))
    return table if name_count <= MOST_NAMES and _is_plain(table) and _FLAG_OF_ALL in table.by_name else EMPTY


def _is_plain(table: FlagTable) -> bool:
    # JSON escapes all that is not ASCII, and most that is not printable.
    document = json.dumps(msgspec.to_builtins(table))
    return "\\" not in document and document.isprintable() and not _LONG_TEXT.search(document)
