"""What vLLM 0.32 (CPU wheel) has logged in captured runs and failures, and answered to GET /metrics."""

from collections.abc import Iterable
from functools import partial
from itertools import accumulate
from pathlib import Path

from sparkd.agent.engine.load_progress import LoadProgress, advance_progress
from sparkd.base.vllm.log_lines import LineSplitter

LOGS = Path(__file__).parent / "engine-logs"
METRICS = (LOGS / "metrics.txt").read_text() + (LOGS / "metrics-drafts.txt").read_text()
"""The page of an engine without a drafter; then what its class `SpecDecodingProm` adds with one, of three tokens, which
was run alone."""


def lines_of(name: str) -> list[str]:
    splitter = LineSplitter()
    return [*splitter.feed((LOGS / f"{name}.log").read_bytes()), *splitter.flush()]


def follow(lines: Iterable[str]) -> list[LoadProgress]:
    """The progress after each line, all of them at the moment 0."""
    return list(accumulate(lines, partial(advance_progress, now=0.0), initial=LoadProgress()))


def progress_after(*lines: str) -> LoadProgress:
    return follow(lines)[-1]


def progress_of(name: str) -> LoadProgress:
    """The progress after a whole log."""
    return follow(lines_of(name))[-1]
