"""`sparkd fabric test`: how fast the ports between the nodes are, while nothing serves."""

import argparse
import json
import os
from collections.abc import Sequence

import msgspec

from sparkd.base.config import load_settings
from sparkd.base.host import Host
from sparkd.base.lib.errors import AS_ROOT, BlockedError, ExitCode
from sparkd.base.lib.text import Table, sanitize
from sparkd.tools.cli import console
from sparkd.tools.cli.parser import add_action
from sparkd.tools.cli.progress import Ticker
from sparkd.tools.measure.fabric import SLOW, Result, describe_twins, judge
from sparkd.tools.measure.fabric_test import measure_all
from sparkd.tools.measure.traffic_programs import STREAMS

HEADINGS = ("PORT", "TO", "SENT", "BACK", "RDMA", "LINK", "US", "US 99%", "")


def add_fabric(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    test = add_action(actions, "test", "measure throughput and round trips between the head and each other node")
    test.add_argument("--json", action="store_true", help="print one JSON object for each pair of nodes")
    test.epilog = (
        "Start it on all nodes within two minutes, the agents being stopped. It takes 8 s for each pair of ports."
    )
    test.set_defaults(run=run_test, as_root=("only root may read the cluster's key", AS_ROOT))


def run_test(args: argparse.Namespace) -> int:
    with Ticker("measures the ports"):
        results, failures = measure_all(load_settings(os.environ), Host())
    for measurement in results:
        print(as_json(measurement)) if args.json else console.show(render(measurement))
    if failures:
        raise BlockedError("; ".join(failure.reason for failure in failures), failures[0].hint)
    is_slow = any(
        judge(pair, measurement.ceiling_gbps).outcome == SLOW for measurement in results for pair in measurement.pairs
    )
    return ExitCode.BLOCKED if is_slow else ExitCode.GOOD


def render(measurement: Result) -> Sequence[str | Table]:
    """A title, a row for each pair of ports, and remarks below."""
    rows, remarks = [HEADINGS], list[tuple[str, str]]()
    for pair in measurement.pairs:
        figures, verdict, link = pair.measured, judge(pair, measurement.ceiling_gbps), pair.link_gbps
        name, peer_name = (sanitize(end.interface or end.address, 40) for end in (pair.own, pair.other))
        rates = ("-", "-") if figures is None else (f"{figures.sent_gbps:.1f}", f"{figures.received_gbps:.1f}")
        trips = ("-", "-") if figures is None else (f"{figures.round_trip_us:.0f}", f"{figures.round_trip_99_us:.0f}")
        rdma = "-" if pair.rdma_gbps is None else f"{pair.rdma_gbps:.1f}"
        rows.append((name, peer_name, *rates, rdma, f"{link:g}" if link else "-", *trips, verdict.outcome))
        hint = f" ({verdict.hint})" if verdict.hint else ""
        remarks.append((f"{name}:", sanitize(f"{verdict.reason}{hint}", 400)))
        if figures and pair.trouble:
            remarks.append((f"{name}:", sanitize(f"RDMA was not measured: {pair.trouble}", 400)))
    title = f"{measurement.own.node} and {measurement.other.node}, TCP, {STREAMS} streams: Gb/s, round trip in us"
    remarks += [(f"{node}:", text) for node, text in describe_twins(measurement)]
    return (sanitize(title, 300), Table(rows, heading=True), Table(remarks))


def as_json(measurement: Result) -> str:
    verdicts = [msgspec.to_builtins(judge(pair, measurement.ceiling_gbps)) for pair in measurement.pairs]
    twins = [": ".join(twin) for twin in describe_twins(measurement)]
    return json.dumps({"schema": 1, **msgspec.to_builtins(measurement), "verdicts": verdicts, "twins": twins})
