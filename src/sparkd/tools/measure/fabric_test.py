"""The test of the fabric on one node: the head measures and sends the result, a worker waits for it."""

import asyncio
import os
import shutil
import time
from base64 import urlsafe_b64decode
from collections.abc import Iterable
from functools import partial

import msgspec

from sparkd.agent.actions.owner_lock import acquire_lock
from sparkd.agent.cluster.client import UnsignedError
from sparkd.base.cluster.auth import KeyRing
from sparkd.base.cluster.membership import Peer, find_place, peers_of
from sparkd.base.config import Settings
from sparkd.base.host import Host, network
from sparkd.base.host.owner import NodeOwner
from sparkd.base.lib import prepared
from sparkd.base.lib.errors import BlockedError, ConfigError, UsageError
from sparkd.base.lib.text import parse_json, sanitize
from sparkd.tools.measure.fabric import FabricFacts, Pair, PortFacts, Result, describe_ports, pair_ports
from sparkd.tools.measure.interrupts import report_progress
from sparkd.tools.measure.traffic import PORTS, RESULT, WAIT_SECONDS, Keys, Measurer, measure_ceiling, receive_result
from sparkd.tools.measure.traffic_programs import IB_WRITE_BW, IPERF3, TrafficError
from sparkd.tools.node import fabric_ports


def measure_all(settings: Settings, host: Host) -> tuple[list[Result], list[BlockedError]]:
    """Measure with each other node; on a worker, await what its head has measured with it.

    Returns as `measure_peers`. Raises as `acquire_lock` and `await_result`, UsageError, BlockedError, ConfigError.
    """
    place = find_place(settings, host)
    if not (peers := peers_of(settings, place.rank)):
        raise UsageError("cluster.nodes names no other node", "a fabric joins two nodes or more")
    if shutil.which(IPERF3) is None:
        raise BlockedError("iperf3 is not on this node: all nodes need it, to measure TCP", "sudo apt install iperf3")
    keys, port = KeyRing(host.files, settings.cluster.key_file).keys, settings.cluster.report_port
    # No agent runs here meanwhile, and so no engine of one.
    with os.fdopen(acquire_lock(host, NodeOwner(os.getpid(), "sparkd fabric test", "")), "rb"):
        try:
            ports = fabric_ports.read_ports(host.files)
            facts = describe_ports(host.name(), place.address, ports, perftest=shutil.which(IB_WRITE_BW) is not None)
        except (OSError, ValueError) as error:
            raise ConfigError(f"this node's ports can't be read: {error}", "ip -brief address") from None
        if place.rank:
            # The head measures with one node after the other.
            return [await_result(facts, port, keys, peers[0].address, WAIT_SECONDS * len(peers))], []
        return measure_peers(facts, peers, port, keys, host)


def await_result(facts: FabricFacts, port: int, keys: Keys, head: str, seconds: float = WAIT_SECONDS) -> Result:
    """What the head has measured with this node. Raises BlockedError."""
    report_progress(f"waits for {head}, for {seconds:.0f} s: sudo sparkd fabric test there, too")
    devices = {own_port.address: own_port.hca for own_port in facts.ports}
    try:
        encoded = asyncio.run(receive_result(devices, port, keys, msgspec.json.encode(facts), seconds))
    except OSError as error:
        reason = f"port {port} can't be had: {error.strerror}"
        raise BlockedError(reason, f"what holds it? sudo ss -ltnp sport = :{port}") from None
    if encoded is None:
        raise BlockedError(f"{head} did not come, or ended early", "on the head: sudo sparkd fabric test")
    try:
        return msgspec.convert(parse_json(urlsafe_b64decode(encoded)), prepared(Result), strict=False)
    except ValueError as error:
        reason = f"what {head} sent is no result: {sanitize(str(error))}"
        raise BlockedError(reason, "is sparkd the same on both? sparkd --version") from None


def measure_peers(
    facts: FabricFacts, peers: Iterable[Peer], port: int, keys: Keys, host: Host, seconds: float = WAIT_SECONDS
) -> tuple[list[Result], list[BlockedError]]:
    """Measure with each other node once it listens, which has the result then too.

    Returns the results, and why the other nodes have none: `seconds` were over, or one of them refused.
    """
    results, failures = list[Result](), list[BlockedError]()
    awaited, announced = list(peers), set[str]()
    deadline = time.monotonic() + seconds
    while awaited:
        for peer in tuple(awaited):
            try:
                answer = _measure(facts, peer, port, keys, host)
                if isinstance(answer, str) and time.monotonic() > deadline:
                    hint = "there, with the agent stopped: sudo sparkd fabric test"
                    raise BlockedError(f"{peer.address} does not take part: {answer}", hint)
            except BlockedError as error:
                failures.append(error)
                awaited.remove(peer)
                continue
            if isinstance(answer, Result):
                results.append(answer)
                awaited.remove(peer)
            elif peer.address not in announced:
                announced.add(peer.address)
                report_progress(f"waits for {peer.address}, for {seconds:.0f} s: sudo sparkd fabric test there, too")
        time.sleep(1.0 if awaited else 0.0)
    return results, failures


def _measure(facts: FabricFacts, peer: Peer, port: int, keys: Keys, host: Host) -> Result | str:
    """Measure with one other node. Returns why it does not listen yet, if it does not. Raises BlockedError."""
    address = facts.ports[0].address
    peer_facts = _request_ports(Measurer(address, peer.address, port, keys))
    if isinstance(peer_facts, str):
        return peer_facts
    try:
        ceiling = measure_ceiling()
    except TrafficError as error:
        raise BlockedError(f"iperf3 does not work on this node: {error}", "iperf3 --version") from None
    pairs = list[Pair]()
    interfaces_of = partial(network.interfaces_of, host.files)
    for own_port, other_port in pair_ports(facts, peer_facts, peer.address, interfaces_of):
        report_progress(f"measures {own_port.address} to {sanitize(other_port.address, 40)}")
        pairs.append(measure_pair(own_port, other_port, port, keys))
    measurement = Result(facts, peer_facts, ceiling, tuple(pairs))
    try:
        Measurer(address, peer.address, port, keys).request(RESULT, msgspec.json.encode(measurement))
    except (UnsignedError, TrafficError) as error:
        report_progress(f"{peer.address} did not take the result: {error}")
    return measurement


def measure_pair(own: PortFacts, other: PortFacts, port: int, keys: Keys) -> Pair:
    """Figures of one pair of ports; the reason in it where a measurement fails."""
    figures, measurer = None, Measurer(own.address, other.address, port, keys)
    try:
        figures = measurer.measure()
        return Pair(own, other, figures, rdma_gbps=measurer.measure_rdma(own.hca) if own.hca else None)
    except (OSError, UnsignedError, TrafficError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return Pair(own, other, figures, sanitize(reason or str(error)))


def _request_ports(measurer: Measurer) -> FabricFacts | str:
    """The other node's ports, or why it does not listen yet. Raises BlockedError where it refuses."""
    try:
        answer = measurer.request(PORTS)
        facts = msgspec.convert(parse_json(answer), prepared(FabricFacts), strict=False) if answer else None
    except UnsignedError as error:
        hint = "the same /etc/sparkd/cluster.key on all nodes? sudo sparkd init --invite brings it"
        raise BlockedError(f"{measurer.other_address}: {error}", hint) from None
    except ValueError as error:
        reason = f"{measurer.other_address}: {sanitize(str(error))}"
        raise BlockedError(reason, "is sparkd the same on both? sparkd --version") from None
    except TrafficError as error:
        return sanitize(str(error))
    return facts or f"its agent has port {measurer.port}"
