"""The command line in the test's own process, since one of its own takes a third of a second to begin; or by bash."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from sparkd.tools.cli import main

SPARKD = str(Path(sys.executable).parent / "sparkd")
INTERRUPTIBLE = ("env", "--default-signal=INT,HUP")
"""Goes before a command that a test interrupts: in a shell's background job, processes begin with SIGINT ignored, and
under nohup with SIGHUP.
"""


needs_no_agent = pytest.mark.skipif(
    Path("/run/sparkd/report.json").exists(), reason="an agent has run on this machine since boot"
)
needs_no_unit = pytest.mark.skipif(
    Path("/usr/lib/systemd/system/sparkd-head.service").exists(), reason="sparkd's units are installed on this machine"
)


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@contextmanager
def stdin_of(file: IO[str] | None) -> Iterator[None]:
    """The standard input of a command line; None where it is closed, as by <&-."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", file)
        yield


def sparkd(*words: str, config: Path | str = "/dev/null/none", **env: str) -> Done:
    """What a person gets who says these words, with no other SPARKD_* in the environment than these."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name in [name for name in os.environ if name.startswith("SPARKD_")]:
            patch.delenv(name)
        for name, value in {"SPARKD_CONFIG": str(config), **env}.items():
            patch.setenv(name, value)
        try:
            code = main.main([*words])
        except SystemExit as ended:  # --help
            code = int(ended.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def bash(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=60)
