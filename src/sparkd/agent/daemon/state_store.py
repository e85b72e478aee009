"""The state files of an agent, read and written beside its loop: their disk may hang, and ends no engine.

A file that can't be read or written costs an event, once.
"""

from __future__ import annotations

from collections.abc import Callable
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
from sparkd.base.state.rank_record import FILE as RANK_FILE
from sparkd.base.state.rank_record import RankRecord
from sparkd.base.status.model import utc_now

READ_SECONDS = 10.0
"""As long as a write may take."""

T = TypeVar("T")


class StateStore(Struct):
    """Used by the main thread."""

    host: Host
    actions: Actions
    loop: MainLoop
    events: Events
    _unwritten: set[str] = field(default_factory=set)
    """Files whose last write failed."""
    _unread: set[str] = field(default_factory=set)
    """Why files could not be read, as logged."""

    def read(self, reading: Callable[[Files, Report], T]) -> T:
        """What `reading(files, report)` makes of state files. Raises OSError where their disk hangs."""
        faults = list[str]()
        work = partial(reading, self.host.files, faults.append)
        content = self.loop.beside(work, READ_SECONDS, f"reading {FOLDER}", shielded=True)
        self.report_unread(*faults)
        return content

    def try_read(self, reading: Callable[[Files, Report], T]) -> T | None:
        """As `read`, but None, which is reported, where it would raise."""
        try:
            return self.read(reading)
        except OSError as error:
            self.report_unread(str(error))
            return None

    def report_unread(self, *reasons: str) -> None:
        """State files are unusable: the agent continues without them."""
        for reason in reasons:
            if reason not in self._unread:
                self._unread.add(reason)
                self.events.warning("state.read.failed", reason=reason)

    def read_launches(self) -> LaunchHistory:
        """From disk each time, so removing the file resets it. Empty where it can't be read."""
        return self.try_read(launch_history.read_history) or LaunchHistory()

    def require_launches(self) -> LaunchHistory:
        """As `read_launches`, where what is unknown must not count as nothing. Raises BlockedError (exit 10)."""
        try:
            return self.read(launch_history.read_history)
        except OSError as error:
            usual = f"what holds {FOLDER}? look at: sudo dmesg; a file that stays unreadable: move it away"
            raise BlockedError(str(error), getattr(error, "hint", usual)) from None  # a FolderError's

    def record(self, change: Callable[[LaunchHistory], LaunchHistory]) -> bool:
        """Write the changed launch history, safe against crashes and power cuts; whether that worked."""
        before = self.try_read(launch_history.read_history)
        if before is None:  # what is there must not be lost
            return False
        after = change(before)
        return after == before or self.write(launch_history.FILE, after)

    def record_start(self, boot_id: str) -> None:
        """Record that this process began: until its end is recorded, it counts as killed."""
        self.record(lambda launches: launches.recover(boot_id, utc_now()))

    def write(self, file: StateFile[Content], value: Content) -> bool:
        """Returns whether it worked. A full disk is logged once and ends no engine."""
        write = partial(self.actions.write_state, file.name, file.encode(value), file.mode)
        return self._try_to_write(file.name, write)

    def write_rank(self, record: RankRecord) -> bool:
        """Write the rank's own record, in /run, likewise."""
        return self._try_to_write(RANK_FILE.name, partial(self.actions.write_rank, record), RANK_FILE.folder)

    def write_private(self, file: StateFile[Content], value: Content) -> bool:
        """Write what else of the rank the next process needs, likewise."""
        write = partial(self.actions.write_private, file.path, file.encode(value))
        return self._try_to_write(file.name, write, file.folder)

    def exchange(self, file: StateFile[Content], before: Content | None, after: Content | None) -> bool:
        """Write it likewise, where the file still holds `before`. `after` None: remove it."""
        return self._try_to_write(file.name, partial(self.actions.exchange_state, file, before, after))

    def _try_to_write(self, name: str, write: Callable[[], bool | None], folder: str = FOLDER) -> bool:
        try:
            done = write() is not False
        except OSError as failure:
            error = FolderError(f"{folder}/{name}") if isinstance(failure, IsADirectoryError) else failure
            if name not in self._unwritten:
                hint = getattr(error, "hint", f"df -h {folder}")  # a SharedFolderError's, too
                self.events.error("state.write.failed", file=name, reason=error.strerror or str(error), hint=hint)
            self._unwritten.add(name)
            return False
        self._unwritten.discard(name)
        return done
