"""Judges how the machine's last boot ended, once, in the first agent of the next boot; the launch history keeps it.

Evidence is what the kernel left (pstore, the watchdog's status), and the end of that boot's journal: lines that only
the kernel, systemd, journald and sparkd can write. A power cut leaves none, nor does a freeze that was reset by hand.
"""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from msgspec import Struct

from sparkd.agent.actions import Actions
from sparkd.agent.daemon.state_store import StateStore
from sparkd.base.host import Host
from sparkd.base.host.files import Files, Kind
from sparkd.base.host.kernel import Record
from sparkd.base.host.kernel_events import Event, parse_event
from sparkd.base.host.last_boot import BootLine, read_last_boot
from sparkd.base.lib.errors import Action
from sparkd.base.lib.log import Events
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import format_clock, utc_now
from sparkd.base.state.launch_history import MachineEnd
from sparkd.base.state.rank_record import read_boot_id

LOOK_SECONDS = 30.0
"""Limit for reading the evidence."""
LAST_SECONDS = 120.0
"""Span before the end of the journal: what came earlier did not end the machine."""
KERNEL_DUMPS, SYSTEMD_DUMPS = "/sys/fs/pstore", "/var/lib/systemd/pstore"
"""Folders of the kernel's dumps. systemd fills the second when the next boot starts: its files have that time."""
EARLIER_SECONDS = 600.0
"""How much older than the journal's last line a dump may be: that of an earlier boot is hours older."""
BOOT_SLACK_SECONDS = 60.0
"""How much older than this boot its files may be: the clock may have been set since."""
OVERHEAT, CARD_RESET = 0x01, 0x20
"""WDIOF_OVERHEAT and WDIOF_CARDRESET of linux/watchdog.h."""
SHUTDOWN = re.compile(r"Reached target .{0,40}(?:[Ss]hutdown|[Rr]eboot|[Pp]ower-?[Oo]ff|[Hh]alt|final)")
SHORT_OF_MEMORY = re.compile(
    r"""(?:agent\.run\.failed (?:code=\d{1,3} )?cause=|\{"event": "agent\.run\.failed", [^\\]{0,300}"cause": ")"""
    r"(?:memory-guard|memory-taken|kernel-oom)\b"
)
"""Matches by the first fields only, in both forms of log.format: later ones may hold an engine's text."""
_DUMPED = re.compile(
    r"^(?:<\d{1,3}>)?\[ *[\d.]{1,20}\](?:\[ *\w{1,12}\])? (Kernel panic - not syncing|Unable to handle kernel "
    r"|BUG: (?:unable to handle|kernel NULL)|kernel BUG at |Internal error: )(.{0,160})",
    re.MULTILINE,
)
STOPPED = re.compile(r"Journal stopped\Z")
PANIC = "Kernel panic - not syncing"


class BootFacts(Struct, frozen=True):
    """What the last boot has left."""

    lines: tuple[BootLine, ...] = ()
    """The last boot's journal, newest first; empty where it is not kept."""
    dumps: tuple[str, ...] = ()
    """The faults of the kernel's dumps, one line each."""
    bootstatus: int = 0
    """The status bits of all watchdogs together."""


def note_machine_end(host: Host, actions: Actions, loop: MainLoop, events: Events) -> None:
    """Classify and record the end, once a boot. Where the evidence is unreadable, the next agent tries again."""
    store, boot_id = StateStore(host, actions, loop, events), read_boot_id(host.files)
    noted_end = store.read_launches().machine_end
    if noted_end is not None and noted_end.boot_id == boot_id:
        return
    try:
        booted_seconds = time.time() - host.uptime_seconds()
        facts = loop.beside(
            partial(read_facts, host.files, booted_seconds), LOOK_SECONDS, "reading how the last boot ended"
        )
    except OSError as error:
        events.warning("machine.end.unread", reason=str(error), hint="journalctl -b -1 -e")
        return
    kind, evidence = classify(facts)
    end = MachineEnd(boot_id, kind, evidence, utc_now())
    booted_at = datetime.fromtimestamp(booted_seconds, UTC).isoformat(timespec="milliseconds")
    store.record(lambda launches: launches.record_machine_end(end, booted_at))
    log = events.info if kind == "ordered" else events.warning
    log("machine.end.classified", end=kind, evidence=evidence, hint="" if kind == "ordered" else "journalctl -b -1 -e")


def read_facts(files: Files, booted_at: float) -> BootFacts:
    """Read the evidence. `booted_at`: when this boot began, in seconds since 1970. Raises OSError."""
    lines = read_last_boot(files)
    ended_at = lines[0].at_seconds if lines else booted_at
    oldest_times = {KERNEL_DUMPS: ended_at - EARLIER_SECONDS, SYSTEMD_DUMPS: booted_at - BOOT_SLACK_SECONDS}
    bootstatus = 0
    for name in files.names_if_any("/sys/class/watchdog"):
        with suppress(OSError, ValueError):
            bootstatus |= int(files.value(f"/sys/class/watchdog/{name}/bootstatus"), 0)
    dumps = [path for folder, oldest in oldest_times.items() for path in _find_dumps(files, folder, oldest)]
    texts = (files.head(path, 1 << 16).decode("utf-8", "replace") for path in dumps[:32])
    # The last match of each dump counts: the kernel also prints file names, which may hold a line end and a forged one.
    faults = (matches[-1] for text in texts if (matches := _DUMPED.findall(text)))
    return BootFacts(lines, tuple(sanitize("".join(words)) for words in faults), bootstatus)


def _find_dumps(files: Files, folder: str, since: float, depth: int = 2) -> Iterator[str]:
    for name in files.names_if_any(folder):
        path = f"{folder}/{name}"
        status = files.lstat(path)
        if status.kind is Kind.FOLDER and depth:
            yield from _find_dumps(files, path, since, depth - 1)
        elif status.kind is Kind.FILE and name.startswith("dmesg") and status.modified_at_seconds >= since:
            yield path


def classify(facts: BootFacts) -> tuple[str, str]:
    """One of ordered, power-lost, kernel, watchdog, memory, heat, unknown; and the evidence in one line. Pure."""
    for kind, evidence in _list_candidates(facts):
        if evidence:
            return kind, sanitize(evidence)
    at = format_clock(facts.lines[0].at_seconds)
    return "power-lost", f"the journal ends at {at} without a shutdown or a fault: a power cut, or a reset by hand"


def _list_candidates(facts: BootFacts) -> Iterator[tuple[str, str]]:
    """Kinds with their evidence: the first that is not empty decides. The last one always has, without a journal."""
    last_lines = [line for line in facts.lines if line.at_seconds >= facts.lines[0].at_seconds - LAST_SECONDS]
    events = list(_parse_events(last_lines))
    newest_texts = {event.kind: event.text for event in reversed(events)}
    panics = [text for text in facts.dumps if text.startswith(PANIC)]
    yield "memory", next((text for text in panics if "memory" in text), "")
    yield "kernel", "".join(panics[:1])
    yield "heat", newest_texts.get("overheated", "")
    yield "ordered", _find_line(facts.lines, "systemd", SHUTDOWN)
    # Only the newest line of journald counts: an upgrade stops and starts it too.
    yield "ordered", _find_line([line for line in facts.lines if line.source == "journald"][:1], "journald", STOPPED)
    if facts.bootstatus & OVERHEAT:
        yield "heat", "the watchdog reports that it was too hot"
    if facts.bootstatus & CARD_RESET:
        yield "watchdog", "the hardware watchdog reports that it reset the machine"
    yield "kernel", "".join(facts.dumps[:1]) or newest_texts.get("oops", "")
    yield "memory", _find_line(last_lines, "sparkd", SHORT_OF_MEMORY) or newest_texts.get("out-of-memory", "")
    yield "heat", newest_texts.get("throttled", "")
    yield "unknown", next((event.reason for event in events if event.effect.action is not Action.NONE), "")
    if not facts.lines:
        keep = "sudo mkdir -p /var/log/journal && sudo journalctl --flush"
        yield "unknown", f"no journal of that boot is kept; to keep a boot's journal from now on: {keep}"


def _parse_events(lines: Sequence[BootLine]) -> Iterator[Event]:
    """The kernel's, without full tables of connections: these end no machine, and any user can fill one."""
    for line in lines:
        event = parse_event(Record(0, 0.0, line.text)) if line.source == "kernel" else None
        if event is not None and event.kind != "connections-dropped":
            yield event


def _find_line(lines: Sequence[BootLine], source: str, pattern: re.Pattern[str]) -> str:
    """The newest line of that source that matches; empty where there is none. `lines`: newest first."""
    return next((line.text for line in lines if line.source == source and pattern.match(line.text)), "")
