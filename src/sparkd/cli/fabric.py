"""`sparkd fabric test`: how fast the ports between the nodes are, while nothing serves."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import time
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec

from sparkd.cli import console
from sparkd.cluster.auth import KeyRing
from sparkd.cluster.client import UnsignedError
from sparkd.cluster.membership import Peer, find_place, peers_of
from sparkd.cluster.traffic import PORTS, RESULT, Keys, Measurer, measure_ceiling, receive_result
from sparkd.cluster.traffic_programs import IB_WRITE_BW, IPERF3, STREAMS, TrafficError
from sparkd.config import load_settings
from sparkd.host import Host, fabric_ports, network
from sparkd.lib.errors import AwaitedError, BlockedError, ConfigError, ExitCode, UsageError
from sparkd.lib.text import Table, parse_json, sanitize
from sparkd.measure.fabric import SLOW, Facts, Pair, Port, Result, describe_ports, describe_twins, judge, pair_ports
from sparkd.tools.measuring import report_progress

WAIT_SECONDS, POLL_SECONDS = 120.0, 1.0
HEADINGS = ("PORT", "TO", "SENT", "BACK", "RDMA", "LINK", "US", "US 99%", "")


def add_fabric(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    help_text = "measure throughput and round trips between the head and each other node"
    test = actions.add_parser("test", help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}.")
    test.add_argument("--json", action="store_true", help="print one JSON object for each pair of nodes")
    test.epilog = (
        "Start it on all nodes within two minutes, the agents being stopped. It takes 8 s for each pair of ports."
    )
    test.set_defaults(run=run_test, as_root=("only root may read the cluster's key", "sudo sparkd fabric test"))


def run_test(args: argparse.Namespace) -> int:
    settings, host = load_settings(os.environ), Host()
    place = find_place(settings, host)
    if not (peers := peers_of(settings, place.rank)):
        raise UsageError("cluster.nodes names no other node", "a fabric joins two nodes or more")
    if shutil.which(IPERF3) is None:
        raise BlockedError("iperf3 is not on this node: all nodes need it, to measure TCP", "sudo apt install iperf3")
    keys, port = KeyRing(host.files, settings.cluster.key_file).keys, settings.cluster.report_port
    with own_node(host):
        try:
            ports = fabric_ports.read_ports(host.files)
            facts = describe_ports(host.name(), place.address, ports, perftest=shutil.which(IB_WRITE_BW) is not None)
        except (OSError, ValueError) as error:
            raise ConfigError(f"this node's ports can't be read: {error}", "ip -brief address") from None
        if place.rank:
            results = [await_result(facts, port, keys, peers[0].address)]
        else:
            results = [measure(facts, one, port, keys, host) for one in peers]
    for result in results:
        print(as_json(result)) if args.json else console.show(render(result))
    slow = any(judge(pair, one.ceiling_gbps).outcome == SLOW for one in results for pair in one.pairs)
    return ExitCode.BLOCKED if slow else ExitCode.GOOD


@contextmanager
def own_node(host: Host) -> Iterator[None]:
    """No agent runs here meanwhile, and so no engine of one. Raises BlockedError where one does."""
    from sparkd.actions import acquire_lock
    from sparkd.host.owner import NodeOwner

    fd = acquire_lock(host, NodeOwner(os.getpid(), "sparkd fabric test", ""))
    try:
        yield
    finally:
        os.close(fd)


def await_result(facts: Facts, port: int, keys: Keys, head: str) -> Result:
    """What the head has measured with this node. Raises AwaitedError, BlockedError."""
    report_progress(f"waits for {head}, for {WAIT_SECONDS:.0f} s: sudo sparkd fabric test there, too")
    addresses, body = {one.address: one.hca for one in facts.ports}, msgspec.json.encode(facts)
    try:
        result = asyncio.run(receive_result(addresses, port, keys, body, WAIT_SECONDS))
    except OSError as error:
        raise AwaitedError(f"port {port} can't be had: {error.strerror}", f"ss -ltnp sport = :{port}") from None
    if result is None:
        raise BlockedError(f"{head} did not come, or ended early", "on the head: sudo sparkd fabric test")
    try:
        return msgspec.convert(parse_json(urlsafe_b64decode(result)), Result, strict=False)
    except ValueError as error:
        raise BlockedError(
            f"what {head} sent is no result: {sanitize(str(error))}", "is sparkd the same on both?"
        ) from None


def measure(facts: Facts, peer: Peer, port: int, keys: Keys, host: Host) -> Result:
    """With one other node, which has the result then too. Raises BlockedError."""
    own, to = facts.ports[0].address, peer.address
    other = greet(Measurer(own, to, port, keys))
    try:
        ceiling = measure_ceiling()
    except TrafficError as error:
        raise BlockedError(f"iperf3 does not work on this node: {error}", "iperf3 --version") from None
    pairs = list[Pair]()
    for near, far in pair_ports(facts, other, to, partial(network.interfaces_of, host.files)):
        report_progress(f"measures {near.address} to {sanitize(far.address, 40)}")
        pairs.append(measure_pair(near, far, port, keys))
    result = Result(facts, other, ceiling, tuple(pairs))
    try:
        Measurer(own, to, port, keys).request(RESULT, msgspec.json.encode(result))
    except (UnsignedError, TrafficError) as error:
        report_progress(f"{to} did not take the result: {error}")
    return result


def measure_pair(near: Port, far: Port, port: int, keys: Keys) -> Pair:
    found, rdma = None, None
    measurer = Measurer(near.address, far.address, port, keys)
    try:
        found = measurer.measure()
        rdma = measurer.measure_rdma(near.hca) if near.hca else None
    except (OSError, UnsignedError, TrafficError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return Pair(near, far, found, sanitize(reason or str(error)))
    return Pair(near, far, found, rdma_gbps=rdma)


def greet(measurer: Measurer) -> Facts:
    """The other node's ports, as soon as it listens. Raises BlockedError after WAIT_SECONDS, or where it refuses."""
    end, shown = time.monotonic() + WAIT_SECONDS, False
    while True:
        try:
            if answer := measurer.request(PORTS):
                return msgspec.convert(parse_json(answer), Facts, strict=False)
            reason = f"its agent has port {measurer.port}"
        except UnsignedError as error:
            hint = "the same /etc/sparkd/cluster.key on all nodes? sudo sparkd init --invite brings it"
            raise BlockedError(f"{measurer.to}: {error}", hint) from None
        except ValueError as error:
            raise BlockedError(f"{measurer.to}: {sanitize(str(error))}", "is sparkd the same on both?") from None
        except TrafficError as error:
            reason = sanitize(str(error))
        if time.monotonic() > end:
            hint = "there, with the agent stopped: sudo sparkd fabric test"
            raise BlockedError(f"{measurer.to} does not take part: {reason}", hint)
        if not shown:
            report_progress(f"waits for {measurer.to}, for {WAIT_SECONDS:.0f} s: sudo sparkd fabric test there, too")
            shown = True
        time.sleep(POLL_SECONDS)


def render(result: Result) -> Sequence[str | Table]:
    rows, below = [HEADINGS], list[tuple[str, str]]()
    for pair in result.pairs:
        found, verdict, link = pair.measured, judge(pair, result.ceiling_gbps), pair.link_gbps
        name, to = (sanitize(one.interface or one.address, 40) for one in (pair.own, pair.other))
        rates = ("-", "-") if found is None else (f"{found.sent_gbps:.1f}", f"{found.received_gbps:.1f}")
        trips = ("-", "-") if found is None else (f"{found.round_trip_us:.0f}", f"{found.round_trip_99_us:.0f}")
        rdma = "-" if pair.rdma_gbps is None else f"{pair.rdma_gbps:.1f}"
        rows.append((name, to, *rates, rdma, f"{link:g}" if link else "-", *trips, verdict.outcome))
        hint = f" ({verdict.hint})" if verdict.hint else ""
        below.append((f"{name}:", sanitize(f"{verdict.reason}{hint}", 400)))
        if found and pair.trouble:
            below.append((f"{name}:", sanitize(f"RDMA was not measured: {pair.trouble}", 400)))
    title = f"{result.own.node} and {result.other.node}, TCP, {STREAMS} streams: Gb/s, round trip in us"
    below += [(f"{node}:", text) for node, text in describe_twins(result)]
    return (sanitize(title, 300), Table(rows, heading=True), Table(below))


def as_json(result: Result) -> str:
    verdicts = [msgspec.to_builtins(judge(pair, result.ceiling_gbps)) for pair in result.pairs]
    found = {
        "schema": 1,
        **msgspec.to_builtins(result),
        "verdicts": verdicts,
        "twins": [": ".join(one) for one in describe_twins(result)],
    }
    return json.dumps(found)
