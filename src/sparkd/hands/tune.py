"""Settings of the kernel, set and taken back: one file of sysctl.d, the live values, and a memory of what they were."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from sparkd.errors import ConfigError, UsageError
from sparkd.hands import files
from sparkd.host import sysctl
from sparkd.host.files import Files

PATH = "/etc/sysctl.d/60-sparkd.conf"
STATE = "/var/lib/sparkd/tune.json"
HEADER = "# Written by `sparkd tune apply`"
"""First words of a file of ours. One without them is somebody's own: never overwritten, never removed."""

_BY_HAND = f"look at it, set what it names by hand (sysctl -w), and remove it and {PATH}"
_NAME = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)+")


class Change(Struct, frozen=True):
    name: str
    before: str
    after: str


class Tuning:
    """The machine below `root`. Methods that change it raise UsageError where this user may not."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._files = Files(str(root))

    def now(self, name: str) -> str | None:
        """Raises ConfigError where this kernel has such a setting, and does not tell it."""
        try:
            return sysctl.read(self._files, name)
        except OSError as error:
            raise ConfigError(f"{name} can't be read: {error.strerror}", f"look at: sysctl {name}") from None

    def set_at_boot(self, names: Iterable[str]) -> dict[str, str]:
        """Which file has the last word on each at boot, for those that a file sets."""
        return sysctl.set_at_boot(self._files, names)

    def in_file(self) -> str | None:
        """Text of our file, None where there is none. Raises ConfigError where it is somebody else's."""
        try:
            text = self._files.itself(PATH, 1 << 20).content.decode("utf-8", "backslashreplace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{PATH} can't be read: {error.strerror}", f"ls -l {PATH}") from None
        if not text.startswith(HEADER):
            raise ConfigError(f"{PATH} was not written by sparkd", "move it to another name")
        return text

    def remembered(self) -> dict[str, str]:
        """What the values were before sparkd first set them. Raises ConfigError where that can't be told."""
        try:
            found: object = json.loads(self._files.text(STATE, limit=1 << 20))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{STATE} can't be read: {error}", _BY_HAND) from None
        match found:
            case {"schema": 1, "before": dict() as before} if all(map(_is_setting, before.items())):
                return before
        raise ConfigError(f"{STATE} does not say what the settings were", _BY_HAND)

    def apply(self, wanted: Mapping[str, str], text: str) -> tuple[Change, ...]:
        """Set `wanted`, now and, by the file `text`, at each boot. What was set and is wanted no more is taken back.

        What the values were is written down first: whatever interrupts this, `revert` finds the way back.
        """
        with self._alone():
            return self._apply(wanted, text)

    def _apply(self, wanted: Mapping[str, str], text: str) -> tuple[Change, ...]:
        found, known = self.in_file(), self.remembered()
        before = {name: self._existing(name) for name in wanted} | known
        if before != known:
            self._remember(before)
        if found != text:
            self._write(PATH, text)
        gone = before.keys() - wanted.keys()
        changes = self._set(dict(wanted) | {name: before[name] for name in gone})
        if gone:
            self._remember({name: before[name] for name in wanted})
        return changes

    def revert(self) -> tuple[Change, ...]:
        """Remove the file, and give each setting the value that it had. Nothing else is touched."""
        with self._alone():
            return self._revert()

    def _revert(self) -> tuple[Change, ...]:
        found, before = self.in_file(), self.remembered()
        changes: list[Change] = []
        stuck: dict[str, str] = {}
        for name, value in before.items():
            try:
                changes += self._set({name: value})  # one that this kernel no longer has needs no way back
            except ConfigError as error:
                stuck[name] = error.reason
        if found is not None:
            self._remove(PATH)
        if stuck:
            # vm.dirty_bytes takes every value but the 0 that it had at boot.
            self._remember({name: before[name] for name in stuck})
            raise ConfigError("; ".join(stuck.values()), f"all else is taken back, {PATH} too: reboot gives these back")
        if before:
            self._remove(STATE)
        return tuple(changes)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Two at once would remember each other's values as those of before."""
        folder = (self._root / STATE.lstrip("/")).parent
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(f"{folder} can't be written to: {error.strerror}", "run it as root") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise UsageError("another `sparkd tune` is under way", "wait for it") from None
        finally:
            os.close(fd)

    def _existing(self, name: str) -> str:
        value = self.now(name)
        if value is None:
            raise ConfigError(f"{name}: this kernel has no such setting", "take it out of the recipe's host.sysctls")
        return value

    def _set(self, values: Mapping[str, str]) -> tuple[Change, ...]:
        changes = []
        for name, value in sorted(values.items()):
            before = self.now(name)
            if before is None or before == value:
                continue
            try:
                Path(self._files.real(sysctl.path(name))).write_text(f"{value}\n", encoding="ascii")
            except OSError as error:
                reason = f"{name} can't be set to {value}: {error.strerror}"
                if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise UsageError(reason, "run it as root, on the node itself") from None
                raise ConfigError(reason, "sparkd tune revert takes back what was set") from None
            after = self.now(name) or ""
            changes.append(Change(name, before, after))
            if after != value:
                raise ConfigError(f"{name}: the kernel made {after or 'nothing'} of {value}", f"look at: sysctl {name}")
        return tuple(changes)

    def _remember(self, before: Mapping[str, str]) -> None:
        self._write(STATE, json.dumps({"schema": 1, "before": dict(sorted(before.items()))}, indent=1) + "\n")

    def _write(self, path: str, text: str) -> None:
        try:
            files.write(self._root / path.lstrip("/"), text, 0o644, durable=True)
        except OSError as error:
            raise UsageError(f"{path} can't be written: {error.strerror}", "run it as root") from None

    def _remove(self, path: str) -> None:
        target = self._root / path.lstrip("/")
        try:
            target.unlink(missing_ok=True)
            files.sync_folder(target.parent)
        except OSError as error:
            raise UsageError(f"{path} can't be removed: {error.strerror}", "run it as root") from None


def _is_setting(entry: tuple[object, object]) -> bool:
    name, value = entry
    return isinstance(name, str) and isinstance(value, str) and value.isascii() and _NAME.fullmatch(name) is not None
