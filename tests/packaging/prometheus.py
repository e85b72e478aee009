"""Prometheus of Debian's package, as `packaging/unpack.sh prometheus` has unpacked it, on loopback."""

import json
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.unit.wire import reserved_port

TOOLS = Path(__file__).parents[2] / "build/tools/prometheus/usr/bin"
PATIENCE_SECONDS = 30.0
Labels = Mapping[str, str]


def promtool(*words: str, stdin: str = "") -> str:
    """What it prints. Its own exit code also fails a page that breaks a convention."""
    done = subprocess.run([TOOLS / "promtool", *words], input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Prometheus:
    """One server with a configuration, until the end of `with`."""

    def __init__(self, config: Path, storage: Path) -> None:
        self._kept = ExitStack()
        self._address = f"127.0.0.1:{self._kept.enter_context(reserved_port())}"
        self._log = (storage.parent / "prometheus.log").open("w+")
        words = (f"--config.file={config}", f"--storage.tsdb.path={storage}", f"--web.listen-address={self._address}")
        self._process = subprocess.Popen([TOOLS / "prometheus", *words], stderr=self._log, cwd=storage.parent)

    def __enter__(self) -> Self:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with urlopen(f"http://{self._address}/-/ready", timeout=5):
                    return self
            except URLError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    self.__exit__(None, None, None)
                    raise
            time.sleep(0.1)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_SECONDS)
        self._kept.close()
        self._log.seek(0)
        print(self._log.read())
        self._log.close()

    def get(self, path: str, **parameters: str) -> Any:
        with urlopen(f"http://{self._address}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        return found["data"]

    def query(self, expression: str) -> list[Labels]:
        """The labels of each series that the expression has now."""
        return [one["metric"] for one in self.get("query", query=expression)["result"]]
