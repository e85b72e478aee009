"""sparkd's own share of a start, beside the same container's start without sparkd."""

from dataclasses import dataclass

from tests.bed.sparkd_node import HEAD, SERVING_SECONDS

from .bench_node import RANK, BenchNode, answer, on_monotonic
from .containers import Inspected
from .figures import Beside, Figure, Limit, Spread
from .machine import load

PAIRS = 3
SHARE = Limit(1.2, goal=0.8)
BARE = "bare"


@dataclass(frozen=True)
class Start:
    """Stamps on CLOCK_MONOTONIC, in seconds."""

    requested: float
    """`systemctl start`, or `docker run`, began."""
    created: float
    """Time of the request to dockerd for the container."""
    running: float
    first_completion: float
    """Found by a prober that knows nothing of sparkd."""
    ready: float
    """systemd has heard READY=1; where nobody says so, the first completion."""

    @property
    def share(self) -> float:
        """sparkd's: until the container runs, and from its first completion on."""
        return (self.running - self.requested) + (self.ready - self.first_completion)

    @property
    def whole(self) -> float:
        return self.ready - self.requested


def measure(bench: BenchNode) -> tuple[Figure, ...]:
    """By turns, so that both meet the machine alike. The first of each warms the node up and does not count."""
    bench.spark.stop()
    with_sparkd, bare = [], []
    for _ in range(PAIRS + 1):
        started, like = _by_sparkd(bench)
        with_sparkd.append(started)
        bare.append(_bare(bench, like))
    return figures(tuple(with_sparkd[1:]), tuple(bare[1:]), load())


def _by_sparkd(bench: BenchNode) -> tuple[Start, Inspected]:
    bench.spark.forget_failures()
    with bench.prober("first", SERVING_SECONDS) as prober:
        (requested,) = bench.timed(1, "systemctl", "start", HEAD)
        first_at = answer(prober)["at"]
    seen, ready = bench.inspected(RANK, BARE), bench.stamp("ActiveEnter")
    bench.spark.stop()
    return Start(requested.began, on_monotonic(seen.created), on_monotonic(seen.started), first_at, ready), seen


def _bare(bench: BenchNode, like: Inspected) -> Start:
    """The same image, script, mounts and flags, by `docker run`."""
    node = bench.spark.node
    with bench.prober("first", SERVING_SECONDS) as prober:
        (requested,) = bench.timed(1, *like.argv)
        first_at = answer(prober)["at"]
    seen = bench.inspected(BARE)
    node.run("docker", "stop", "--time", "20", BARE)
    node.run("docker", "rm", "--force", BARE)
    node.sh("rm -f /dev/shm/psm_* /dev/shm/sem.mp-*")  # nobody else's job in a node without sparkd
    return Start(requested.began, on_monotonic(seen.created), on_monotonic(seen.started), first_at, first_at)


def figures(with_sparkd: tuple[Start, ...], bare: tuple[Start, ...], load: float) -> tuple[Figure, ...]:
    bare_start = Beside("the container by docker run, whole", spread(*(start.whole for start in bare)))
    bare_docker = Beside("docker run", spread(*(start.running - start.requested for start in bare)))

    def figure(name: str, what: str, values: list[float], beside: Beside, limit: Limit | None = None) -> Figure:
        return Figure(f"start.{name}", what, "s", spread(*values), limit, beside, load)

    return (
        figure("share", "sparkd's own share of a start", [start.share for start in with_sparkd], bare_start, SHARE),
        figure(
            "container",
            "  systemctl start to container running",
            [start.running - start.requested for start in with_sparkd],
            bare_docker,
        ),
        figure(
            "before",
            "    before the request to docker",
            [start.created - start.requested for start in with_sparkd],
            Beside("docker run", spread(*(start.created - start.requested for start in bare))),
        ),
        figure(
            "docker",
            "    docker's create and start",
            [start.running - start.created for start in with_sparkd],
            Beside("docker run", spread(*(start.running - start.created for start in bare))),
        ),
        Figure(
            "start.ready",
            "  first possible completion to READY",
            "s",
            spread(*(start.ready - start.first_completion for start in with_sparkd)),
            load=load,
        ),
        figure("whole", "systemctl start to READY", [start.whole for start in with_sparkd], bare_start),
    )


def spread(*values: float) -> Spread:
    return Spread(tuple(round(value, 4) for value in values))
