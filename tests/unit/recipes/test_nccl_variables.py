"""Variables of NCCL in a recipe, read as NCCL reads them."""

import ctypes

from sparkd.base.recipes.additions import parse_nccl_number, why_tcp


def test_numbers_are_read_as_c_reads_them() -> None:
    """Against strtoll of this machine's libc, with base 0 as NCCL calls it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.strtoll.restype = ctypes.c_longlong
    odd = ("3", " 3 ", "+3", "-1", "03", "010", "08", "0", "0x", "0x3", "0XfF", "0xg", "3abc", "7.5", "9" * 18, "\t12")
    for text in (*odd, "-0x10", "1e3", "9223372036854775807"):
        assert parse_nccl_number(text) == libc.strtoll(text.encode(), None, 0), text
    for text in ("", " ", "--1", "abc", "٣", "9223372036854775808", "9" * 400, "0x" + "f" * 40):
        assert parse_nccl_number(text) is None, text


def test_what_sends_nccl_by_tcp_is_read_as_nccl_does() -> None:
    for value in ("1", " 1", "0x1"):
        assert why_tcp({"NCCL_IB_DISABLE": value}).startswith("NCCL_IB_DISABLE is set")
    for value in ("Socket", "socket"):
        assert why_tcp({"NCCL_NET": value}).startswith("NCCL_NET is Socket")
    for env in ({}, {"NCCL_NET": "IB"}, *({"NCCL_IB_DISABLE": value} for value in ("", "0", "true", "00"))):
        assert why_tcp(env) == ""
