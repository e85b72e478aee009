"""Messages to systemd, which are not sent without a NOTIFY_SOCKET, and systemd's environment variables."""

from __future__ import annotations

from collections.abc import Mapping

import sdnotify


class Notifier:
    def __init__(self) -> None:
        self._socket = sdnotify.SystemdNotifier()
        self._status = ""

    def ready(self) -> None:
        self._socket.notify("READY=1")

    def stopping(self) -> None:
        self._socket.notify("STOPPING=1")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows. Sent only on change."""
        line = " ".join(text.split())
        if line != self._status:
            self._status = line
            # sdnotify encodes as Latin-1 and drops other characters; systemd expects UTF-8.
            self._socket.notify(f"STATUS={line}".encode("utf-8", "replace").decode("latin-1"))

    def alive(self) -> None:
        self._socket.notify("WATCHDOG=1")

    def extend(self, seconds: float) -> None:
        """Set the timeout of a start or a stop to this long from now."""
        self._socket.notify(f"EXTEND_TIMEOUT_USEC={round(seconds * 1_000_000)}")


def invocation_id(env: Mapping[str, str]) -> str:
    """32 hex digits of this start of the unit; empty outside a unit."""
    value = env.get("INVOCATION_ID", "")
    return value if len(value) == 32 and all(c in "0123456789abcdef" for c in value) else ""


def watchdog_seconds(env: Mapping[str, str]) -> float | None:
    """Time without WATCHDOG=1 after which systemd ends the unit; None without a watchdog."""
    raw = env.get("WATCHDOG_USEC", "")
    return int(raw) / 1_000_000 if raw.isdigit() and int(raw) > 0 else None
