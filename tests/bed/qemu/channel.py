"""Lines of JSON over a socket: QEMU's own protocol (QMP), and that of its agent in the guest."""

import itertools
import json
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.bed.command import BedError
from tests.bed.processes import wait_for

CONNECT_SECONDS = 20.0
SYNC_SECONDS = 5.0


class Channel:
    """One question at a time; what else comes meanwhile, such as events, is passed over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        made = wait_for(self._connected, CONNECT_SECONDS, f"{path.name} to answer")
        assert made is not None
        self._socket = made
        self._pending = b""
        self._numbers = itertools.count(1)

    def _connected(self) -> socket.socket | None:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(str(self._path))
        except OSError:
            made.close()
            return None
        return made

    def call(self, command: str, arguments: Mapping[str, object] | None = None, timeout: float = 60) -> Any:
        """Its answer; BedError for an error, or for none in time."""
        deadline = time.monotonic() + timeout
        self._send({"execute": command, "arguments": arguments or {}}, timeout)
        while True:
            try:
                message = self._line(deadline)
            except TimeoutError:
                raise BedError(f"{self._path.name}: {command}: no answer in {timeout:g} s") from None
            if "return" in message:
                return message["return"]
            if "error" in message:
                raise BedError(f"{self._path.name}: {command}: {message['error'].get('desc', message['error'])}")

    def sync(self, seconds: float) -> None:
        """Until the agent answers: it starts late, and may find old questions when it does."""
        deadline = time.monotonic() + seconds
        while True:
            number = next(self._numbers)
            with suppress(TimeoutError):
                self._send({"execute": "guest-sync", "arguments": {"id": number}}, SYNC_SECONDS)
                while self._line(time.monotonic() + SYNC_SECONDS).get("return") != number:
                    pass
                return
            if time.monotonic() > deadline:
                raise BedError(f"waited {seconds:g} s without result for {self._path.name}")

    def _send(self, message: object, timeout: float) -> None:
        self._socket.settimeout(timeout)
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _line(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._pending:
            self._socket.settimeout(max(0.01, deadline - time.monotonic()))
            chunk = self._socket.recv(1 << 16)
            if not chunk:
                raise BedError(f"{self._path.name} has closed")
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        message = json.loads(line)
        return message if isinstance(message, dict) else {}

    def close(self) -> None:
        self._socket.close()
