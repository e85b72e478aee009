"""The ledger of launches: how often a plan failed lately, and how long the next launch waits. Pure.

Each failed load can leak driver memory on GB10, and systemd's own growing delays never shrink again, so sparkd counts.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace

COOLING_SECONDS = (0, 5, 15, 60, 300)
"""Wait before the launch after 0, 1, 2, 3, 4 launches that failed in a row. After five a person is needed."""
PLANS_KEPT = 16


@dataclass(frozen=True)
class Open:
    """A launch under way. Found by a later process of the same boot, its agent died with it; of another boot, the
    power was cut, which is nobody's fault."""

    digest: str
    boot_id: str


@dataclass(frozen=True)
class Ledger:
    """Failed launches in a row by plan digest, oldest entry first."""

    failures: dict[str, int] = field(default_factory=dict)
    open: Open | None = None
    codes: dict[str, int] = field(default_factory=dict)
    """Exit code of the last of them, where it was told."""

    def settle(self, boot_id: str) -> Ledger:
        """Count the launch that a dead agent of this boot left open."""
        if self.open is None:
            return self
        lost = replace(self, open=None)
        return lost.failed(self.open.digest) if self.open.boot_id == boot_id else lost

    def wait_seconds(self, digest: str) -> int | None:
        """How long the next launch of this plan cools; None: too many failed, a person is needed."""
        count = self.failures.get(digest, 0)
        return COOLING_SECONDS[count] if count < len(COOLING_SECONDS) else None

    def opened(self, digest: str, boot_id: str) -> Ledger:
        return replace(self, open=Open(digest, boot_id))

    def failed(self, digest: str, code: int | None = None) -> Ledger:
        """`code` is None for a launch whose agent was killed."""
        return self._with(digest, self.failures.get(digest, 0) + 1, code)

    def forgiven(self, digest: str) -> Ledger:
        """Proven in service, or handed to a person: the next launch begins at zero."""
        return self._with(digest, 0, None)

    def closed(self) -> Ledger:
        """Ended on request, or for a reason that never counts."""
        return replace(self, open=None)

    def _with(self, digest: str, count: int, code: int | None) -> Ledger:
        others = {key: value for key, value in self.failures.items() if key != digest}
        latest = dict(list({**others, digest: count}.items())[-PLANS_KEPT:]) if count else others
        codes = {key: value for key, value in self.codes.items() if key in latest and key != digest}
        return Ledger(latest, None, codes if code is None else {**codes, digest: code})


def dump(ledger: Ledger) -> str:
    return json.dumps({"schema": 1, **asdict(ledger)}, indent=1) + "\n"


def parse(text: str) -> Ledger:
    """Read launches.json; what is no ledger (cut off by a power cut, edited) counts as empty."""
    try:
        data = json.loads(text)
    except ValueError:
        return Ledger()
    match data:
        case {"schema": 1, "failures": dict(failures), "open": opened}:
            counts = {str(k): v for k, v in failures.items() if isinstance(v, int) and v > 0}
            match data.get("codes"):
                case dict(told):
                    codes = {str(k): v for k, v in told.items() if isinstance(v, int)}
                case _:
                    codes = {}
            match opened:
                case {"digest": str(digest), "boot_id": str(boot_id)}:
                    return Ledger(counts, Open(digest, boot_id), codes)
            return Ledger(counts, None, codes)
    return Ledger()
