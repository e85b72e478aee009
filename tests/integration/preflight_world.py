"""Tests of preflight in a world with a real kernel: start an engine, orphan it, and describe a check's verdict.

`run` is for the tests. The other functions are for the programs in the world, which have them imported.
"""

import os
import subprocess
import sys
import textwrap
import time

from tests.integration import world
from tests.integration.engine_alike import SEGMENT, SEMAPHORE

from sparkd.agent.preflight.check import AnyCheck
from sparkd.base.host import Host

PORT = 29501
"""The worker of an engine listens there."""
IMPORTS = f"""
import json, os, signal, subprocess, sys, time
from sparkd.base.host import Host
from {__name__} import age_segments, describe, orphan_engine, start_engine
"""


def run(*parts: str) -> object:
    """What a program of these parts prints as JSON. It is PID 1 of its world: orphans become its children."""
    return world.run(IMPORTS + "".join(map(textwrap.dedent, parts)))


def start_engine(*words: str) -> "subprocess.Popen[bytes]":
    """The main process of an engine whose worker listens and has its segments. `words`: engine_alike's."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.engine_alike", str(PORT), *words], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def orphan_engine(*words: str) -> None:
    """Leave an engine whose main process was killed."""
    process = start_engine(*words)
    process.kill()
    process.wait()


def age_segments(seconds: float = 3600) -> None:
    """Let an engine's segments look as if they were last written so long ago."""
    for path in (SEGMENT, SEMAPHORE):
        os.utime(path, (time.time() - seconds, time.time() - seconds))


def describe(check: AnyCheck) -> dict[str, object]:
    """A check's verdict on this world; its fixes by the name of the process, or else by their whole target."""
    _facts, verdict = check.run(Host())
    return {
        "level": verdict.level.value,
        "reason": verdict.reason,
        "clears": verdict.clears,
        "fixes": [fix.target.partition(" (")[2].rstrip(")") or fix.target for fix in verdict.fixes],
    }
