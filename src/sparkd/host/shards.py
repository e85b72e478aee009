"""The weight files of a model, and whether a safetensors file is complete.

The format: 8 bytes, little-endian, with the header's length; the header, JSON, with the end of each tensor; tensors,
to the last byte of the file. Its library (safetensors 0.8) refuses a file that is shorter or longer.
"""

from __future__ import annotations

import os
import re
import stat

from sparkd.host.files import Files, Kind
from sparkd.host.shm import File
from sparkd.host.weights import WEIGHTS

HEADER_LIMIT_BYTES = 100_000_000
LFS_POINTER = b"version https://git-lfs"
"""Start of the placeholder that git keeps until git-lfs has fetched the file."""
POINTER = "is a git-lfs pointer, not the file"

Shard = File

_LENGTH_BYTES = 8
_TAIL_BYTES = 4096
"""Of a header, whose last entry is usually the tensor that ends last. An entry takes some 100 bytes."""
_END = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d{1,18}\s*,\s*(\d{1,18})\s*\]')
_DIGITS = re.compile(r"(\d+)")


def list_shards(files: Files, folder: str) -> tuple[Shard, ...]:
    """In vLLM's load order: by name, numbers as numbers. Raises OSError where the folder is unreadable."""
    found: dict[tuple[int, int], Shard] = {}
    for name in sorted(files.names(folder), key=_order):
        if not name.endswith(WEIGHTS):
            continue
        path = f"{folder}/{name}"
        try:
            facts = files.stat(path)
        except FileNotFoundError:
            continue
        if facts.kind is Kind.FILE:
            real = os.path.realpath(files.real(path)).rpartition("/")[2]
            shard = Shard(path, real, facts.device, facts.inode, facts.size_bytes)
            found.setdefault(shard.identity, shard)
    return tuple(found.values())


def _order(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name)]


def find_flaw(files: Files, path: str) -> tuple[int, str]:
    """Size and fault of a safetensors file: empty where it is complete. Raises OSError.

    Reads 4 KiB of a complete file that the library wrote, and at most the header of any other.
    """
    with files.opened(path) as fd:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return 0, "is no file"
        return found.st_size, _wrong(fd, found.st_size)


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
    end = 0
    for tail_bytes in (min(header_bytes, _TAIL_BYTES), header_bytes):
        tail = os.pread(fd, tail_bytes, _LENGTH_BYTES + header_bytes - tail_bytes)
        end = max(map(int, _END.findall(tail)), default=0)
        if end == data_bytes:
            return ""
    whole = _LENGTH_BYTES + header_bytes + end
    return f"is cut off: {size} of {whole} bytes" if size < whole else f"has {size} bytes, its header says {whole}"
