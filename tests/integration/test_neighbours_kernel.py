"""Neighbours on a real kernel: nodes are network namespaces, cables are pairs of veth."""

import textwrap

from tests.integration import world
from tests.integration.test_fabric_kernel import COMMON

NEIGHBOURS = """
    from sparkd.tools.setup import neighbours

    def look(*interfaces):
        began = time.monotonic()
        nodes = neighbours.find_neighbours(Host(), interfaces, 29510)
        listed = [[node.interface, node.link_local, list(node.addresses), node.sparkd] for node in nodes]
        return listed, time.monotonic() - began

    def link_local(*where, device):
        for _ in range(300):
            shown = subprocess.run(["ip", *where, "-j", "-6", "address", "show", "dev", device, "scope", "link"],
                                   capture_output=True, text=True, check=True).stdout
            address = [info for entry in json.loads(shown) for info in entry.get("addr_info", []) if info]
            if address and not address[0].get("tentative"):
                return address[0]["local"]
            time.sleep(0.02)
"""
LISTENER = """
import socket, time
with socket.create_server(("10.0.0.2", 29510)):
    print("up", flush=True)
    time.sleep(60)
"""


def run(code: str) -> object:
    return world.run("".join(map(textwrap.dedent, (COMMON, NEIGHBOURS, code))))


OWN = "link_local(device='spark0')"
THEIRS = "link_local('-n', 'node2', device='spark1')"


def test_a_neighbour_is_found_without_any_address_in_common_and_this_node_is_not() -> None:
    printed = run(f"""
        cable("spark0", 9000, "node2", "spark1", 9000)
        {OWN}
        print(json.dumps([{THEIRS}, *look("spark0", "lo", "gone0")]))
    """)
    assert isinstance(printed, list)
    address, listed, seconds = printed
    assert listed == [["spark0", address, [], False]]
    assert seconds < 2


def test_the_kernels_table_names_the_other_addresses_and_an_open_report_port_is_seen() -> None:
    printed = run(f"""
        direct()
        {OWN}
        address = {THEIRS}
        silent = look("spark0")[0]
        process = there("node2", {LISTENER!r})
        with __import__("socket").create_connection(("10.0.0.2", 29510), timeout=5):
            pass
        open_now = look("spark0")[0]
        process.kill()
        process.wait()
        closed = look("spark0")[0]
        ip("route", "flush", "dev", "spark0")
        print(json.dumps([address, silent, open_now, closed, look("spark0")[0]]))
    """)
    assert isinstance(printed, list)
    address, silent, open_now, closed, without_route = printed
    assert silent == [["spark0", address, [], False]], "nothing was sent to its IPv4 address yet"
    assert open_now == [["spark0", address, ["10.0.0.2"], True]]
    assert closed == without_route == [["spark0", address, ["10.0.0.2"], False]]


def test_two_ports_have_their_own_neighbours_and_one_that_is_down_has_none() -> None:
    printed = run(f"""
        cable("spark0", 9000, "node2", "spark1", 9000)
        cable("other0", 9000, "node3", "other1", 9000)
        {OWN}, link_local(device="other0"), {THEIRS}, link_local("-n", "node3", device="other1")
        both = look("spark0", "other0")[0]
        ip("link", "set", "other0", "down")
        print(json.dumps([both, look("spark0", "other0")]))
    """)
    assert isinstance(printed, list)
    both, (left, seconds) = printed
    assert [interface for interface, *_ in both] == ["other0", "spark0"]
    assert [interface for interface, *_ in left] == ["spark0"]
    assert seconds < 2


def test_a_user_without_rights_gets_no_answer_and_no_error() -> None:
    printed = run(f"""
        direct()
        {OWN}
        with open("/proc/sys/net/ipv4/ping_group_range", "w") as file:
            file.write("1 0")
        os.setegid(65534)
        os.seteuid(65534)
        print(json.dumps(look("spark0")[0]))
    """)
    assert printed == []
