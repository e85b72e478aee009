"""`sparkd warm`: have the kernels of the endpoint's requests compiled before clients wait for them.

It ends once a whole pass of requests has compiled nothing, or its time is over.
"""

import argparse
import asyncio

from sparkd.base.lib.errors import EngineEndedError, ExitCode
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import parse_time
from sparkd.base.vllm.warm_up_steps import MOST_AT_ONCE
from sparkd.tools.cli.progress import Ticker
from sparkd.tools.measure.measuring import only_one
from sparkd.tools.measure.warming import warm_caches
from sparkd.tools.node.served import open_endpoint


def add_warm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--for", dest="time", metavar="TIME", default="15m", help="how long at most, such as 30m (15m)")
    parser.epilog = "exit codes: 0 a whole pass compiled nothing, 12 not yet, 10 nothing serves here, 13 no answer"
    parser.set_defaults(run=warm_endpoint)


def warm_endpoint(args: argparse.Namespace) -> int:
    seconds = parse_time("--for", args.time, 10, 7 * 86400)
    with open_endpoint(MOST_AT_ONCE) as served, only_one():
        try:
            with Ticker("warms the endpoint"):
                progress = asyncio.run(warm_caches(served, seconds))
        except ValueError as error:
            raise EngineEndedError(f"the engine can't be warmed: {error}", "sparkd status") from None
        if progress.lost:
            raise EngineEndedError(f"the endpoint stopped answering: {progress.shown}", "sparkd status")
    print(sanitize(progress.shown))
    if progress.whole:
        print("warm: nothing is to be done")
        return ExitCode.GOOD
    print("not warm yet, and the last requests may have waited for a kernel")
    print("next: sudo sparkd warm")
    return ExitCode.NOT_READY
