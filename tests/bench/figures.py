"""A figure: what was measured, how often, against which limit, beside what. Pure."""

from dataclasses import dataclass
from enum import Enum
from statistics import median


class By(Enum):
    """Which of several runs is held against the limit. Machines are shared: one run of many may be anybody's fault."""

    MEDIAN = "median"
    WORST = "worst"


@dataclass(frozen=True)
class Limit:
    """What may not be passed: upwards, or downwards where `at_least`."""

    value: float
    at_least: bool = False
    by: By = By.MEDIAN
    goal: float | None = None
    """Where the project wants to be; nothing fails for it."""

    def holds(self, value: float) -> bool:
        return value >= self.value if self.at_least else value <= self.value


@dataclass(frozen=True)
class Spread:
    """Several runs of one thing."""

    runs: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("nothing was measured")

    @property
    def low(self) -> float:
        return min(self.runs)

    @property
    def median(self) -> float:
        return median(self.runs)

    @property
    def high(self) -> float:
        return max(self.runs)


@dataclass(frozen=True)
class Beside:
    """The same work without sparkd, in the same minutes on the same machine."""

    what: str
    spread: Spread


@dataclass(frozen=True)
class Figure:
    id: str
    what: str
    unit: str
    spread: Spread
    limit: Limit | None = None
    """None: for information only."""
    beside: Beside | None = None
    load: float = 0.0
    """Processes that wanted a core in the last minute, as this machine counted them when the measurement ended."""

    @property
    def measured(self) -> float:
        """The run that counts."""
        if self.limit is None or self.limit.by is By.MEDIAN:
            return self.spread.median
        return self.spread.low if self.limit.at_least else self.spread.high

    @property
    def ratio(self) -> float | None:
        """Of the medians: what sparkd takes for each unit that it takes without."""
        if self.beside is None or not self.beside.spread.median:
            return None
        return self.spread.median / self.beside.spread.median

    @property
    def passed(self) -> bool:
        return self.limit is None or self.limit.holds(self.measured)
