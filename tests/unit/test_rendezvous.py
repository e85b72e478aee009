"""How ranks come together and fall together: real agents on addresses of loopback, with no docker and no engine."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import Life, addresses, free_port, life, settings
from tests.unit.nodes import Node, node, report, until
from tests.unit.test_known_good import entry

from sparkd.agent import Agent
from sparkd.ending import mourn
from sparkd.errors import BlockedError, EngineEndedError, ExitCode, NotReadyError, PeerLostError, SparkdError
from sparkd.known_good import rollback
from sparkd.lib.redact import Redactor
from sparkd.pulse import StopRequested
from sparkd.rendezvous import RANKS_SECONDS, await_peers, enter_epoch
from sparkd.report.node_report import NodeReport, Phase

SHOWN_SECONDS = 0.7


class Walk:
    """Steps of one agent in a thread of its own, and how they ended."""

    def __init__(self, walker: Life, steps: Callable[[Agent], None]) -> None:
        self.error: SparkdError | None = None
        self.ended_at = 0.0
        self._life = walker
        self._steps = steps
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._steps(self._life.agent)
        except SparkdError as error:
            self.error = error
        except StopRequested:
            pass
        self.ended_at = time.monotonic()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> SparkdError | None:
        """How it ended by itself."""
        self._thread.join(10)
        assert self.over
        return self.error

    def stop(self) -> None:
        self._life.end()
        self._thread.join(10)


@contextmanager
def walking(walker: Life, steps: Callable[[Agent], None]) -> Iterator[Walk]:
    walk = Walk(walker, steps)
    try:
        yield walk
    finally:
        walk.stop()


def come_together(agent: Agent, shown_seconds: float = SHOWN_SECONDS, ranks_seconds: float = RANKS_SECONDS) -> None:
    await_peers(agent, shown_seconds)
    enter_epoch(agent, ranks_seconds)


def says(walker: Life, text: str) -> None:
    until(lambda: text in walker.report.message)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def worker(tree: Tree, port: int) -> Iterator[Life]:
    """Rank 1 of two, with a plan."""
    with life(tree, 1, settings(addresses(2), port)) as made:
        made.surveyed("d")
        yield made


@pytest.fixture
def head(tree: Tree, port: int) -> Iterator[Life]:
    """Rank 0 of three, with a plan."""
    with life(tree, 0, settings(addresses(3), port)) as made:
        made.surveyed("d")
        yield made


@pytest.fixture
def workers(port: int) -> Iterator[tuple[Node, Node]]:
    with node("127.0.0.2", port=port) as one, node("127.0.0.3", port=port) as other:
        yield one, other


def test_a_worker_stands_by_until_its_head_calls_and_enters_the_heads_epoch(worker: Life, port: int) -> None:
    with walking(worker, come_together) as walk:
        says(worker, "waiting for 127.0.0.1, where no sparkd runs")
        until(lambda: not worker.agent.pulse.extending, 1)  # systemd holds it to be up, just after that message
        with node("127.0.0.1", port=port) as head:
            for told, awaited in [
                (report(0, phase=Phase.PREFLIGHT), "spark1 (127.0.0.1), which is preflight"),
                (report(0, phase=Phase.SERVING, epoch="old", plan_digest="d"), "spark1 (127.0.0.1), which is serving"),
                (report(0, plan_digest="d"), "spark1 (127.0.0.1) to call its workers"),
                (report(0, epoch="e"), "spark1 (127.0.0.1) to call its workers"),  # of a plan not known yet
            ]:
                head.tell(told)
                says(worker, f"waiting for {awaited}")
                assert worker.report.phase is Phase.AWAITING_PEERS
                assert worker.report.epoch == ""
            assert not walk.over
            head.tell(report(0, epoch="e", plan_digest="d"))
            assert until(lambda: walk.over) < 1
            assert (walk.error, worker.report.epoch) == (None, "e")


def test_lines_in_json_carry_the_epoch_once_it_is_known(
    worker: Life, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    worker.agent.log.configure(as_json=True, level="info")
    events = worker.agent.log.events(Redactor())
    with node("127.0.0.1", port=port) as head:
        head.tell(report(0, epoch="e", plan_digest="d"))
        events.info("a.b.c")
        with walking(worker, come_together) as walk:
            assert walk.join() is None
        events.info("a.b.c")
    until(lambda: worker.journal.read_bytes().count(b"\n") == 2)
    before, after = (json.loads(line.removeprefix("<6>")) for line in worker.journal.read_text().splitlines())
    assert "epoch" not in before
    assert after["epoch"] == "e"


def test_a_worker_that_answered_the_call_is_tied_to_the_life_that_called(worker: Life, port: int) -> None:
    with node("127.0.0.1", port=port) as head:
        head.tell(report(0, epoch="e", plan_digest="d"))
        with walking(worker, come_together) as walk:
            assert walk.join() is None
        head.tell(report(0, epoch="e2", plan_digest="d", incarnation="another", last_cause="boom (exit 13)"))
        with pytest.raises(PeerLostError, match=r"rank 0 .* has begun anew; it ended before with: boom \(exit 13\)"):
            while True:
                worker.agent.together.look()


def test_a_head_calls_when_all_workers_stand_by_and_goes_on_when_all_of_their_ranks_run(
    head: Life, workers: tuple[Node, Node]
) -> None:
    one, other = workers
    with walking(head, come_together) as walk:
        one.tell(report(1, plan_digest="d"))
        for told in (
            report(2, phase=Phase.PREFLIGHT),
            report(2, phase=Phase.COOLING, plan_digest="d"),
            report(2, phase=Phase.SERVING, epoch="old", plan_digest="d"),  # its rank of an older launch still runs
            report(2, phase=Phase.AWAITING_PEERS, epoch="old", plan_digest="d"),
        ):
            other.tell(told)
            says(head, f"waiting for spark3 (127.0.0.3), which is {told.phase.value}")
            assert head.report.epoch == ""
        other.tell(report(2, plan_digest="d"))
        until(lambda: head.report.epoch == "life-of-0")
        one.tell(report(1, phase=Phase.LOADING, epoch="life-of-0", plan_digest="d"))
        other.tell(report(2, phase=Phase.LAUNCHING, epoch="life-of-0", plan_digest="d"))
        says(head, "waiting for the rank of spark3 (127.0.0.3), which is launching")
        time.sleep(0.3)
        assert not walk.over
        other.tell(report(2, phase=Phase.LOADING, epoch="life-of-0", plan_digest="d"))
        assert until(lambda: walk.over) < 1
        assert walk.error is None


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (report(2, phase=Phase.LAUNCHING, epoch="another", plan_digest="d"), "belongs to another launch"),
        (report(2, phase=Phase.BLOCKED, plan_digest="d", message="62 GB, 96 needed"), "is blocked: 62 GB, 96 needed"),
        (report(2, incarnation="new", plan_digest="d"), "has begun anew"),
    ],
)
def test_a_worker_that_is_lost_after_the_call_ends_the_head(
    head: Life, workers: tuple[Node, Node], told: NodeReport, reason: str
) -> None:
    for rank, one in enumerate(workers, 1):
        one.tell(report(rank, plan_digest="d"))
    with walking(head, come_together) as walk:
        until(lambda: head.report.epoch != "")
        workers[1].tell(told)
        error = walk.join()
    assert isinstance(error, PeerLostError)
    assert error.reason == f"rank 2 on spark3 (127.0.0.3) {reason}"


def test_ranks_that_never_run_are_named_when_the_time_is_over(
    tree: Tree, port: int, workers: tuple[Node, Node]
) -> None:
    for rank, one in enumerate(workers, 1):
        one.tell(report(rank, plan_digest="d"))
    with life(tree, 0, settings(addresses(3), port)) as head:
        head.surveyed("d")
        with walking(head, partial(come_together, ranks_seconds=1)) as walk:
            error = walk.join()
    assert isinstance(error, NotReadyError)
    assert error.reason.startswith("not every worker's rank ran within 1 s: spark2 (127.0.0.2), which is awaiting")


def test_plans_that_differ_block_both_nodes_for_a_while_and_the_table_is_in_both_journals(
    tree: Tree, port: int
) -> None:
    configured = settings(addresses(2), port)
    with life(tree, 0, configured) as head, life(tree, 1, configured) as worker:
        head.agent.context = replace(head.agent.context, rollback=rollback.to(entry(), "", ""))
        head.surveyed("d1", **{"args.max-model-len": "512", "image": "i:1"})
        worker.surveyed("d2", **{"args.max-model-len": "1024", "image": "i:1"})
        with walking(head, come_together) as first, walking(worker, come_together) as second:
            began = time.monotonic()
            until(lambda: {head.report.phase, worker.report.phase} == {Phase.BLOCKED})
            errors = [first.join(), second.join()]
            assert min(first.ended_at, second.ended_at) - began > SHOWN_SECONDS - 0.2
        for one, error, own, theirs in [(head, errors[0], "512", "1024"), (worker, errors[1], "1024", "512")]:
            assert isinstance(error, BlockedError)
            assert f"differs: args.max-model-len is {own} here and {theirs} there" in error.reason
            rows = [
                line.split("plan| ")[1].split() for line in one.journal.read_text().splitlines() if "plan| " in line
            ]
            assert ["args.max-model-len", own, theirs] in rows
            assert not any("image" in row for row in rows)
        assert [error.hint.partition(":")[0] for error in errors if error] == [
            "this node is rolled back",
            "make the configuration, the image and the model the same on all nodes",
        ]


def test_a_plan_that_is_put_right_while_it_is_shown_ends_no_life_and_ties_to_the_new_one(
    head: Life, workers: tuple[Node, Node]
) -> None:
    workers[0].tell(report(1, plan_digest="d"))
    workers[1].tell(report(2, plan_digest="another"))
    with walking(head, partial(come_together, shown_seconds=30)) as walk:
        until(lambda: head.report.phase is Phase.BLOCKED)
        assert "its values can't be read: HTTP 404" in head.report.message
        workers[1].tell(report(2, plan_digest="d", incarnation="mended"))
        until(lambda: head.report.epoch != "")
        assert head.report.phase is Phase.AWAITING_PEERS
        for rank, one in enumerate(workers, 1):
            changes = {"incarnation": "mended"} if rank == 2 else {}
            one.tell(report(rank, phase=Phase.LOADING, epoch="life-of-0", plan_digest="d", **changes))
        assert walk.join() is None


def serve(agent: Agent) -> None:
    """A life without an engine, that ends as any other one does but for the time that its last report can be read."""
    try:
        come_together(agent)
        agent.phase(Phase.LAUNCHING)
        agent.phase(Phase.LOADING)
        agent.phase(Phase.SERVING)
        while True:
            agent.pulse.wait(5)
    except SparkdError as error:
        agent.phase(Phase.FAILED, str(error))
        raise


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0)])
def test_four_nodes_come_together_in_any_order_and_fall_together_with_the_cause_of_one(
    tree: Tree, port: int, order: tuple[int, ...]
) -> None:
    configured = settings(addresses(4), port)
    with ExitStack() as stack:
        lives: dict[int, Life] = {}
        walks: dict[int, Walk] = {}
        for rank in order:
            lives[rank] = one = stack.enter_context(life(tree, rank, configured))
            one.surveyed("d")
            walks[rank] = stack.enter_context(walking(one, serve))
            time.sleep(0.05)
        until(lambda: all(one.report.phase is Phase.SERVING for one in lives.values()))
        assert {one.report.epoch for one in lives.values()} == {"life-of-0"}

        began = time.monotonic()
        walks[3].stop()
        lives[3].agent.pulse.guard = lambda: None
        error = EngineEndedError("the engine ended: RuntimeError: boom")
        mourning = threading.Thread(target=mourn, args=(lives[3].agent, None, error), daemon=True)
        mourning.start()
        for rank in (0, 1, 2):
            until(lambda of=rank: lives[of].report.phase is Phase.FAILED)  # type: ignore[misc]  # bound now
        assert time.monotonic() - began < 2
        assert mourning.is_alive()  # its last report can be read for a while
        for rank in (0, 1, 2):
            found = walks[rank].join()
            assert isinstance(found, PeerLostError)
            assert found.code is ExitCode.PEER_LOST
            assert "rank 3 on spark4 (127.0.0.4) failed: the engine ended: RuntimeError: boom" in found.reason
            assert found.reason.startswith("rank 0 on spark1" if rank else "rank 3 on spark4")


def test_a_node_that_dies_without_a_word_takes_all_others_with_it(tree: Tree, port: int) -> None:
    configured = settings(addresses(3), port)
    with ExitStack() as stack:
        lives = [stack.enter_context(life(tree, rank, configured)) for rank in range(3)]
        for one in lives:
            one.surveyed("d")
        walks = [stack.enter_context(walking(one, serve)) for one in lives]
        until(lambda: all(one.report.phase is Phase.SERVING for one in lives))
        server = lives[2].cluster.server
        assert server is not None
        server.close()
        assert until(lambda: all(one.report.phase is Phase.FAILED for one in lives[:2])) < 2
        for walk in walks[:2]:
            error = walk.join()
            assert isinstance(error, PeerLostError)
            assert "rank 2 on spark3 (127.0.0.3) is gone: 127.0.0.3 refuses connections" in error.reason
