"""Drop-ins of sparkd's units below a root, with a reload of systemd after each change."""

import subprocess
from contextlib import suppress
from pathlib import Path

from sparkd.agent.actions import files
from sparkd.base.config.units import DropIn, DropInState, compare_file
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import ConfigError, SparkdError
from sparkd.tools.node.command_lock import usage_error


class UnitFiles:
    """Drop-ins below `root`; systemd is reloaded after a change. Raises UsageError where this user may not."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def install(self, dropins: tuple[DropIn, ...]) -> list[str]:
        """Write the drop-ins, remove those without a text, and return the changes. Raises ConfigError before any."""
        host_files = Files(str(self._root))
        states = [(dropin, compare_file(host_files, dropin)) for dropin in dropins]
        for dropin, state in states:
            if state is DropInState.FOREIGN and dropin.text:
                raise ConfigError(f"{dropin.path} {state.value}", "move it to another name")
        changes = []
        for dropin, state in states:
            if state in (DropInState.MISSING, DropInState.DIFFERS):
                write(self._root, dropin.path, dropin.text)
                changes.append(f"wrote {dropin.path}")
            elif state is DropInState.LEFT_OVER:
                remove(self._root, dropin.path)
                with suppress(OSError):  # the folder has other files
                    (self._root / dropin.path.lstrip("/")).parent.rmdir()
                changes.append(f"removed {dropin.path}")
        if changes:
            self.daemon_reload()
        return changes

    def daemon_reload(self) -> None:
        """Let systemd read its units again; where it does not run, as in a chroot, do nothing. Raises SparkdError."""
        if not (self._root / "run/systemd/system").is_dir():
            return
        command = ["systemctl", "daemon-reload"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            stderr = getattr(error, "stderr", "") or str(error)
            raise SparkdError(f"systemd did not reload: {stderr.strip()}", "sudo systemctl daemon-reload") from None


def write(root: Path, path: str, text: str, mode: int = 0o644) -> None:
    """Write a file below `root`. Raises UsageError."""
    with usage_error(f"{path} can't be written"):
        files.write(root / path.lstrip("/"), text, mode, durable=True)


def remove(root: Path, path: str) -> None:
    """Remove a file below `root`. Raises UsageError."""
    with usage_error(f"{path} can't be removed"):
        files.remove(root / path.lstrip("/"))
