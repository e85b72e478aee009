"""A running rank: its record, what watches it, its endpoint, its shared memory, and its end."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.agent.actions.rank_process import Rank
from sparkd.agent.actions.segments import find_own_segments
from sparkd.agent.engine.api_owner import ApiOwner
from sparkd.agent.engine.compilers import CompilerWatch
from sparkd.agent.engine.hang import HangWatch
from sparkd.agent.engine.log_reader import LogReader
from sparkd.agent.engine.memory_guard.guard import GuardState, MemoryGuard
from sparkd.agent.engine.memory_guard.tenants import Tenants, read_tenants
from sparkd.agent.engine.page_cache_release import PageCacheRelease
from sparkd.agent.preflight.checks.shared_memory import NAMES
from sparkd.agent.preflight.fixes import UnlinkSegment
from sparkd.base.host import Host
from sparkd.base.host.caches import count_objects
from sparkd.base.lib.http_client import CONNECTIONS
from sparkd.base.lib.log import Events
from sparkd.base.lib.main_loop import MainLoop, Outcome
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.state.rank_record import RankRecord, RankStage, is_left
from sparkd.base.vllm.api import Endpoint

FIRST_LOOK_SECONDS = 0.3
"""Limit for a look at its shared memory before its first signal. It takes milliseconds, unless a process hangs."""
MAX_SCANS = 10
"""Scans for the process that maps a segment; after these it counts as another program's."""
LOG_END_SECONDS = 3.0
"""Limit for the last lines of a rank that ended by itself: they may have the cause. Under load 0.3 s was too little."""


class Running(Struct):
    """The rank from its launch on. Used by the main thread, except where a method says so."""

    rank: Rank
    log: LogReader
    record: RankRecord
    _keep: Callable[[RankRecord], bool]
    """Writes the record, and returns whether it could."""
    _host: Host
    _loop: MainLoop
    compilers: CompilerWatch
    _started_at: float = field(default_factory=time.monotonic)
    """When it was started, monotonic: earlier than this object, where an agent has taken the rank over."""
    taken_over: bool = False
    """Whether it was launched by an agent before this one."""
    guard: MemoryGuard | None = None
    """The memory guard; None where memory is not watched."""
    tenants: Tenants | None = None
    """Who else held memory at its start; None where that is unknown."""
    hang: HangWatch | None = None
    """The watch for hangs; None until clients are served."""
    loaded_seconds: float | None = None
    """Time from its start to its engine's first completion."""
    ready: bool = False
    """Whether clients are served."""
    segments: frozenset[UnlinkSegment] = frozenset()
    """Its shared memory, and that which ranks before it have left."""
    cache_release: PageCacheRelease | None = None
    """The release of page cache during the load; None where nothing is released."""
    follow_seconds: float = 5.0
    """Pause between looks for new segments while it serves, when it makes few; and between counts of objects."""
    _api_owner: ApiOwner | None = None
    """Proves that the API is the rank's; on the head, once the endpoint was probed."""
    _scans: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How often its processes were scanned for a segment, by device and inode; MAX_SCANS: no more scans."""
    _next_look_at: float = 0.0
    _objects: tuple[int, int] = (0, 0)
    _next_count_at: float = 0.0

    def __post_init__(self) -> None:
        self.segments = frozenset(UnlinkSegment(path, *identity) for path, identity in self.record.segments.items())

    def guard_memory(self, floor_bytes: int, events: Events) -> None:
        """Start the memory guard. Raises OSError where that fails."""
        guard = MemoryGuard(floor_bytes, self.rank.pidfd, events, self._loop.wake)
        guard.start()
        self.guard = guard

    def watch_hang(self, watch: HangWatch) -> None:
        self.hang = watch

    def keep_release(self, release: PageCacheRelease) -> None:
        self.cache_release = release

    @property
    def guard_state(self) -> GuardState:
        return self.guard.state if self.guard is not None else "off"

    @property
    def released_bytes(self) -> int:
        """Page cache given back since the launch."""
        return self.cache_release.released_bytes if self.cache_release is not None else 0

    def count_objects(self, cache_names: Iterable[str]) -> tuple[int, int]:
        """Files of its builds under way, as last counted: how many are compiled, and how many there are.

        They are counted again every few seconds, without waiting for the disk.
        """
        if (now := time.monotonic()) >= self._next_count_at:
            self._next_count_at = now + self.follow_seconds
            count = partial(count_objects, self._host.files, self.rank.image_id, tuple(cache_names))
            self._loop.start(count, "objects", self._keep_count)
        return self._objects

    def _keep_count(self, count: Outcome[tuple[int, int]]) -> None:
        with suppress(OSError, ValueError):
            self._objects = count.result()

    def endpoint(self, plan: LaunchPlan, key: str | None, events: Events, connections: int = CONNECTIONS) -> Endpoint:
        """The endpoint of its API, which is proven to be this rank's before each request."""
        if self._host.live and self._api_owner is None:
            self._api_owner = ApiOwner(self._host, self.rank, events, plan.api_host, plan.api_port)
        admit = self._api_owner.admit if self._api_owner is not None else None
        return Endpoint(plan.api_host, plan.api_port, plan.served_name, key, admit, connections)

    @property
    def api_holder(self) -> str:
        """Who held the API's port instead of the rank, when last seen; empty where nobody did."""
        return self._api_owner.holder if self._api_owner is not None else ""

    def note(self, **changes: object) -> None:
        """Change fields of the record."""
        self.record = replace(self.record, **changes)
        self._keep(self.record)

    def note_if_written(self, **changes: object) -> None:
        """Change fields of the record; none of them where it can't be written, so that a later look tries it again."""
        changed = replace(self.record, **changes)
        if self._keep(changed):
            self.record = changed

    def note_segments(self) -> None:
        """Remember the segments that its processes have mapped now. Unreadable ones are left to a later preflight.

        Processes are scanned only while there are segments of unknown owner.
        """
        # In a thread beside the main loop: reading the maps of a process that hangs in its driver hangs too.
        with suppress(OSError, ValueError):
            self._keep_segments(self._loop.beside(self._find_segments, 3.0, "looking at the rank"))

    def follow_segments(self) -> None:
        """While it serves, do as `note_segments` every few seconds, without waiting for the look."""
        if (now := time.monotonic()) >= self._next_look_at:
            self._next_look_at = now + self.follow_seconds
            self._loop.start(self._find_segments, "the rank's segments", self._keep_unless_ending)

    def _keep_unless_ending(self, look: Outcome[tuple[UnlinkSegment, ...]]) -> None:
        if self.record.stage is not RankStage.ENDING:  # its record may be gone
            self._keep_look(look)

    def kill(self, grace_seconds: float) -> bool:
        """End its container: SIGTERM, grace, SIGKILL. Returns whether it is gone. Its shared memory is noted meanwhile.

        A look at a process that hangs in its driver hangs too. Only the first look delays the end, for a moment.
        """
        began, look = time.monotonic(), self._loop.start(self._find_segments)
        self.note(stage=RankStage.ENDING)
        first_in_time = self._loop.wait_until(look.done, FIRST_LOOK_SECONDS, shielded=True)

        def keep_looks() -> None:
            nonlocal look
            if look.done():
                self._keep_look(look)
                look = self._loop.start(self._find_segments)

        grace_seconds = max(0.0, grace_seconds - (time.monotonic() - began))
        gone = self.rank.end(self._loop, grace_seconds, keep_looks, starting=self.loaded_seconds is None)
        if self._loop.wait_until(look.done, FIRST_LOOK_SECONDS if first_in_time else 0.0, shielded=True):
            self._keep_look(look)
        return gone

    def _keep_look(self, look: Outcome[tuple[UnlinkSegment, ...]]) -> None:
        with suppress(OSError, ValueError):
            self._keep_segments(look.result())

    def _keep_segments(self, segments: tuple[UnlinkSegment, ...]) -> None:
        """Keep them in the record, and scan for them no more. Not earlier: a look that is given up keeps nothing."""
        if not self.segments.issuperset(segments):
            files, earlier = self._host.files, self.segments
            left = (segment for segment in earlier if is_left(files, segment.path, (segment.device, segment.inode)))
            self.segments = frozenset((*left, *segments))
            self.note(segments={segment.path: (segment.device, segment.inode) for segment in self.segments})
        self._scans.update({(segment.device, segment.inode): MAX_SCANS for segment in segments})

    def _find_segments(self) -> tuple[UnlinkSegment, ...]:
        """Segments that its processes have mapped. No scan where no segment is of unknown owner. For a thread."""
        present = [segment.identity for segment in self._host.segments(NAMES)]  # reads no process
        unknown = [identity for identity in present if self._scans[identity] < MAX_SCANS]
        if not unknown:
            return ()
        counts = Counter({identity: self._scans[identity] for identity in present})
        counts.update(unknown)
        self._scans = counts  # before the scan: one that hangs is repeated MAX_SCANS times, not for ever
        return find_own_segments(self._host, self.rank.pid, self.rank.start_time)

    def note_tenants(self) -> None:
        self.tenants = self.read_tenants()

    def read_tenants(self) -> Tenants | None:
        """Who else holds memory now; None where that is unknown."""
        return read_tenants(self._host, self._loop, self.rank.container_id, self.segments)

    def mark_loaded(self) -> None:
        """Note that the engine answers: what it logs from now on may be a client's text."""
        if self.loaded_seconds is None:
            self.loaded_seconds = self.seconds
            self.log.begin_serving()

    def mark_ready(self) -> None:
        self.mark_loaded()
        self.ready = True

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started_at

    def finish_log(self, seconds: float = LOG_END_SECONDS) -> None:
        """Read the last lines of the ended container's log, while the loop turns."""
        with suppress(TimeoutError, BlockingIOError):
            read = partial(self.log.stop, seconds)
            self._loop.beside(read, seconds, "reading the end of its log", shielded=True)
