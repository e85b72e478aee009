"""`sparkd plot`: what `bench --json` has printed, as a picture. Alone in importing matplotlib, which is optional."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sparkd.base.lib.errors import ConfigError, UsageError
from sparkd.base.lib.text import GIB, parse_json, sanitize
from sparkd.tools.measure.bench import Result
from sparkd.tools.measure.soak import Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".svg", ".png")
LIMIT_BYTES = 64 << 20
"""A soak of a week has 120,000 samples."""


class SoakResult(msgspec.Struct, frozen=True):
    verdict: str
    samples: tuple[Sample, ...]


def add_plot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="of `sparkd bench --json`, with or without --soak; - for stdin")
    parser.add_argument("output", metavar="OUTPUT", help="a file that ends in .svg or .png")
    parser.epilog = "It needs matplotlib, which the Debian package does not carry: pip install 'sparkd[plot]'."
    parser.set_defaults(run=plot)


def plot(args: argparse.Namespace) -> None:
    if Path(args.output).suffix not in FORMATS:
        raise UsageError(f"{args.output} is no picture", f"it ends in {' or '.join(FORMATS)}")
    found = parse(_read(args.file))
    try:
        from matplotlib.figure import Figure
    except ImportError:
        hint = "where you like, also on another machine: pip install 'sparkd[plot]', then sparkd plot there"
        raise ConfigError("matplotlib is not installed", hint) from None
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    if isinstance(found, Result):
        draw_bench(found, figure)
    else:
        draw_soak(found, figure)
    figure.savefig(args.output)


def _read(name: str) -> bytes:
    with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
        content = file.read(LIMIT_BYTES + 1)
    if len(content) > LIMIT_BYTES:
        raise UsageError(f"{name} is larger than {LIMIT_BYTES >> 20} MiB")
    return content


def parse(content: bytes) -> Result | SoakResult:
    """Raises UsageError."""
    try:
        fields = parse_json(content)
        if isinstance(fields, dict) and "samples" in fields:
            return msgspec.convert(fields, SoakResult)
        return msgspec.convert(fields, Result)
    except ValueError as error:
        reason = f"it is no output of `sparkd bench --json`: {sanitize(str(error))}"
        raise UsageError(reason, "sudo sparkd bench --json >bench.json") from None


def draw_bench(found: Result, figure: Figure) -> None:
    """Tokens per second by requests at once, with the spread; and by the length of a prompt."""
    by_load, by_depth = figure.subplots(1, 2)
    levels = [(one.concurrency, one.output_tokens_per_second) for one in found.levels]
    known = [(at_once, rate) for at_once, rate in levels if rate is not None]
    rates = [rate.median for _, rate in known]
    below, above = [rate.median - rate.low for _, rate in known], [rate.high - rate.median for _, rate in known]
    by_load.errorbar([at_once for at_once, _ in known], rates, yerr=(below, above), marker="o", capsize=3)
    _label(by_load, "requests at once", "tokens/s, median and 5-95 %")
    depths = [one.prompt_tokens for one in found.depths]
    by_depth.plot(depths, [one.prefill_tokens_per_second for one in found.depths], marker="o", label="prefill")
    by_depth.plot(depths, [one.stream_tokens_per_second for one in found.depths], marker="o", label="decode")
    _label(by_depth, "tokens of the prompt", "tokens/s")
    by_depth.set_yscale("log")
    by_depth.legend()
    figure.suptitle(sanitize(f"{found.model} by {found.recipe}, {found.made}"), parse_math=False)


def draw_soak(found: SoakResult, figure: Figure) -> None:
    """Each node's available memory, and tokens per second between samples."""
    memory, rate = figure.subplots(1, 2)
    minutes = [one.seconds / 60 for one in found.samples]
    for node in sorted({name for one in found.samples for name in one.available_bytes}):
        free = (one.available_bytes.get(node) for one in found.samples)
        memory.plot(minutes, [float("nan") if one is None else one / GIB for one in free], label=sanitize(node, 40))
    _label(memory, "minutes", "GiB available")
    if found.samples:
        memory.legend()
    pairs = list(zip(found.samples, found.samples[1:], strict=False))
    rates = [(after.tokens - before.tokens) / max(0.1, after.seconds - before.seconds) for before, after in pairs]
    rate.plot(minutes[1:], rates)
    _label(rate, "minutes", "tokens/s")
    figure.suptitle(sanitize(f"verdict: {found.verdict}"), parse_math=False)


def _label(axes: Axes, below: str, beside: str) -> None:
    axes.set_xlabel(below)
    axes.set_ylabel(beside)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
