"""The files that systemd reads, changed."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from sparkd.errors import SparkdError, UsageError
from sparkd.hands import files

RELOAD_TIMEOUT_SECONDS = 60


class UnitFiles:
    """Drop-ins below `root`, and systemd told of them. Raises UsageError where this user may not."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def write(self, path: str, text: str) -> None:
        try:
            files.write(self._root / path.lstrip("/"), text, 0o644, durable=True)
        except OSError as error:
            raise UsageError(f"{path} can't be written: {error.strerror}", "run it as root") from None

    def remove(self, path: str) -> None:
        """Remove the file, and its folder if it was the last one in it."""
        target = self._root / path.lstrip("/")
        try:
            target.unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(f"{path} can't be removed: {error.strerror}", "run it as root") from None
        with contextlib.suppress(OSError):
            target.parent.rmdir()

    def daemon_reload(self) -> None:
        """Only on a machine that systemd runs: not in a chroot, where an image is being made."""
        if not (self._root / "run/systemd/system").is_dir():
            return
        command = ["systemctl", "daemon-reload"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=RELOAD_TIMEOUT_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            raise SparkdError(f"systemd did not reload: {said.strip()}", "systemctl daemon-reload") from None
