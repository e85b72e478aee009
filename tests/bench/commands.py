"""How long a person waits for a command: the whole process, warm."""

from .bench_node import BenchNode, Timed
from .figures import Beside, Figure, Limit, Spread
from .machine import load

RUNS = 20
VERSION, HELP, PREFLIGHT = Limit(0.03), Limit(0.15), Limit(0.75, goal=0.5)
DRY_RUN = ("sparkd", "preflight", "--dry-run")
BARE_PYTHON = ("/usr/bin/python3", "-IBS", "-c", "pass")


def idle(bench: BenchNode) -> tuple[Figure, ...]:
    """In a node that serves nothing."""
    bench.spark.stop()
    python = Beside("python3 -c pass", _spread(bench, BARE_PYTHON))
    return (
        _figure("version", "sparkd --version", _spread(bench, ("sparkd", "--version")), VERSION, python),
        _figure("help", "sparkd --help", _spread(bench, ("sparkd", "--help")), HELP, python),
        _figure("preflight", "sparkd preflight --dry-run, idle node", _spread(bench, DRY_RUN), PREFLIGHT, python),
    )


def serving(bench: BenchNode) -> tuple[Figure, ...]:
    """Beside an agent that serves it judges the next start, which all its checks are for."""
    bench.serve()
    values = _spread(bench, DRY_RUN)
    return (_figure("preflight-serving", "sparkd preflight --dry-run, serving node", values, PREFLIGHT),)


def _spread(bench: BenchNode, command: tuple[str, ...]) -> Spread:
    """The first run warms up."""
    runs: tuple[Timed, ...] = bench.timed(RUNS + 1, *command)[1:]
    return Spread(tuple(round(run.seconds, 5) for run in runs))


def _figure(name: str, what: str, values: Spread, limit: Limit, beside: Beside | None = None) -> Figure:
    return Figure(f"command.{name}", what, "s", values, limit, beside, load())
