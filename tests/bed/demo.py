"""Boot a node, install the .deb, start the unit, and request a completion."""

import json
import subprocess
import time
from pathlib import Path

from .bed import Bed
from .sparkd_node import HEAD, SERVING_SECONDS, SparkdNode

PROMPT = "The quick brown fox"


def newest_package(folder: Path, architecture: str = "") -> Path:
    """The package that `make deb` has just built for this machine, or for an architecture."""
    command = ["dpkg", "--print-architecture"]
    architecture = architecture or subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return max(folder.glob(f"sparkd_*_{architecture}.deb"), key=lambda path: path.stat().st_mtime)


def demo(package: Path) -> None:
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {line}", flush=True)

    say("making a bed (the first time, everything slow is built: some ten minutes)")
    with Bed() as bed:
        node = bed.node("spark1")
        node.boot()
        say(f"{node.name} is up: systemd, docker, vLLM for the CPU, a tiny model")
        spark = SparkdNode(node)
        say(f"# apt install ./{package.name}")
        spark.install(package)
        spark.configure()
        say(f"# systemctl start {HEAD}")
        shown = ""
        with spark.starting() as start:
            while start.poll() is None and time.monotonic() - began < SERVING_SECONDS * 4:
                if (status := spark.status_text()) != shown:
                    shown = status
                    say(f"  {status}")
                time.sleep(0.2)
        if start.returncode:
            raise SystemExit(spark.node.journal(HEAD))
        print(node.run("systemctl", "status", "--no-pager", "--lines=0", HEAD).stdout)
        say(f"POST /v1/completions {PROMPT!r}")
        answer = node.post(8000, "/v1/completions", {"model": "tiny", "prompt": PROMPT, "max_tokens": 8})
        text = json.loads(answer.body)["choices"][0]["text"]
        say(f"{answer.status}: {text!r} (random weights make random words)")
        say("done; the node is thrown away. To play with one: python3 -m tests.bed up")
