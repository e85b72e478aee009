"""Headless Chromium, driven over the DevTools protocol by two pipes: no port, no library."""

import fcntl
import json
import os
import select
import subprocess
import time
from base64 import b64decode
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE_SECONDS = 60.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # the tests run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--no-first-run",
    "--no-proxy-server",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def _move(descriptor: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


class Browser:
    """One page. `troubles`: all that it wrote to its console, errors of scripts, and violations of a policy."""

    def __init__(self, profile: Path) -> None:
        # Chromium reads 3 and writes 4: its ends must not have these numbers here.
        (own_in, to_it), (from_it, own_out) = (map(_move, os.pipe()) for _ in range(2))
        words = ("/bin/bash", "-c", f'exec chromium "$@" 3<&{own_in} 4>&{own_out}', "bash", *FLAGS)
        self._process = subprocess.Popen(
            [*words, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(own_in, own_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile)},
        )
        os.close(own_in)
        os.close(own_out)
        self._to, self._from = os.fdopen(to_it, "wb", buffering=0), os.fdopen(from_it, "rb", buffering=0)
        self._data = b""
        self._last = 0
        self._session = ""
        self.troubles: list[str] = []
        (target, *_) = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        self._last += 1
        sent = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            sent["sessionId"] = self._session
        self._to.write(json.dumps(sent).encode() + b"\0")
        while (message := self._receive()).get("id") != self._last:
            self._note(message)
        assert "error" not in message, f"{method}: {message['error']}"
        result: dict[str, Any] = message["result"]
        return result

    def open(self, url: str) -> None:
        """Troubles of the page before are forgotten."""
        self.call("Page.navigate", url="about:blank")
        self.wait_for("document.URL === 'about:blank' && document.readyState === 'complete'")
        self.troubles.clear()
        self.call("Page.navigate", url=url)
        self.wait_for("document.URL !== 'about:blank' && document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression: str) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not self.evaluate(expression):
            assert time.monotonic() < end, f"it never came true: {expression}"
            time.sleep(0.1)

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        with suppress(OSError):
            self._session = ""
            self.call("Browser.close")
        self._process.kill()
        self._process.wait()
        self._to.close()
        self._from.close()

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._data:
            assert select.select([self._from], [], [], PATIENCE_SECONDS)[0], "the browser does not answer"
            more = os.read(self._from.fileno(), 1 << 20)
            assert more, "the browser has ended"
            self._data += more
        line, _, self._data = self._data.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.consoleAPICalled":
                self.troubles.append(str(parameters["args"]))
            case "Runtime.exceptionThrown":
                self.troubles.append(str(parameters["exceptionDetails"]))
            case "Log.entryAdded":
                self.troubles.append(str(parameters["entry"]["text"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
