"""The ledger of launches: how often a plan failed lately, and how long the next launch waits. Pure.

Each failed load can leak driver memory on GB10, and systemd's own growing delays never shrink again, so sparkd counts.
"""

from __future__ import annotations

import json

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from sparkd.last_exit import KILLED
from sparkd.lib.text import sanitize

COOLING_SECONDS = (0, 5, 15, 60, 300)
"""Wait before the launch after 0, 1, 2, 3, 4 launches that failed in a row. After five a person is needed."""
PLANS_KEPT = 16
REASON_LIMIT = 1000


class Open(Struct, frozen=True):
    """A launch under way. Found by a later process of the same boot, its agent died with it; of another boot, the
    power was cut, which is nobody's fault."""

    digest: str
    boot_id: str


class Failure(Struct, frozen=True):
    reason: str
    code: int | None = None
    """Exit code of the life that it ended; None where its agent was killed."""

    def __str__(self) -> str:
        return self.reason if self.code is None else f"{self.reason} (exit {self.code})"


class Ledger(Struct, frozen=True):
    """Failed launches in a row by plan digest, oldest entry first."""

    failures: dict[str, int] = field(default_factory=dict)
    open: Open | None = None
    last: dict[str, Failure] = field(default_factory=dict)
    """The last of them. Lives that launched nothing may have ended since, for other reasons."""

    def settle(self, boot_id: str) -> Ledger:
        """Count the launch that a dead agent of this boot left open."""
        if self.open is None:
            return self
        lost = replace(self, open=None)
        return lost.failed(self.open.digest, Failure(KILLED)) if self.open.boot_id == boot_id else lost

    def wait_seconds(self, digest: str) -> int | None:
        """How long the next launch of this plan cools; None: too many failed, a person is needed."""
        count = self.failures.get(digest, 0)
        return COOLING_SECONDS[count] if count < len(COOLING_SECONDS) else None

    def opened(self, digest: str, boot_id: str) -> Ledger:
        return replace(self, open=Open(digest, boot_id))

    def failed(self, digest: str, failure: Failure) -> Ledger:
        return self._with(digest, self.failures.get(digest, 0) + 1, {digest: failure})

    def forgiven(self, digest: str) -> Ledger:
        """Proven in service, or handed to a person: the next launch begins at zero."""
        return self._with(digest, 0, {})

    def closed(self) -> Ledger:
        """Ended on request, or for a reason that never counts."""
        return replace(self, open=None)

    def _with(self, digest: str, count: int, failure: dict[str, Failure]) -> Ledger:
        others = {key: value for key, value in self.failures.items() if key != digest}
        latest = dict(list({**others, digest: count}.items())[-PLANS_KEPT:]) if count else others
        last = {key: value for key, value in self.last.items() if key in latest and key != digest}
        return Ledger(latest, None, {**last, **failure})


def dump(ledger: Ledger) -> str:
    return json.dumps({"schema": 1, **to_builtins(ledger)}, indent=1) + "\n"


def parse(text: str) -> Ledger:
    """Read launches.json; what is no ledger (cut off by a power cut, edited) counts as empty."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return Ledger()
    match data:
        case {"schema": 1, "failures": dict(failures), "open": opened}:
            counts = {str(k): v for k, v in failures.items() if isinstance(v, int) and v > 0}
            return Ledger(counts, _open(opened), _last(data.get("last")))
    return Ledger()


def _open(said: object) -> Open | None:
    match said:
        case {"digest": str(digest), "boot_id": str(boot_id)}:
            return Open(digest, boot_id)
    return None


def _last(said: object) -> dict[str, Failure]:
    found = {}
    for digest, failure in said.items() if isinstance(said, dict) else ():
        match failure:
            case {"reason": str(reason), "code": int() | None as code}:
                found[str(digest)] = Failure(sanitize(reason, REASON_LIMIT), code)
    return found
