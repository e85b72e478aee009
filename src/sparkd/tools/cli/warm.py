"""`sparkd warm`: have this node's endpoint compile now what its clients' requests would wait for."""

from __future__ import annotations

import argparse
import asyncio

from sparkd.base.lib.errors import EngineEndedError, ExitCode
from sparkd.base.lib.text import parse_time, sanitize
from sparkd.base.vllm.warm_up import MOST_AT_ONCE
from sparkd.tools.measure.measuring import catch_ends, only_one, warm
from sparkd.tools.node.served import open_endpoint

SHORTEST_SECONDS, LONGEST_SECONDS = 10, 86400


def add_warm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--for", dest="time", metavar="TIME", default="15m", help="how long at most, such as 30m (15m)")
    parser.epilog = "exit codes: 0 a whole pass compiled nothing, 12 not yet, 10 nothing serves here, 13 no answer"
    parser.set_defaults(run=warm_endpoint)


def warm_endpoint(args: argparse.Namespace) -> int:
    seconds = parse_time("--for", args.time, SHORTEST_SECONDS, LONGEST_SECONDS)
    with open_endpoint(MOST_AT_ONCE) as served, only_one():
        catch_ends()
        try:
            result = asyncio.run(warm(served, seconds))
        except ValueError as error:
            raise EngineEndedError(f"the engine can't be warmed: {error}", "sparkd status") from None
    print(sanitize(result.shown))
    if result.whole:
        print("warm: a whole pass of requests has compiled nothing; nothing is to be done")
        return ExitCode.GOOD
    print("not warm yet, and the last requests may have waited for a kernel\nnext: sudo sparkd warm")
    return ExitCode.NOT_READY
