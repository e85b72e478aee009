"""Whose kernel answers ARP, on a real one: nodes are network namespaces, cables are pairs of veth."""

from __future__ import annotations

import textwrap

from tests.integration import world
from tests.integration.test_fabric_kernel import COMMON

ANSWERING = """
    from sparkd.base.host import network

    direct()
    host = Host()
    # As after the half minute and the five seconds for which Linux believes an answer.
    for key in ("base_reachable_time_ms", "retrans_time_ms"):
        open(f"/proc/sys/net/ipv4/neigh/spark0/{key}", "w").write("200")
    open("/proc/sys/net/ipv4/neigh/spark0/delay_first_probe_time", "w").write("1")

    def look(*addresses):
        return sorted(address for address, answers in network.find_answering(host.files, addresses).items() if answers)

    def look_until(wanted, seconds=20):
        end = time.monotonic() + seconds
        while (answering := look("10.0.0.2", "10.0.0.3")) != wanted and time.monotonic() < end:
            time.sleep(0.2)
        return answering
"""


def run(code: str) -> object:
    return world.run("".join(map(textwrap.dedent, (COMMON, ANSWERING, code))))


def test_a_kernel_that_answers_is_known_behind_a_firewall_and_one_that_is_gone_is_forgotten() -> None:
    assert run("""
        ip("-n", "node2", "route", "add", "blackhole", "10.0.0.1/32")  # it answers no packet of IP
        answering = [look_until(["10.0.0.2"])]
        ip("-n", "node2", "link", "set", "spark1", "arp", "off")
        answering.append(look_until([]))
        ip("-n", "node2", "link", "set", "spark1", "arp", "on")
        answering.append(look_until(["10.0.0.2"]))
        print(json.dumps(answering))
    """) == [["10.0.0.2"], [], ["10.0.0.2"]]


def test_an_address_that_is_no_neighbour_by_ipv4_gets_no_datagram() -> None:
    assert run("""
        for _ in range(3):
            look("192.0.2.1", "fd00::2", "spark2", "10.0.0.256", "10.0.0.255", "")
            time.sleep(0.2)
        shown = open("/proc/net/arp").read().splitlines()[1:]
        print(json.dumps([look("192.0.2.1", "fd00::2", "spark2", "10.0.0.256", "10.0.0.255", ""), shown]))
    """) == [[], []]
