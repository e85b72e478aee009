"""Figures of a fabric as they were reported, and what each of them means."""

import pytest
from msgspec.structs import replace

from sparkd.base.host.network import Link
from sparkd.tools.measure.fabric import (
    OK,
    SLOW,
    UNKNOWN,
    FabricFacts,
    Pair,
    PortFacts,
    Result,
    describe_ports,
    describe_twins,
    judge,
    pair_ports,
)
from sparkd.tools.measure.traffic import PairFigures
from sparkd.tools.node.fabric_ports import FabricPort

PORT = PortFacts("enp1s0f0np0", "10.0.0.1", 200_000, 9000)
OTHER = replace(PORT, address="10.0.0.2")


def pair(
    gbps: float, *, back: float | None = None, trip: float = 40, speed: int | None = 200_000, mtu: int = 9000
) -> Pair:
    """A pair of ports that carries `gbps` there, and `back` from there; None: the same."""
    measured = PairFigures(gbps, gbps if back is None else back, trip, 2 * trip)
    return Pair(replace(PORT, speed_mbps=speed, mtu=mtu), OTHER, measured)


@pytest.mark.parametrize(
    ("measured", "ceiling", "outcome", "text"),
    [
        (pair(110), 200, OK, "110.0 of 110 Gb/s"),
        (pair(92.57), 200, OK, ""),
        (pair(96.2, mtu=1500), 200, OK, ""),
        (pair(12.86), 200, SLOW, "degraded state"),
        (pair(110, back=13.23), 200, SLOW, "degraded state"),
        (pair(12.86, mtu=1500), 200, SLOW, "degraded state"),
        (pair(55), 87, SLOW, "Width x4"),
        (pair(40, mtu=1500), 200, SLOW, "the MTU is 1500"),
        (pair(62), 200, SLOW, "dropped packets"),
        (pair(0.94), 200, SLOW, "management network"),
        (pair(9.4, speed=10_000), 200, OK, "9.4 of 10 Gb/s"),
        (pair(0.94, speed=10_000), 200, SLOW, "look at the cable"),
        (pair(34), 40, UNKNOWN, "at least 34.0 Gb/s"),
        (pair(12.86), 15, UNKNOWN, "at least 12.9"),
        (pair(12.86), 17, SLOW, "degraded state"),
        (replace(pair(30), rdma_gbps=97.3), 40, OK, "97.3 of 110 Gb/s by RDMA"),
        (replace(pair(12.86), rdma_gbps=13.23), 15, SLOW, "13.2 Gb/s by RDMA where 110"),
        (pair(50, speed=None), 200, UNKNOWN, "no speed"),
        (pair(100, trip=1500), 200, SLOW, "tracepath 10.0.0.2"),
        (Pair(PORT, OTHER, None, "connection timed out"), 200, SLOW, "connection timed out"),
    ],
)
def test_a_figure_is_judged(measured: Pair, ceiling: float, outcome: str, text: str) -> None:
    verdict = judge(measured, ceiling)
    assert verdict.outcome == outcome
    assert text in f"{verdict.reason} {verdict.hint}"


def port(name: str, *addresses: str, twins: tuple[str, ...] = ()) -> FabricPort:
    link = Link(name, True, "up", True, 200_000, 9000, physical=True, loopback=False, wireless=False)
    return FabricPort(link, ("rocep1s0f0",), addresses, twins)


def test_the_address_of_cluster_nodes_is_the_first_and_a_twin_without_one_is_named() -> None:
    ports = (
        port("enp1s0f0np0", "10.1.0.1", "fd00::1", twins=("enP2p1s0f0np0",)),
        port("enp1s0f1np1", "10.0.0.1", twins=("enP2p1s0f1np1",)),
        port("enP2p1s0f1np1", "10.2.0.1", twins=("enp1s0f1np1",)),
        port("enP2p1s0f0np0", twins=("enp1s0f0np0",)),
    )
    facts = describe_ports("spark1", "10.0.0.1", ports, perftest=False)
    assert [port.address for port in facts.ports] == ["10.0.0.1", "10.1.0.1", "10.2.0.1"]
    (named,) = describe_twins(Result(facts, FabricFacts("spark2", ()), 100, ()))
    assert " ".join(named).startswith("spark1 enP2p1s0f0np0, the twin of enp1s0f0np0, has no address")


def test_an_address_on_no_port_that_is_known_is_measured_all_the_same() -> None:
    facts = describe_ports("spark1", "192.168.1.1", (port("enp1s0f0np0", "10.0.0.1"),), perftest=True)
    assert facts.ports[0] == PortFacts("", "192.168.1.1", None, 0)
    assert facts.ports[1].hca == "rocep1s0f0"


def test_ports_of_one_subnet_are_pairs() -> None:
    own = FabricFacts(
        "spark1", (PORT, PortFacts("twin", "10.1.0.1", 200_000, 9000), PortFacts("third", "10.2.0.1", 200_000, 9000))
    )
    far = [replace(PORT, address=address) for address in ("10.1.0.2", "10.0.0.2", "8.8.8.8", "10.9.0.2", "::1")]

    def interfaces(address: str) -> tuple[str, ...]:
        """As the kernel's table of routes says."""
        return {"10.0.0": ("enp1s0f0np0",), "10.1.0": ("twin",), "10.9.0": ("docker0",)}.get(address[:6], ())

    pairs = pair_ports(own, FabricFacts("spark2", tuple(far)), "10.0.0.2", interfaces)
    assert [(near.address, far.address) for near, far in pairs] == [("10.0.0.1", "10.0.0.2"), ("10.1.0.1", "10.1.0.2")]


def test_an_other_node_that_names_none_of_its_addresses_is_measured_by_the_one_of_the_settings() -> None:
    ((near, far),) = pair_ports(FabricFacts("spark1", (PORT,)), FabricFacts("spark2", ()), "10.0.0.2", lambda _: ())
    assert near == PORT
    assert far.address == "10.0.0.2"
