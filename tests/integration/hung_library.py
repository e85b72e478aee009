"""A shared library of x86-64 whose functions never return, made without a compiler."""

import struct

PAUSE = b"\xb8\x22\x00\x00\x00\x0f\x05\xeb\xf7"
"""mov eax, SYS_pause; syscall; and again."""
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT = 4, 5, 6, 10, 11
HEADER_BYTES, PROGRAM_BYTES, SYMBOL_BYTES = 64, 56, 24
GLOBAL_FUNCTION, READ_WRITE, ALL = 0x12, 6, 7


def align(offset: int) -> int:
    """The next multiple of 8."""
    return -(-offset // 8) * 8


def build(*names: str) -> bytes:
    """An ELF file that exports these functions (System V ABI, AMD64 supplement)."""
    text_at = HEADER_BYTES + 3 * PROGRAM_BYTES
    symbols_at = align(text_at + len(PAUSE))
    strings, symbols = b"\0", bytes(SYMBOL_BYTES)
    for name in names:
        # st_name, st_info, st_other, st_shndx (any section but none: the symbol is defined), st_value, st_size
        symbols += struct.pack("<IBBHQQ", len(strings), GLOBAL_FUNCTION, 0, 1, text_at, len(PAUSE))
        strings += name.encode() + b"\0"
    hash_at = symbols_at + len(symbols)
    count = len(names) + 1  # the first symbol is undefined
    chain = [*range(1, count), 0]  # the index of the next symbol; 0 ends it
    # nbucket, nchain, the only bucket, which begins at symbol 1, and the chain
    table = struct.pack(f"<III{count}I", 1, count, 1, *chain)
    strings_at = hash_at + len(table)
    dynamic_at = align(strings_at + len(strings))
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
    # e_ident: 64 bits, little-endian, version 1. Then e_type (ET_DYN), e_machine (EM_X86_64), e_version, e_entry,
    # e_phoff, e_shoff, e_flags, e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, HEADER_BYTES, 0, 0, HEADER_BYTES, PROGRAM_BYTES, 3, 0, 0, 0
    )
    programs = b"".join(
        # p_type, p_flags, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align
        struct.pack("<IIQQQQQQ", kind, flags, at, at, at, length, length, alignment)
        for kind, flags, at, length, alignment in (
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
