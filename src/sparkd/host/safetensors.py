"""One safetensors file: is it whole? Told by its length and its header, without reading a tensor.

The format: 8 bytes, little-endian, with the header's length; the header, JSON, which says where each tensor ends; the
tensors, to the last byte of the file. Its own library (safetensors 0.8) refuses a file that is shorter or longer.
"""

from __future__ import annotations

import os
import re
import stat

from msgspec import Struct

from sparkd.host.files import Files

HEADER_LIMIT_BYTES = 100_000_000
"""The library's own limit."""
LFS_POINTER = b"version https://git-lfs"
"""How the text begins that git has in a large file's place until git-lfs has fetched it."""

POINTER = "is a git-lfs pointer, not the file"

_LENGTH_BYTES = 8
_TAIL_BYTES = 4096
"""Of a header: the tensor that its writers name last is the one that ends last. A tensor takes some 100 bytes."""
_END = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d{1,18}\s*,\s*(\d{1,18})\s*\]')


class Shard(Struct, frozen=True):
    size_bytes: int
    wrong: str = ""
    """What is wrong with the file; empty where it is whole."""


def look(files: Files, path: str) -> Shard:
    """Raises OSError. Reads 4 KiB of a whole file that the library wrote, and at most the header of any other."""
    fd = os.open(files.real(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return Shard(0, "is no file")
        return Shard(found.st_size, _wrong(fd, found.st_size))
    finally:
        os.close(fd)


def _wrong(fd: int, size: int) -> str:
    if not size:
        return "is empty"
    first = os.pread(fd, len(LFS_POINTER), 0)
    if first == LFS_POINTER:
        return POINTER
    header_bytes = int.from_bytes(first[:_LENGTH_BYTES], "little")
    if not 2 <= header_bytes <= HEADER_LIMIT_BYTES or first[_LENGTH_BYTES:][:1] not in (b"{", b""):
        return "is not in the safetensors format"
    data_bytes = size - _LENGTH_BYTES - header_bytes
    if data_bytes < 0:
        return "is cut off in its header"
    tail_bytes = min(header_bytes, _TAIL_BYTES)
    if _end(os.pread(fd, tail_bytes, _LENGTH_BYTES + header_bytes - tail_bytes)) == data_bytes:
        return ""
    end = _end(os.pread(fd, header_bytes, _LENGTH_BYTES))
    if end == data_bytes:
        return ""
    whole = _LENGTH_BYTES + header_bytes + end
    return f"is cut off: {size} of {whole} bytes" if size < whole else f"has {size} bytes, its header says {whole}"


def _end(header: bytes) -> int:
    """Where the last of its tensors ends; 0 where it has none."""
    return max(map(int, _END.findall(header)), default=0)
