"""`sparkd bench --soak` that a signal ends: its results are printed all the same."""

import json
import signal
import subprocess
import sys
import time

import pytest
from tests.unit.stream_server import streaming

ENDED = """
import os, signal, sys
signal.signal(signal.SIGINT, getattr(signal, sys.argv[2]))
from sparkd.agent.actions.rank_process import Rank
from sparkd.tools.measure.interrupts import catch_ends
from sparkd.tools.node.served import Served
from sparkd.tools.cli.bench import run_soak
from sparkd.tools.measure.bench import Wanted
from sparkd.base.vllm.api import Endpoint
catch_ends()
rank = Rank("", "", "", os.getpid(), os.pidfd_open(os.getpid()))
served = Served(None, None, rank, Endpoint("127.0.0.1", int(sys.argv[1]), "tiny"))
sys.exit(run_soak(served, Wanted((1,), (), 10, 3, 1, staggered=False, seed=1), 60, as_json=True))
"""


@pytest.mark.parametrize(
    ("before", "ends"),
    [
        ("default_int_handler", (signal.SIGTERM, signal.SIGHUP)),
        ("SIG_IGN", (signal.SIGTERM, signal.SIGHUP)),
        ("default_int_handler", (signal.SIGINT,) * 20),
    ],
)
def test_the_end_of_a_session_loses_no_result(before: str, ends: tuple[signal.Signals, ...]) -> None:
    """Ignored: of a command that a script has begun with `&`. Twenty: pressed again while it is being printed."""
    with streaming(0.02, 0.01) as port:
        words = (sys.executable, "-c", ENDED, str(port), before)
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("sparkd: 0 s: available ")
            for end in ends:
                process.send_signal(end)
                time.sleep(0.002)  # two that wait are one
            out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert json.loads(out)["interrupted"]
