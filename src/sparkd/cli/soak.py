"""`sparkd bench --soak`: requests for a long time, and whether memory or answers go bad meanwhile."""

from __future__ import annotations

import asyncio
import json
import select

from msgspec import to_builtins

from sparkd.host import Host
from sparkd.lib.errors import ExitCode
from sparkd.lib.text import sanitize, size
from sparkd.measure.bench import Wanted
from sparkd.measure.soak import STEADY, Sample, Soak, judge
from sparkd.tools.measuring import look, report_progress
from sparkd.tools.served import Served

SHORTEST_SECONDS, LONGEST_SECONDS = 40, 7 * 86400
"""In less there are too few samples for a verdict."""
PROGRESS_SECONDS = 60.0


def soak(served: Served, wanted: Wanted, seconds: int, *, as_json: bool) -> int:
    """Raises HttpError, StreamError where not even the first request is answered."""
    host, shown = Host(), [0.0]

    def sampled(sample: Sample) -> None:
        if sample.seconds >= shown[0]:
            shown[0] = sample.seconds + PROGRESS_SECONDS
            known = sample.available_bytes.items()
            nodes = ", ".join(f"{sanitize(name)} {'unknown' if free is None else size(free)}" for name, free in known)
            counts = f"{sample.answered} answered, {sample.failed} failed"
            report_progress(f"{sample.seconds:.0f} s: available {nodes}; {counts}")

    end = select.poll()
    end.register(served.rank.pidfd, select.POLLIN)
    work, interrupted = Soak(served.endpoint, wanted, lambda: look(host), sampled, lambda: not end.poll(0)), False
    try:
        asyncio.run(work.run(seconds))
    except KeyboardInterrupt:
        interrupted = True
    verdict = judge(work.samples, work.first_failure)
    if as_json:
        found = {"verdict": verdict.outcome, "lines": verdict.lines, "interrupted": interrupted}
        print(json.dumps({"schema": 1, **found, "samples": to_builtins(work.samples)}))
    else:
        print("\n".join([*map(sanitize, verdict.lines), f"verdict: {verdict.outcome}"]))
    if interrupted:
        return 130
    return ExitCode.GOOD if verdict.outcome == STEADY else ExitCode.ENGINE_ENDED
