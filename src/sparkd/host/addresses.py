"""The machine's own IP addresses, from the kernel's tables."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

from sparkd.host.files import Files

OPTIMISTIC, TENTATIVE = 0x04, 0x40
"""IFA_F_OPTIMISTIC and IFA_F_TENTATIVE of linux/if_addr.h."""


def read(files: Files) -> tuple[str, ...]:
    """Every address of every interface, loopback included, in canonical form; IPv4 first."""
    return (*_ipv4(files.text("/proc/net/fib_trie", limit=64 << 20)), *_ipv6(files))


def canonical(address: str) -> str:
    """The one way to write an address, to compare by: `::ffff:10.0.0.1` is 10.0.0.1, and no zone is named.

    Raises ValueError where it is none.
    """
    parsed = ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return str(mapped or parsed)


def _ipv4(trie: str) -> tuple[str, ...]:
    """A leaf `|-- 10.0.0.1` is followed by what it is: `/32 host LOCAL` is the machine's own."""
    found: dict[str, None] = {}
    leaf = ""
    for line in trie.splitlines():
        words = line.split()
        if words[:1] == ["|--"] and len(words) == 2:
            leaf = words[1]
        elif words == ["/32", "host", "LOCAL"] and leaf:
            found[leaf] = None
    return tuple(found)


def _ipv6(files: Files) -> tuple[str, ...]:
    try:
        lines = files.text("/proc/net/if_inet6").splitlines()
    except FileNotFoundError:  # a kernel without IPv6
        return ()
    rows = [line.split() for line in lines]
    return tuple(str(IPv6Address(bytes.fromhex(row[0]))) for row in rows if len(row) == 6 and not _tentative(row))


def _tentative(row: list[str]) -> bool:
    """Whether the kernel still asks around for who else has the address: until then nobody can listen on it."""
    flags = int(row[4], 16)
    return bool(flags & TENTATIVE) and not flags & OPTIMISTIC
