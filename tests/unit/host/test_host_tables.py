"""The kernel's tables of addresses, mounts and listening sockets."""

from tests.tree import Tree

from sparkd.base.host import Host
from sparkd.base.host.disks import find_mount
from sparkd.base.host.sockets import Listener

FIB_TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.0.0.0/24 2 0 2
        +-- 10.0.0.0/30 2 0 2
           |-- 10.0.0.0
              /24 link UNICAST
           |-- 10.0.0.1
              /32 host LOCAL
        |-- 10.0.0.255
           /32 link BROADCAST
Local:
     |-- 127.0.0.1
        /32 host LOCAL
     |-- 10.0.0.1
        /32 host LOCAL
"""
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 501 1 0 100 0 0 10 0
   1: 0100000A:733D 0200000A:C350 01 00000000:00000000 00:00000000 00000000     0        0 502 1 0 100 0 0 10 0
   2: broken
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when
   0: 00000000000000000000000000000000:733D 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 \
00000000     0        0 601 1 0
   1: 00000000000000000000000001000000:1F41 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 \
00000000     0        0 602 1 0
"""


def test_own_addresses_are_the_local_leaves_and_no_others(tree: Tree) -> None:
    tree.file("/proc/net/fib_trie", FIB_TRIE)
    tree.file("/proc/net/if_inet6", "00000000000000000000000000000001 01 80 10 80       lo\n")
    assert Host(tree.root).addresses() == ("10.0.0.1", "127.0.0.1", "::1")


def test_a_kernel_without_ipv6_has_ipv4_addresses(tree: Tree) -> None:
    tree.file("/proc/net/fib_trie", FIB_TRIE)
    assert Host(tree.root).addresses() == ("10.0.0.1", "127.0.0.1")


def test_only_a_line_feed_ends_a_mount(tree: Tree) -> None:
    """The kernel escapes blanks, tabs and line feeds alone."""
    tree.file("/proc/self/mounts", "/dev/a / ext4 rw 0 0\nnas:/x /srv/\x0cx\\040\u2028y nfs4 ro 0 0\n")
    mount = find_mount(Host(tree.root).files, "/srv/\x0cx \u2028y")
    assert mount is not None
    assert mount.kind == "nfs4"


def test_only_listening_sockets_are_listeners(tree: Tree) -> None:
    tree.file("/proc/net/tcp", TCP)
    tree.file("/proc/net/tcp6", TCP6)
    assert Host(tree.root).listeners() == (
        Listener("127.0.0.1", 8000, 501),
        Listener("::", 29501, 601),
        Listener("::1", 8001, 602),
    )
