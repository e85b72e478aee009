"""Write and remove the drop-ins of sparkd's units."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from sparkd.actions import files
from sparkd.config.units import ROLES, DropIn, State, judge
from sparkd.host.files import Files
from sparkd.lib.errors import ConfigError, SparkdError

RELOAD_TIMEOUT_SECONDS = 60


class UnitFiles:
    """Drop-ins below `root`; systemd is reloaded after a change. Raises UsageError where this user may not."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def install(self, wanted: tuple[DropIn, ...]) -> list[str]:
        """Write or remove drop-ins as wanted; returns the changes. Raises ConfigError before any change."""
        host_files = Files(str(self._root))
        states = [(dropin, judge(host_files, dropin)) for dropin in wanted]
        for dropin, state in states:
            if state is State.FOREIGN and dropin.text:
                raise ConfigError(f"{dropin.path} {state.value}", "move it to another name")
        changes = []
        for dropin, state in states:
            path = self._root / dropin.path.lstrip("/")
            if state in (State.MISSING, State.DIFFERS):
                with files.usage_error(f"{dropin.path} can't be written"):
                    files.write(path, dropin.text, 0o644, durable=True)
                changes.append(f"wrote {dropin.path}")
            elif state is State.LEFT_OVER:
                with files.usage_error(f"{dropin.path} can't be removed"):
                    path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # the folder, if it was the last one in it
                    path.parent.rmdir()
                changes.append(f"removed {dropin.path}")
        if changes:
            self.daemon_reload()
        return changes

    def remove(self) -> list[str]:
        """Remove every drop-in that sparkd wrote; returns the changes."""
        return self.install(tuple(DropIn(role, "") for role in ROLES))

    def daemon_reload(self) -> None:
        """Only where systemd runs, so not in a chroot."""
        if not (self._root / "run/systemd/system").is_dir():
            return
        command = ["systemctl", "daemon-reload"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=RELOAD_TIMEOUT_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            stderr = getattr(error, "stderr", "") or str(error)
            raise SparkdError(f"systemd did not reload: {stderr.strip()}", "systemctl daemon-reload") from None
