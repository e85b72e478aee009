"""A shared library of x86-64 whose functions never return, made without a compiler."""

import struct

PAUSE = b"\xb8\x22\x00\x00\x00\x0f\x05\xeb\xf7"
"""mov eax, SYS_pause; syscall; and again."""
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT = 4, 5, 6, 10, 11
HEADER_BYTES, PROGRAM_BYTES, SYMBOL_BYTES = 64, 56, 24
GLOBAL_FUNCTION, READ_WRITE, ALL = 0x12, 6, 7


def build(*names: str) -> bytes:
    """An ELF file that exports these functions (System V ABI, AMD64 supplement)."""
    text_at = HEADER_BYTES + 3 * PROGRAM_BYTES
    symbols_at = -(-(text_at + len(PAUSE)) // 8) * 8
    strings, symbols = b"\0", bytes(SYMBOL_BYTES)
    for name in names:
        symbols += struct.pack("<IBBHQQ", len(strings), GLOBAL_FUNCTION, 0, 1, text_at, len(PAUSE))
        strings += name.encode() + b"\0"
    hash_at = symbols_at + len(symbols)
    count = len(names) + 1  # one bucket, whose chain has all of them
    table = struct.pack(
        f"<III{count}I", 1, count, 1, *(number + 1 if number < count - 1 else 0 for number in range(count))
    )
    strings_at = hash_at + len(table)
    dynamic_at = -(-(strings_at + len(strings)) // 8) * 8
    tags = (
        (DT_HASH, hash_at),
        (DT_STRTAB, strings_at),
        (DT_SYMTAB, symbols_at),
        (DT_STRSZ, len(strings)),
        (DT_SYMENT, SYMBOL_BYTES),
        (0, 0),
    )
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    size = dynamic_at + len(dynamic)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, HEADER_BYTES, 0, 0, HEADER_BYTES, PROGRAM_BYTES, 3, 0, 0, 0
    )
    programs = b"".join(
        struct.pack("<IIQQQQQQ", kind, flags, at, at, at, length, length, align)
        for kind, flags, at, length, align in (
            (PT_LOAD, ALL, 0, size, 4096),
            (PT_DYNAMIC, READ_WRITE, dynamic_at, len(dynamic), 8),
            (PT_GNU_STACK, READ_WRITE, 0, 0, 16),
        )
    )
    parts = {
        0: header,
        HEADER_BYTES: programs,
        text_at: PAUSE,
        symbols_at: symbols,
        hash_at: table,
        strings_at: strings,
        dynamic_at: dynamic,
    }
    built = bytearray(size)
    for at, part in parts.items():
        built[at : at + len(part)] = part
    return bytes(built)
