"""What the bundles for a GPU leave out of a shared object."""

import struct
from pathlib import Path

from tests.gpu.fat_binary import keep_only

MACHINE_CODE, PTX = 2, 1


def part(kind: int, architecture: int, code: bytes) -> bytes:
    header = bytearray(64)
    struct.pack_into("<HHIQ", header, 0, kind, 0x101, len(header), len(code))
    struct.pack_into("<I", header, 28, architecture)
    return bytes(header) + code


def test_only_the_machine_code_of_one_architecture_is_kept_and_nothing_moves(tmp_path: Path) -> None:
    parts = part(MACHINE_CODE, 90, b"A" * 32) + part(MACHINE_CODE, 80, b"B" * 16) + part(PTX, 90, b"C" * 8)
    library, chance = tmp_path / "library.so", struct.pack("<IHHQ", 0xBA55ED50, 7, 7, 1 << 40)
    whole = b"code" + chance + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(parts)) + parts + b"more"
    library.write_bytes(whole)
    assert keep_only(library, 90) == (32, 24)
    assert library.read_bytes() == whole.replace(b"B" * 16, bytes(16)).replace(b"C" * 8, bytes(8))
