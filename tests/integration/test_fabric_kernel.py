"""The way to other nodes on a real kernel: nodes are network namespaces, cables are pairs of veth."""

import textwrap

import pytest
from tests.integration import world

COMMON = """
    import json, os, subprocess, sys, time
    from sparkd.base.host import Host, datagrams

    def ip(*words):
        subprocess.run(["ip", *words], check=True)

    def cable(name, mtu, space, far_name, far_mtu):
        # A namespace has its own end: `space` may be there already.
        if not os.path.exists(f"/run/netns/{space}"):
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
        ip("link", "add", name, "mtu", str(mtu), "type", "veth",
           "peer", "name", far_name, "mtu", str(far_mtu), "netns", space)
        for where, end in (((), name), (("-n", space), far_name)):
            ip(*where, "link", "set", end, "up")

    def own(address, device):
        ip("address", "add", address, "dev", device, *(["nodad"] if ":" in address else []))

    def theirs(space, address, device):
        ip("-n", space, "address", "add", address, "dev", device, *(["nodad"] if ":" in address else []))

    def direct(mtu=9000, far_mtu=9000):
        cable("spark0", mtu, "node2", "spark1", far_mtu)
        for prefix, bits in (("10.0.0.", 24), ("fd00::", 64)):
            own(f"{prefix}1/{bits}", "spark0")
            theirs("node2", f"{prefix}2/{bits}", "spark1")

    def switched(narrow_mtu):
        # node1 == switch == node2, of which the second cable is narrow on the switch's side alone.
        cable("spark0", 9000, "switch", "port0", 9000)
        ip("netns", "add", "node2")
        ip("-n", "switch", "link", "add", "bridge", "type", "bridge")
        ip("-n", "switch", "link", "add", "port1", "mtu", str(narrow_mtu), "type", "veth",
           "peer", "name", "spark1", "mtu", "9000", "netns", "node2")
        for port in ("port0", "port1"):
            ip("-n", "switch", "link", "set", port, "master", "bridge", "up")
        ip("-n", "switch", "link", "set", "bridge", "up")
        ip("-n", "node2", "link", "set", "spark1", "up")
        own("10.0.0.1/24", "spark0")
        theirs("node2", "10.0.0.2/24", "spark1")

    def routed():
        # The router of the second subnet says that a datagram is too large.
        cable("spark0", 9000, "router", "port0", 9000)
        ip("-n", "router", "link", "set", "lo", "up")
        ip("netns", "add", "node2")
        ip("-n", "router", "link", "add", "port1", "mtu", "1500", "type", "veth",
           "peer", "name", "spark1", "mtu", "1500", "netns", "node2")
        ip("-n", "router", "link", "set", "port1", "up")
        ip("-n", "node2", "link", "set", "spark1", "up")
        own("10.0.0.1/24", "spark0")
        theirs("router", "10.0.0.254/24", "port0")
        theirs("router", "10.0.1.254/24", "port1")
        theirs("node2", "10.0.1.2/24", "spark1")
        ip("route", "add", "10.0.1.0/24", "via", "10.0.0.254")
        ip("-n", "node2", "route", "add", "10.0.0.0/24", "via", "10.0.1.254")
        subprocess.run(["ip", "netns", "exec", "router", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"],
                       check=True)

    def probed(*addresses, mtu=9000):
        began = time.monotonic()
        paths = datagrams.probe_network(addresses, 29510, mtu)
        return [path.fits for path in paths], time.monotonic() - began

    def there(space, program):
        process = subprocess.Popen(["ip", "netns", "exec", space, sys.executable, "-c", program],
                                   stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"up\\n"
        return process
"""
HOLDER = """
import socket, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("10.0.0.2", 29510))
print("up", flush=True)
time.sleep(60)
"""


def run(code: str) -> object:
    return world.run(textwrap.dedent(COMMON) + textwrap.dedent(code))


def timed(printed: object) -> tuple[list[bool | None], float]:
    assert isinstance(printed, list)
    fits, seconds = printed
    return fits, seconds


@pytest.mark.parametrize("address", ["10.0.0.2", "fd00::2"])
def test_large_datagrams_arrive_on_a_wide_path_and_the_answer_comes_at_once(address: str) -> None:
    fits, seconds = timed(run(f"direct(); probed({address!r}); print(json.dumps(probed({address!r})))"))
    assert fits == [True]
    assert seconds < 0.1


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("switched(1500)", id="a switch drops them"),
        pytest.param("direct(9000, 1500)", id="the other interface drops them"),
    ],
)
def test_a_path_that_swallows_large_datagrams_is_called_narrow_in_time(path: str) -> None:
    fits, seconds = timed(run(f"{path}; print(json.dumps(probed('10.0.0.2')))"))
    assert fits == [False]
    assert seconds < 0.6
    fits, _ = timed(run(f"{path}; print(json.dumps(probed('10.0.0.2', mtu=1500)))"))
    assert fits == [True], "what it takes"


def test_large_datagrams_arrive_through_a_wide_switch() -> None:
    assert timed(run("switched(9000); print(json.dumps(probed('10.0.0.2')))"))[0] == [True]


def test_a_router_that_says_it_is_too_large_is_believed() -> None:
    fits, seconds = timed(run("routed(); probed('10.0.1.2', mtu=1500); print(json.dumps(probed('10.0.1.2')))"))
    assert fits == [False]
    assert seconds < 0.25


def test_an_interface_that_is_too_narrow_itself_says_so_at_once() -> None:
    fits, seconds = timed(run("direct(1500, 9000); print(json.dumps(probed('10.0.0.2', '10.0.0.2')))"))
    assert fits == [False, False]
    assert seconds < 0.1


def test_a_node_that_does_not_answer_is_not_judged_and_holds_up_no_other() -> None:
    printed = run(f"""
        direct()
        nobody_there = probed("10.0.0.99")
        no_route = probed("192.0.2.1")
        process = there("node2", {HOLDER!r})
        port_held = probed("10.0.0.2")
        process.kill()
        process.wait()
        mixed = probed("10.0.0.99", "10.0.0.2", "10.0.0.98", "fd00::2", "10.0.0.97", "10.0.0.96", "10.0.0.95")
        print(json.dumps([nobody_there, no_route, port_held, mixed]))
    """)
    assert isinstance(printed, list)
    assert [fits for fits, _ in printed] == [[None], [None], [None], [None, True, None, True, None, None, None]]
    assert all(0.25 < seconds < 0.6 for _, seconds in printed), printed


def test_a_kernel_that_grows_tired_of_answering_is_not_called_a_narrow_path() -> None:
    printed = run("""
        direct()
        print(json.dumps([probed("10.0.0.2")[0][0] for _ in range(25)]))
    """)
    assert isinstance(printed, list)
    assert printed[:5] == [True] * 5
    assert None in printed, "it never grew tired: this proves nothing"
    assert False not in printed


def test_the_check_of_the_link_reads_this_kernels_interfaces() -> None:
    printed = run("""
        from sparkd.agent.preflight.checks.fabric import FabricAddress
        from sparkd.agent.preflight.checks.fabric import FabricLink
        from sparkd.base.config import Settings
        from tests.unit.plans import HEAD, plan

        def looked():
            checks = (FabricAddress(plan(HEAD), Settings()), FabricLink("spark0", ("10.0.0.2",), 29510, 9000))
            return [[verdict.level.value, verdict.reason] for _, verdict in (check.run(Host()) for check in checks)]

        direct()
        subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=True)
        good = looked()
        ip("-n", "node2", "link", "set", "spark1", "down")
        dark = looked()
        ip("link", "set", "spark0", "down")
        print(json.dumps([good, dark, looked()]))
    """)
    assert isinstance(printed, list)
    good, dark, down = printed
    assert good == [["ok", "10.0.0.1 on spark0, up"], ["ok", "spark0 up, MTU 9000, frames of 9000 arrive at 1 of 1"]]
    assert dark[0][0] == "ok"
    assert dark[1][0] == "warn"
    assert dark[1][1].startswith("spark0 has no carrier")
    assert down == [["warn", "no interface that is up carries 10.0.0.1"], ["warn", "spark0 is not set up (down)"]]
