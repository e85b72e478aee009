"""Configuration of the system: drop-ins of sparkd's units, kernel settings, and the machine's watchdog.

Kernel settings are changed in one file of sysctl.d and live, after a record of the values before.
"""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

from msgspec import Meta, Struct

from sparkd.agent.actions import files
from sparkd.base.config.units import DropIn, DropInState, compare_file
from sparkd.base.host import kernel
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import ConfigError, SparkdError, UsageError
from sparkd.base.recipes.schema import Recipe
from sparkd.base.state.file import PUBLIC, StateFile
from sparkd.tools.setup.setup_manifest import Setup

PATH = "/etc/sysctl.d/60-sparkd.conf"
HEADER = "# Written by `sparkd tune apply`"
"""The beginning of sparkd's files. A file without it is never overwritten and never removed."""


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


class Saved(Struct, frozen=True):
    """The values before sparkd first set them."""

    before: dict[
        Annotated[str, Meta(pattern=r"\A[a-z0-9_-]+(?:\.[a-z0-9_-]+)+\Z")],
        Annotated[str, Meta(pattern=r"\A[\x00-\x7f]*\Z")],
    ]


FILE = StateFile("tune.json", Saved, PUBLIC)
STATE = FILE.path


class SysctlManager:
    """The machine below `root`. Methods that change it raise UsageError where this user may not."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._files = Files(str(root))

    def current(self, name: str) -> str | None:
        """The value now; None where this kernel has no such setting. Raises ConfigError where it can't be read."""
        try:
            return kernel.read_sysctl(self._files, name)
        except OSError as error:
            raise ConfigError(f"{name} can't be read: {error.strerror}", f"look at: sysctl {name}") from None

    def file_content(self) -> str | None:
        """The file of sysctl.d; None where there is none. Raises ConfigError where sparkd did not write it."""
        return own_text(self._root, PATH)

    def saved(self) -> dict[str, str]:
        """The values before sparkd first set them. Raises ConfigError where the record can't be read."""
        record = FILE.read(self._files, _refuse)
        return {} if record is None else record.before

    def apply(self, wanted: Mapping[str, str], text: str) -> list[str]:
        """Set `wanted` now and, by a file with `text`, at each boot. Returns the changes.

        Settings of an earlier call that are not in `wanted` are restored. The values before are saved first, so that
        `revert` restores them after any interruption. Takes the lock, since two processes at once would save each
        other's values as those to restore.
        """
        with files.locked(self._root):
            file_text, saved = self.file_content(), self.saved()
            old_values = dict(saved)
            for name in wanted:
                if (value := self.current(name)) is None:
                    hint = "take it out of the recipe's host.sysctls"
                    raise ConfigError(f"{name}: this kernel has no such setting", hint)
                old_values.setdefault(name, value)
            if old_values != saved:
                self._save(old_values)
            if file_text != text:
                write(self._root, PATH, text)
            changes = self._set({**old_values, **wanted})
            if old_values.keys() != wanted.keys():
                self._save({name: old_values[name] for name in wanted})
            return changes

    def revert(self) -> list[str]:
        """Remove the file and restore each setting. Returns the changes."""
        with files.locked(self._root):
            file_text, old_values = self.file_content(), self.saved()
            changes: list[str] = []
            unrestored: dict[str, str] = {}
            for name, value in old_values.items():
                try:
                    changes += self._set({name: value})
                except ConfigError as error:  # vm.dirty_bytes takes every value but the 0 that it had at boot
                    unrestored[name] = error.reason
            if file_text is not None:
                remove(self._root, PATH)
                changes.append(f"removed {PATH}")
                note = f"{STATE} is gone, and with it what the values were: those of now stay until the next boot"
                changes += [] if old_values else [note]
            if unrestored:
                self._save({name: old_values[name] for name in unrestored})
                hint = f"all else is taken back, {PATH} too: reboot gives these back"
                raise ConfigError("; ".join(unrestored.values()), hint)
            if old_values:
                remove(self._root, STATE)
            return changes

    def _set(self, values: Mapping[str, str]) -> list[str]:
        """Set the values; a setting that this kernel no longer has is skipped."""
        changes = []
        for name, value in sorted(values.items()):
            old_value = self.current(name)
            if old_value is None or old_value == value:
                continue
            try:
                Path(self._files.real(kernel.sysctl_path(name))).write_text(f"{value}\n", encoding="ascii")
            except OSError as error:
                reason = f"{name} can't be set to {value}: {error.strerror}"
                if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise UsageError(reason, "run it as root, on the node itself") from None
                raise ConfigError(reason, "sudo sparkd tune revert takes back what was set") from None
            new_value = self.current(name) or ""
            changes.append(f"{name}: {old_value} -> {new_value}")
            if new_value != value:
                raise ConfigError(
                    f"{name}: the kernel made {new_value or 'nothing'} of {value}", f"look at: sysctl {name}"
                )
        return changes

    def _save(self, before: Mapping[str, str]) -> None:
        write(self._root, STATE, FILE.encode(Saved(dict(sorted(before.items())))))


def own_text(root: Path, path: str) -> str | None:
    """The file's text; None where there is none. Raises ConfigError where `sparkd tune` did not write it."""
    text = Setup(root).read(path)
    if text is not None and not text.startswith(HEADER):
        raise ConfigError(f"{path} was not written by sparkd", "move it to another name")
    return text


def write(root: Path, path: str, text: str) -> None:
    """Write a file below `root`. Raises UsageError."""
    with files.usage_error(f"{path} can't be written"):
        files.write(root / path.lstrip("/"), text, 0o644, durable=True)


def remove(root: Path, path: str) -> None:
    """Remove a file below `root`. Raises UsageError."""
    with files.usage_error(f"{path} can't be removed"):
        files.remove(root / path.lstrip("/"))


def _refuse(reason: str) -> NoReturn:
    raise ConfigError(reason, f"look at it, set what it names by hand (sudo sysctl -w), and remove it and {PATH}")


WATCHDOG_DROPIN = "/etc/systemd/system.conf.d/50-sparkd.conf"
WATCHDOG_TEXT = f"{HEADER}; `sparkd tune revert` removes it.\n[Manager]\nRuntimeWatchdogSec=60\n"
"""systemd serves the hardware's watchdog, which resets a machine that freezes. It has 60 s and is served every 30 s,
since a machine that runs out of memory may stand still for tens of seconds, and recover."""
PANIC = {"kernel.panic": "30", "kernel.panic_on_oops": "1"}
"""A panic ends in a reboot after 30 s, in which pstore and a console can take the kernel's last messages. Without
kernel.hung_task_panic: a task that waits for a driver, a disk or a file server is no freeze."""


def apply_watchdog(root: Path) -> list[str]:
    """Let systemd serve the watchdog, and return lines on the change, or on why there is none.

    Raises ConfigError where somebody else's file has the name, UsageError.
    """
    with files.locked(root):
        file_text, recovery = own_text(root, WATCHDOG_DROPIN), kernel.read_recovery(Files(str(root)))
        if not recovery.watchdog:
            return ["this machine has no watchdog: if it freezes, its power must be cut"]
        if file_text is None and recovery.active:
            return [f"the watchdog ({recovery.watchdog}) is in use by something else: nothing is to be done"]
        if file_text == WATCHDOG_TEXT:
            return []
        write(root, WATCHDOG_DROPIN, WATCHDOG_TEXT)
        UnitFiles(root).daemon_reload()
        return [f"wrote {WATCHDOG_DROPIN}: the watchdog ({recovery.watchdog}) resets a frozen machine"]


def revert_watchdog(root: Path) -> list[str]:
    """Remove the file, and return lines on the change. Raises as `apply_watchdog`."""
    with files.locked(root):
        if own_text(root, WATCHDOG_DROPIN) is None:
            return []
        remove(root, WATCHDOG_DROPIN)
        UnitFiles(root).daemon_reload()
        return [f"removed {WATCHDOG_DROPIN}"]


def with_panic(recipe: Recipe) -> Recipe:
    """The recipe with the settings of PANIC, which no recipe may set by itself."""
    sysctls = {**recipe.host.sysctls, **PANIC}
    source = f"{', '.join(PANIC)}: --watchdog" + (f"; the others: {recipe.source}" if recipe.host.sysctls else "")
    host = recipe.host.model_copy(update={"sysctls": sysctls})
    return recipe.model_copy(update={"host": host, "source": source})
