"""The GPU code in a shared object: all that one kind of GPU never loads is overwritten with zeros, which pack well.

The layout is that of cuobjdump's input: a header of 16 bytes for each container, then its parts with headers of their
own. Read off files of CUDA 13.
"""

from __future__ import annotations

import struct
from pathlib import Path

_CONTAINER = struct.Struct("<IHHQ")
"""Magic, version, bytes of this header, bytes of all parts."""
_MAGIC, _VERSION = 0xBA55ED50, 1
_PART = struct.Struct("<HHIQ")
"""Kind, version, bytes of this header, bytes of the code."""
_ARCHITECTURE_OFFSET = 28
_MACHINE_CODE = 2
"""The other kind, 1, is PTX."""


def keep_only(path: Path, architecture: int) -> tuple[int, int]:
    """Rewrites the file. `architecture`: 90 for compute capability 9.0. Returns bytes of code kept and cleared."""
    content = bytearray(path.read_bytes())
    position = kept = cleared = 0
    magic = _MAGIC.to_bytes(4, "little")
    while (start := content.find(magic, position)) >= 0:
        if start + _CONTAINER.size > len(content):
            break
        _, version, header_bytes, size = _CONTAINER.unpack_from(content, start)
        position, end = start + _CONTAINER.size, start + _CONTAINER.size + size
        if (version, header_bytes) != (_VERSION, _CONTAINER.size) or end > len(content):
            position = start + 4
            continue
        while position < end:
            kind, _, header_bytes, size = _PART.unpack_from(content, position)
            (built_for,) = struct.unpack_from("<I", content, position + _ARCHITECTURE_OFFSET)
            code, position = position + header_bytes, position + header_bytes + size
            if kind == _MACHINE_CODE and built_for == architecture:
                kept += size
            else:
                content[code:position] = bytes(size)
                cleared += size
    path.write_bytes(content)
    return kept, cleared
