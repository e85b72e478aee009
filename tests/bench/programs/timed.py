"""Runs in the node: how long a command takes, from the start of its process to its end.

timed.py RUNS COMMAND...     one line of JSON for each run: began (CLOCK_MONOTONIC), seconds, code, output
"""

from __future__ import annotations

import json
import subprocess
import sys
import time


def main(runs: int, command: list[str]) -> None:
    for _ in range(runs):
        began = time.monotonic()
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            output, _ = process.communicate()
        seconds = time.monotonic() - began
        tail = output.decode(errors="replace")[-2000:]
        print(json.dumps({"began": began, "seconds": seconds, "code": process.returncode, "output": tail}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
