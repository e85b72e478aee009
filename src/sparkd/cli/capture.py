"""`sparkd capture`: what a helper needs of this node and the others in one archive, without secrets."""

from __future__ import annotations

import argparse

from sparkd.host import Host
from sparkd.tools.capture_collector import Collector
from sparkd.tools.capture_summary import summarize


def add_capture(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", metavar="FILE", help="where to write it, instead of sparkd-capture-NODE-TIME.tar.gz"
    )
    parser.add_argument("--issue", action="store_true", help="only print a summary to paste into a forum")
    parser.epilog = "Look into it before you give it away: it has host names, addresses, paths and names of processes."
    parser.set_defaults(run=capture, as_root=("only root may read all that it needs", "sudo sparkd capture"))


def capture(args: argparse.Namespace) -> None:
    collector = Collector(Host())
    if args.issue:
        print(collector.redact(summarize(collector.settings, collector.host)), end="")
        return
    path, size_bytes = collector.save(args.output)
    for line in collector.missing:
        print(f"not in it: {line}")
    print(f"{path}: {size_bytes / 1e6:.1f} MB; look into it before you give it away")
