"""Kernel settings of a recipe: set live and in one file of sysctl.d, after a record of the values before."""

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NoReturn

from msgspec import Meta, Struct

from sparkd.base.host import kernel
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import ConfigError, UsageError
from sparkd.base.state.file import PUBLIC, StateFile
from sparkd.tools.node.command_lock import hold_command_lock
from sparkd.tools.setup.setup_manifest import Setup
from sparkd.tools.setup.unit_files import remove, write

PATH = "/etc/sysctl.d/60-sparkd.conf"
HEADER = "# Written by `sparkd tune apply`"
"""The beginning of sparkd's files. A file without it is never overwritten and never removed."""

_PAIRED = {
    "vm.dirty_ratio": "vm.dirty_bytes",
    "vm.dirty_background_ratio": "vm.dirty_background_bytes",
    "vm.overcommit_ratio": "vm.overcommit_kbytes",
}
PAIRED = _PAIRED | {other: name for name, other in _PAIRED.items()}
"""The other one of two settings of which a value for one makes the other 0. Two zeros hold up every writer."""


class Saved(Struct, frozen=True):
    """The values before sparkd first set them."""

    before: dict[
        Annotated[str, Meta(pattern=r"\A[a-z0-9_-]+(?:\.[a-z0-9_-]+)+\Z")],
        Annotated[str, Meta(pattern=r"\A[\x00-\x7f]*\Z")],
    ]


FILE = StateFile(Saved, "tune.json", PUBLIC)


class SysctlManager:
    """The settings of the machine below `root`. Methods that change them raise UsageError where this user may not."""

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
        """The values before sparkd first set them. Raises ConfigError where the record can't be read.

        Without a 0 that an earlier version saved beside the setting that held: what that was is not known.
        """
        record = FILE.read(self._files, _refuse)
        before = {} if record is None else record.before
        return {name: value for name, value in before.items() if not self._makes_two_zeros(name, value)}

    def apply(self, wanted: Mapping[str, str], text: str) -> list[str]:
        """Set `wanted` now and, by a file with `text`, at each boot. Returns the changes.

        Settings of an earlier call that are not in `wanted` are restored. The values before are saved first, so that
        `revert` restores them after any interruption. Takes the lock, since two processes at once would save each
        other's values as those to restore.
        """
        with hold_command_lock(self._root):
            file_text, saved = self.file_content(), self.saved()
            old_values = self._add_current(wanted, saved)
            if old_values != saved:
                self._save(old_values)
            if file_text != text:
                write(self._root, PATH, text)
            kept = {name: value for name, value in old_values.items() if {name, PAIRED.get(name, "")} & wanted.keys()}
            dropped = {name: value for name, value in old_values.items() if name not in kept}
            changes = self._set({**dropped, **wanted})
            if dropped:
                self._save(kept)
            return changes

    def _add_current(self, wanted: Mapping[str, str], saved: dict[str, str]) -> dict[str, str]:
        """`saved` with the values of settings that sparkd did not set before. Raises ConfigError where one is unknown.

        Of two settings that exclude each other it has the one that holds.
        """
        old_values = dict(saved)
        for name in wanted:
            if (value := self.current(name)) is None:
                hint = "take it out of the recipe's host.sysctls"
                raise ConfigError(f"{name}: this kernel has no such setting", hint)
            other = PAIRED.get(name, "")
            if not saved.keys() & {name, other}:
                held = (self.current(other) or "0") if other and value == "0" else "0"
                old_values |= {name: value} if held == "0" else {other: held}
        return old_values

    def revert(self) -> list[str]:
        """Remove the file and restore each setting. Returns the changes."""
        with hold_command_lock(self._root):
            file_text, old_values = self.file_content(), self.saved()
            changes: list[str] = []
            unrestored: dict[str, str] = {}
            for name, value in old_values.items():
                try:
                    changes += self._set({name: value})
                except ConfigError as error:  # as of a file of /proc/sys that can't be read
                    unrestored[name] = error.reason
            if file_text is not None:
                remove(self._root, PATH)
                changes.append(f"removed {PATH}")
                note = f"{FILE.path} is gone, and with it what the values were: those of now stay until the next boot"
                changes += [] if old_values else [note]
            if unrestored:
                self._save({name: old_values[name] for name in unrestored})
                hint = f"all else is taken back, {PATH} too: reboot gives these back"
                raise ConfigError("; ".join(unrestored.values()), hint)
            if self._files.exists(FILE.path):
                remove(self._root, FILE.path)
            return changes

    def _makes_two_zeros(self, name: str, value: str) -> bool:
        """Whether this value would leave two settings that exclude each other at 0, with which every writer waits."""
        other = PAIRED.get(name, "")
        return bool(other) and value == "0" == self.current(other) and self.current(name) != "0"

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
        write(self._root, FILE.path, FILE.encode(Saved(dict(sorted(before.items())))))


def own_text(root: Path, path: str) -> str | None:
    """The file's text; None where there is none. Raises ConfigError where `sparkd tune` did not write it."""
    text = Setup(root).read(path)
    if text is not None and not text.startswith(HEADER):
        raise ConfigError(f"{path} was not written by sparkd", "move it to another name")
    return text


def _refuse(reason: str) -> NoReturn:
    raise ConfigError(reason, f"look at it, set what it names by hand (sudo sysctl -w), and remove it and {PATH}")
