"""Reads and writes the state files of an agent beside its loop, so that a disk that hangs ends no engine.

A file that can't be read or written is logged as an event, once.
"""

import errno
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from msgspec import Struct, field

from sparkd.agent.actions import Actions
from sparkd.base.host import Host
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.log import Events
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.state import launch_history
from sparkd.base.state.file import FOLDER, Content, FolderError, Report, StateFile
from sparkd.base.state.launch_history import LaunchHistory
from sparkd.base.state.shared_config import digest_of

READ_SECONDS = 10.0
"""Limit for a read: as long as a write may take."""
UNREAD_HINT = f"what holds {FOLDER}? look at: sudo dmesg; a file that stays unreadable: move it away"

T = TypeVar("T")


def find_remedy(error: OSError, folder: str = FOLDER) -> str:
    """What to do where a file in the folder can't be written: the error's own hint, as a SharedFolderError has one."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "hint", f"df -h {folder}" if is_full else "why it fails, or is read-only: sudo dmesg")


class StateStore(Struct):
    """The state files of this node. Used by the main thread."""

    host: Host
    actions: Actions
    loop: MainLoop
    events: Events
    _unwritten: set[str] = field(default_factory=set)
    """Files whose last write failed."""
    _unread: set[str] = field(default_factory=set)
    """Why files could not be read, as logged already."""
    last_failure: tuple[str, str] = ("", "")
    """Reason and hint of the last failure to read or write one."""

    def read(self, reading: Callable[[Files, Report], T]) -> T:
        """Read state files by `reading(files, report)`. Raises OSError where their disk hangs."""
        faults = list[str]()
        work = partial(reading, self.host.files, faults.append)
        content = self.loop.beside(work, READ_SECONDS, f"reading {FOLDER}", shielded=True)
        self.report_unread(*faults)
        return content

    def try_read(self, reading: Callable[[Files, Report], T]) -> T | None:
        """Read as `read` does; None where that raises OSError, which is logged."""
        try:
            return self.read(reading)
        except OSError as error:
            self.last_failure = str(error), getattr(error, "hint", UNREAD_HINT)
            self.report_unread(str(error))
            return None

    def report_unread(self, *reasons: str) -> None:
        """Log, once each, why state files are unusable. The agent continues without them."""
        for reason in reasons:
            if reason not in self._unread:
                self._unread.add(reason)
                self.events.warning("state.read.failed", reason=reason)

    def read_launches(self) -> LaunchHistory:
        """The launch history, empty where it can't be read. It is read each time, so removing the file resets it."""
        return self.try_read(launch_history.read_history) or LaunchHistory()

    def require_launches(self) -> LaunchHistory:
        """The launch history. Raises BlockedError (exit 10) where it can't be read and must not count as empty."""
        try:
            return self.read(launch_history.read_history)
        except OSError as error:
            raise BlockedError(str(error), getattr(error, "hint", UNREAD_HINT)) from None  # a FolderError's

    def record(self, change: Callable[[LaunchHistory], LaunchHistory]) -> bool:
        """Write the changed launch history, safe against crashes and power cuts. Returns whether that worked."""
        history = self.try_read(launch_history.read_history)
        if history is None:  # an unread history must not be overwritten
            return False
        changed_history = change(history)
        return changed_history == history or self.write(launch_history.FILE, changed_history)

    def write(self, file: StateFile[Content], value: Content) -> bool:
        """Returns whether it worked. A full disk is logged once and ends no engine."""
        write = partial(self.actions.write_state, file.name, file.encode(value), file.mode)
        return self._try_to_write(file.name, write)

    def write_private(self, file: StateFile[Content], value: Content) -> bool:
        """Write the rank's record, or another private file of its, in /run, for the next process. As `write`."""
        write = partial(self.actions.write_private, file.path, file.encode(value))
        return self._try_to_write(file.name, write, file.folder)

    def replace_head_files(self, contents: Iterable[bytes]) -> bool:
        """Let the folder of the head's files have these and no others. As `write`."""
        wanted = {digest_of(content): content for content in contents}
        return self._try_to_write("head-files", partial(self.actions.replace_head_files, wanted))

    def compare_and_swap(self, file: StateFile[Content], before: Content | None, after: Content | None) -> bool:
        """Replace `before` by `after`, or remove the file where that is None. As `write`.

        Returns False, too, where the file holds something else than `before`.
        """
        return self._try_to_write(file.name, partial(self.actions.compare_and_swap, file, before, after))

    def _try_to_write(self, name: str, write: Callable[[], bool | None], folder: str = FOLDER) -> bool:
        try:
            is_written = write() is not False
        except OSError as write_error:
            error = FolderError(f"{folder}/{name}") if isinstance(write_error, IsADirectoryError) else write_error
            self.last_failure = reason, hint = error.strerror or str(error), find_remedy(error, folder)
            if name not in self._unwritten:
                self.events.error("state.write.failed", file=name, reason=reason, hint=hint)
            self._unwritten.add(name)
            return False
        self._unwritten.discard(name)
        return is_written
