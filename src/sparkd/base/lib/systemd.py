"""systemd: messages to it, its environment variables, and its jobs."""

from collections.abc import Iterable, Mapping
from contextlib import suppress

import sdnotify


class Notifier:
    """Sends sd_notify(3) messages to systemd. Without a NOTIFY_SOCKET nothing is sent."""

    def __init__(self) -> None:
        self._socket = sdnotify.SystemdNotifier()
        self._status = ""

    def send(self, state: str) -> None:
        """Send an assignment of sd_notify(3)."""
        self._socket.notify(state)

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows. Sent only on change."""
        line = " ".join(text.split())
        if line != self._status:
            self._status = line
            # sdnotify encodes as Latin-1 and drops other characters; systemd expects UTF-8.
            self.send(f"STATUS={line}".encode("utf-8", "replace").decode("latin-1"))


def invocation_id(env: Mapping[str, str]) -> str:
    """32 hex digits of this start of the unit; empty outside a unit."""
    value = env.get("INVOCATION_ID", "")
    return value if len(value) == 32 and all(c in "0123456789abcdef" for c in value) else ""


def watchdog_seconds(env: Mapping[str, str]) -> float | None:
    """Time without WATCHDOG=1 after which systemd ends the unit; None without a watchdog."""
    raw = env.get("WATCHDOG_USEC", "")
    return int(raw) / 1_000_000 if raw.isdigit() and int(raw) > 0 else None


def read_unit(unit: str) -> tuple[str, str]:
    """ActiveState= of a unit, and the line that it reported last by STATUS=. Empty where systemctl does not answer."""
    lines = (_call_systemctl("show", "--property=ActiveState,StatusText", "--", unit) or "").splitlines()
    values = dict(line.partition("=")[::2] for line in lines)
    return values.get("ActiveState", ""), values.get("StatusText", "")


def is_stop_ordered(units: Iterable[str]) -> bool:
    """Whether systemd has a job to stop or restart one of the units. True also where systemctl does not answer."""
    if (output := _call_systemctl("list-jobs", "--no-legend", "--plain", *units)) is None:
        return True
    jobs = [words for words in map(str.split, output.splitlines()) if words and words[0].isdigit()]
    return not all(words[2:3] in (["start"], ["reload"]) for words in jobs)


def _call_systemctl(*words: str) -> str | None:
    """What systemctl prints; None where it fails."""
    import subprocess  # here, so that a program that only sends messages can start no other

    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(("systemctl", *words), capture_output=True, timeout=5, check=True)
        return done.stdout.decode("utf-8", "replace")
    return None
