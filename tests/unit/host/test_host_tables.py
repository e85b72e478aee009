"""What the kernel's own tables are read as."""

import fcntl

import pytest
from tests.tree import Tree

from sparkd.base.host import Host
from sparkd.base.host.disks import find_mount
from sparkd.base.host.meminfo import read_meminfo
from sparkd.base.host.owner import NodeOwner
from sparkd.base.host.sockets import Holder, Listener
from sparkd.base.lib.text import sanitize

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


def test_meminfo_is_given_in_bytes_and_what_is_missing_is_zero(tree: Tree) -> None:
    tree.file("/proc/meminfo", "MemTotal: 4 kB\nMemFree: 2 kB\nMemAvailable:       3 kB\nHugePages_Total: 0\n")
    info = Host(tree.root).meminfo()
    assert (info.total_bytes, info.free_bytes, info.available_bytes, info.cached_bytes) == (4096, 2048, 3072, 0)


def test_meminfo_without_the_figures_that_decide_is_an_error(tree: Tree) -> None:
    tree.file("/proc/meminfo", "MemTotal: 4 kB\nMemFree: 2 kB\n")
    with pytest.raises(ValueError, match="MemAvailable"):
        Host(tree.root).meminfo()


def test_memory_in_no_counter_is_the_drivers(tree: Tree) -> None:
    tree.meminfo(MemTotal=120, MemFree=10, MemAvailable=12, Cached=3, AnonPages=4, Slab=9, SReclaimable=1, SUnreclaim=2)
    assert Host(tree.root).meminfo().unaccounted_bytes == 100 << 30


@pytest.mark.parametrize(
    ("nr_zspages", "zswap_gib", "compressed_gib"),
    [
        pytest.param(30 << 18, 0, 30, id="zram"),
        pytest.param(30 << 18, 20, 30, id="zram, and zswap in the same allocator"),
        pytest.param(0, 20, 20, id="zswap in an allocator of its own"),
        pytest.param(None, 20, 20, id="a kernel without zsmalloc"),
    ],
)
def test_compressed_swap_is_not_the_drivers(
    tree: Tree, nr_zspages: int | None, zswap_gib: int, compressed_gib: int
) -> None:
    tree.meminfo(MemTotal=120, MemFree=20, MemAvailable=20, Zswap=zswap_gib)
    if nr_zspages is not None:
        tree.file("/proc/vmstat", f"nr_bounce 0\nnr_zspages {nr_zspages}\nnr_free_cma 0\n")
    info = read_meminfo(Host(tree.root).files, page_bytes=4096)
    assert (info.other_counted_bytes, info.unaccounted_bytes) == (compressed_gib << 30, (100 - compressed_gib) << 30)


@pytest.mark.parametrize(
    ("anonymous_gib", "shared_gib", "locked_gib", "unmapped_gib"),
    [
        pytest.param(30, 0, 0, 10, id="not mapped"),
        pytest.param(40, 0, 0, 0, id="mapped"),
        pytest.param(36, 0, 0, 4, id="mapped in part"),
        pytest.param(20, 10, 0, 10, id="shared memory is in the same lists"),
        pytest.param(40, 5, 5, 0, id="locked shared memory is in a list of its own"),
        pytest.param(10, 0, 0, 30, id="more than the swap cache: given to a pipe, and unmapped"),
        pytest.param(50, 0, 0, 0, id="pages on their way to a list"),
    ],
)
def test_pages_of_processes_that_none_maps_are_not_the_drivers(
    tree: Tree, anonymous_gib: int, shared_gib: int, locked_gib: int, unmapped_gib: int
) -> None:
    """Of it AnonPages has what is mapped, and Cached none."""
    lists = {"Active(anon)": 25, "Inactive(anon)": 15, "Unevictable": locked_gib}
    counters = {"AnonPages": anonymous_gib, "Shmem": shared_gib, "SwapCached": 10, **lists}
    tree.meminfo(MemTotal=120, MemFree=20, MemAvailable=20, **counters)
    assert Host(tree.root).meminfo().other_counted_bytes == unmapped_gib << 30


def test_locked_files_are_mapped_though_no_list_of_files_has_them(tree: Tree) -> None:
    counters = {"AnonPages": 40, "Active(anon)": 40, "Unevictable": 30, "Cached": 50, "Inactive(file)": 20}
    tree.meminfo(MemTotal=120, MemFree=20, MemAvailable=20, **counters)
    assert Host(tree.root).meminfo().other_counted_bytes == 0


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


def test_the_holders_of_a_port_have_its_socket_open(tree: Tree) -> None:
    tree.listening((29501, 77))
    tree.process(10, "VLLM::Worker_TP", opened=("/dev/null", "socket:[77]"))
    tree.process(11, "VLLM::Worker_TP", opened=("socket:[77]", "socket:[77]"))
    tree.process(12, "other", opened=("socket:[770]", "/tmp/socket:[77]x"))
    host = Host(tree.root)
    listeners = host.listeners()
    assert host.port_holders(host.processes(), listeners) == (Holder(listeners[0], 10), Holder(listeners[0], 11))


UNKNOWN = NodeOwner(0, "", "")
ACCOUNT = '{"pid": 42, "command": "sparkd run --role head", "invocation": "abc", "start_time": 100}'


@pytest.mark.parametrize(("how", "owner"), [(fcntl.LOCK_EX, UNKNOWN), (fcntl.LOCK_SH, None), (fcntl.LOCK_UN, None)])
def test_who_holds_the_lock_without_an_account_is_an_unknown_owner(
    tree: Tree, how: int, owner: NodeOwner | None
) -> None:
    """Shared, it is another look's. The kernel's table of locks is of no use: any user can make it too large."""
    tree.file("/proc/locks", "1: POSIX  ADVISORY  WRITE 43 fe:00:1 0 EOF\n" * 30_000)
    with tree.lock_held(how):
        assert Host(tree.root).owner() == owner


def test_the_owner_is_the_living_process_that_the_account_names(tree: Tree) -> None:
    tree.process(42, "python3", start_time=100)
    tree.file("/run/sparkd/owner.json", ACCOUNT)
    owner = Host(tree.root).owner()
    assert owner == NodeOwner(42, "sparkd run --role head", "abc", 100)


@pytest.mark.parametrize("start_time", [None, 99])
def test_the_account_of_an_owner_that_has_ended_is_never_quoted(tree: Tree, start_time: int | None) -> None:
    tree.file("/run/sparkd/owner.json", ACCOUNT)
    if start_time is not None:  # another process has its pid
        tree.process(42, "python3", start_time=start_time)
    with tree.lock_held():
        assert Host(tree.root).owner() == UNKNOWN


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "42"}', '{"pid": 42}'])
def test_an_invalid_account_is_none(tree: Tree, text: str) -> None:
    tree.process(42, "python3")
    tree.file("/run/sparkd/owner.json", text)
    assert Host(tree.root).owner() is None
    with tree.lock_held():
        assert Host(tree.root).owner() == UNKNOWN


def test_users_of_the_gpu_have_its_devices_open(tree: Tree) -> None:
    tree.file("/dev/nvidia0")
    tree.process(10, "VLLM::Worker_TP", opened=("/dev/nvidia0", "/dev/nvidia-uvm", "/dev/null"))
    tree.process(11, "other", opened=("/dev/nvidia-fs0", "/home/x/dev/nvidia0"))
    host = Host(tree.root)
    assert host.gpu_present()
    assert {(file.pid, file.target) for file in host.gpu_users(host.processes()).found} == {
        (10, "/dev/nvidia0"),
        (10, "/dev/nvidia-uvm"),
    }


def test_a_driver_without_a_gpu_is_no_gpu(tree: Tree) -> None:
    tree.file("/dev/nvidiactl")
    assert not Host(tree.root).gpu_present()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode", "plain ünïcode"),
        ("a\nb", "a\\nb"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u202e", "\\u202e"),
        ("\udc80", "\\udc80"),
        ("x" * 300, "x" * 199 + "…"),
    ],
)
def test_nothing_from_outside_moves_the_cursor(text: str, shown: str) -> None:
    assert sanitize(text) == shown
