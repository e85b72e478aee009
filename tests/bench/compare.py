"""What became worse since another run of the bench: that of another commit, made just before, or docs/figures.json."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tests.bed import BedError
from tests.bed.space import REPOSITORY

from .table import number

KEPT = REPOSITORY / "docs/figures.json"
"""Kept by hand: cp build/bench.json docs/figures.json."""
FEW_RUNS = 3
"""Fewer show no spread: a tenth stands in for it."""

Bench = Mapping[str, Any]
"""As table.as_json writes it."""


def describe(before: Bench | None, after: Bench, since: str) -> list[str]:
    """Lines for people. Figures of another machine are not compared, and those that only one of them has neither."""
    if before is None:
        return [f"nothing to compare with: no {since}"]
    if (there := _machine(before)) != (here := _machine(after)):
        return [f"not compared with {since}: that is of {there}, and this of {here}"]
    earlier = {figure["id"]: figure for figure in before["figures"]}
    both = [(earlier[figure["id"]], figure) for figure in after["figures"] if figure["id"] in earlier]
    worse = [_describe(*pair) for pair in both if is_worse(*pair)]
    return [*worse, f"{len(worse)} of {len(both)} figures worse than {since} by more than the spread of either"]


def is_worse(before: Bench, after: Bench) -> bool:
    limit = after["limit"]
    by = after["median"] - before["median"]
    if limit is not None and limit["at_least"]:
        by = -by
    return bool(by > max(map(_width, (before, after))))


def _width(figure: Bench) -> float:
    tenth = abs(figure["median"]) / 10
    return float(figure["max"] - figure["min"]) if len(figure["runs"]) >= FEW_RUNS else tenth


def _describe(before: Bench, after: Bench) -> str:
    then, now = (number(figure["median"]) for figure in (before, after))
    return f"worse: {after['what']}: {now} {after['unit']}, and {then} before"


def _machine(bench: Bench) -> str:
    return f"{bench['machine']['cores']} cores of {bench['machine']['processor']}"


def read_kept() -> Bench | None:
    return json.loads(KEPT.read_text()) if KEPT.exists() else None


def measure(revision: str, names: Sequence[str]) -> Bench:
    """The whole bench of that commit, by its own code, in a checkout that is removed again. Raises BedError."""
    folder = REPOSITORY / "build/bench-base"
    _git("worktree", "add", "--detach", "--force", str(folder), revision)
    try:
        own = {**os.environ, "PYTHONPATH": os.pathsep.join(str(folder / name) for name in ("src", "packaging", "."))}
        downloads = f"--downloads={REPOSITORY / 'build/wheels'}"
        # A missed limit is exit code 1, and no fault of a comparison.
        for module, options, fine in (("deb", (downloads,), (0,)), ("tests.bench", names, (0, 1))):
            command = [sys.executable, "-m", module, *options]
            code = subprocess.run(command, cwd=folder, env=own, stdout=sys.stderr, check=False).returncode
            if code not in fine:
                raise BedError(f"{' '.join(command)} of {revision} ended with {code}: see above")
        bench: Bench = json.loads((folder / "build/bench.json").read_text())
        return bench
    finally:
        _git("worktree", "remove", "--force", str(folder))


def _git(*words: str) -> None:
    done = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BedError(f"git {' '.join(words)}: {done.stderr.strip()}")
