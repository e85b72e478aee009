"""What the kernel's log says that matters to an engine: each thing once, with how often and when it was said last."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from sparkd.lib.text import sanitize

if TYPE_CHECKING:
    from sparkd.host.kmsg import Record

MOST_OF_A_KIND = 32
"""Different things of one kind that are told apart: processes killed for memory, Xids by device and code. Of more, the
latest count. Each kind has its own room, so that a flood of one hides no other."""


class Kind(Enum):
    XID = "xid"
    RECOVERY = "gpu-recovery-action"
    DRIVER_LOADED = "driver-loaded"
    OUT_OF_MEMORY = "out-of-memory"
    PCIE_FATAL = "pcie-fatal"
    NIC_RESET = "nic-reset"
    DRIVER_NO_MEMORY = "driver-no-memory"


class Event(Struct, frozen=True):
    kind: Kind
    subject: str
    """Of which device, or which process was killed."""
    code: int
    """The Xid, or the recovery action; else 0."""
    count: int
    last_seconds: float
    """Since boot."""
    text: str
    """As it was said last."""


_GPU = r"\((?:PCI:)?([0-9a-fA-F]+(?::[0-9a-fA-F]+)+(?:\.\d+)?)\)"
"""An address and nothing else: any user's program that crashes has the kernel begin a line with its name."""
_PATTERNS = (
    (Kind.RECOVERY, re.compile(rf"NVRM: Xid {_GPU}: 154, .*\bto 0x([0-9a-fA-F]+)")),
    (Kind.XID, re.compile(rf"NVRM: Xid {_GPU}: (\d+)\b")),
    (Kind.DRIVER_LOADED, re.compile(r"NVRM: loading NVIDIA UNIX ()")),
    # Of the node, not of a container that reached its own limit: that begins with "Memory cgroup".
    (Kind.OUT_OF_MEMORY, re.compile(r"Out of memory[^:]*: Killed process \d+ \((.*?)\) total-vm")),
    (Kind.PCIE_FATAL, re.compile(r"\S+ (\S+): AER: (?:Multiple )?Uncorrect(?:ed|able) \(Fatal\)")),
    (Kind.NIC_RESET, re.compile(r"mlx5_core (\S+): mlx5_pci_slot_reset\b")),
    (Kind.DRIVER_NO_MEMORY, re.compile(r"NVRM: .*\[NV_ERR_NO_MEMORY\]()")),
)


def find(records: Iterable[Record]) -> tuple[Event, ...]:
    """In the order in which they were last said."""
    found: dict[tuple[Kind, str, int], Event] = {}
    for record in records:
        event = of(record)
        if event is None:
            continue
        # The last recovery action is what counts, whatever it was before.
        key = (event.kind, event.subject, 0 if event.kind is Kind.RECOVERY else event.code)
        before = found.pop(key, None)
        found[key] = event if before is None else replace(event, count=before.count + 1)
        alike = [one for one in found if one[0] is event.kind] if before is None else []
        if len(alike) > MOST_OF_A_KIND:
            del found[alike[0]]
    return tuple(found.values())


def of(record: Record) -> Event | None:
    """None for what does not matter here, such as mlx5's warning of 27 W, which healthy machines give at each boot."""
    for kind, pattern in _PATTERNS:
        matched = pattern.match(record.text)
        if matched is None:
            continue
        subject = sanitize(matched[1], 40)
        base = 16 if kind is Kind.RECOVERY else 10
        code = int(matched[2][:8], base) if kind in (Kind.XID, Kind.RECOVERY) else 0
        return Event(kind, subject, code, 1, round(record.seconds, 3), sanitize(record.text))
    return None
