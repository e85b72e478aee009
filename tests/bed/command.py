"""Commands on this machine, with errors that say what failed and why."""

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

Argument = str | Path


class BedError(Exception):
    """The bed itself failed (not what is tested in it)."""


def words(argv: Sequence[Argument]) -> list[str]:
    return [os.fspath(word) for word in argv]


def run(
    *argv: Argument, check: bool = True, env: Mapping[str, str] | None = None, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run to the end, output captured as text."""
    command = words(argv)
    result = subprocess.run(command, check=False, env=env, timeout=timeout, capture_output=True, text=True)
    if check and result.returncode:
        raise BedError(failure(command, result.returncode, result.stderr or result.stdout))
    return result


def failure(command: Sequence[str], code: int, output: str) -> str:
    """One line of blame, then the end of its output."""
    shown = shlex.join(command)
    if len(shown) > 300:
        shown = shown[:300] + " ..."
    ending = "\n  ".join(output.strip().splitlines()[-15:])
    return f"exit {code}: {shown}\n  {ending}"
