"""Files in the safetensors format: whether one is complete, and the sizes of its tensors.

Such a file is: 8 bytes, little-endian, with the header's length; the header, JSON, with the end of each tensor;
tensors, to the last byte. Its library (safetensors 0.8) refuses a file that is shorter or longer.
"""

import os
import re
import stat
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Struct

from sparkd.base.host.files import Files
from sparkd.base.lib import prepared

LFS_POINTER = b"version https://git-lfs"
"""Start of the placeholder that git keeps until git-lfs has fetched the file."""
LFS_FAULT = "is a git-lfs pointer, not the file"

_HEADER_LIMIT_BYTES = 100_000_000
"""The library's own limit."""
_LENGTH_BYTES = 8
_TAIL_BYTES = 4096
"""End of a header, whose last entry is usually the tensor that ends last. An entry takes some 100 bytes."""
_END = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d{1,18}\s*,\s*(\d{1,18})\s*\]')


def find_fault(files: Files, path: str) -> tuple[int, str]:
    """Size and fault of a safetensors file; the fault is empty where the file is complete. Raises OSError.

    Reads 4 KiB of a complete file that the library wrote, and at most the header of any other.
    """
    with files.opened(path) as fd:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return 0, "is no file"
        return status.st_size, _check_content(fd, status.st_size)


def _check_content(fd: int, size: int) -> str:
    """The fault of an open safetensors file of `size` bytes; empty where it is complete."""
    if not size:
        return "is empty"
    first = os.pread(fd, len(LFS_POINTER), 0)
    if first == LFS_POINTER:
        return LFS_FAULT
    header_bytes = int.from_bytes(first[:_LENGTH_BYTES], "little")
    if not 2 <= header_bytes <= _HEADER_LIMIT_BYTES or first[_LENGTH_BYTES:][:1] not in (b"{", b""):
        return "is not in the safetensors format"
    data_bytes = size - _LENGTH_BYTES - header_bytes
    if data_bytes < 0:
        return "is cut off in its header"
    data_end = 0  # of the tensor that ends last
    for tail_bytes in (min(header_bytes, _TAIL_BYTES), header_bytes):
        tail = os.pread(fd, tail_bytes, _LENGTH_BYTES + header_bytes - tail_bytes)
        data_end = max(map(int, _END.findall(tail)), default=0)
        if data_end == data_bytes:
            return ""
    whole_bytes = _LENGTH_BYTES + header_bytes + data_end
    return (
        f"is cut off: {size} of {whole_bytes} bytes"
        if size < whole_bytes
        else f"has {size} bytes, its header says {whole_bytes}"
    )


_Offset = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class _Tensor(Struct):
    dtype: str
    data_offsets: tuple[_Offset, _Offset]


def read_sizes(files: Files, paths: Iterable[str]) -> dict[str, int]:
    """The bytes of each tensor once it is loaded, by the headers of safetensors files: 8 MB in all for 66,000 tensors.

    vLLM loads tensors of 32 and 64 bits as 16 bits. Raises OSError, ValueError.
    """
    shrinks_by = {"F32": 2, "F64": 4}
    sizes: dict[str, int] = {}
    for path in paths:
        with files.opened(path) as fd:
            header_bytes = int.from_bytes(os.pread(fd, _LENGTH_BYTES, 0), "little")
            # Twice the bytes of such a model, and fifteen times its tensors: a user's file may claim any number.
            if header_bytes > 16 << 20 or len(sizes) > 1_000_000:
                raise ValueError(f"{path} has a header of {header_bytes} bytes, after {len(sizes)} tensors")
            content = os.pread(fd, header_bytes, _LENGTH_BYTES)
        try:
            for name, raw_tensor in msgspec.json.decode(content, type=dict[str, msgspec.Raw]).items():
                if name != "__metadata__":
                    tensor = msgspec.json.decode(raw_tensor, type=prepared(_Tensor))
                    begin, end = tensor.data_offsets
                    sizes[name] = sizes.get(name, 0) + max(0, end - begin) // shrinks_by.get(tensor.dtype, 1)
        except RecursionError:
            raise ValueError(f"{path} has a header of another form") from None
    return sizes
