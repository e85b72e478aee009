"""The machine's own IP addresses, from the kernel's tables."""

from __future__ import annotations

from ipaddress import IPv6Address

from sparkd.host.files import Files


def read(files: Files) -> tuple[str, ...]:
    """Every address of every interface, loopback included, in canonical form; IPv4 first."""
    return (*_ipv4(files.text("/proc/net/fib_trie", limit=64 << 20)), *_ipv6(files))


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
    return tuple(str(IPv6Address(bytes.fromhex(line.split()[0]))) for line in lines if line.split())
