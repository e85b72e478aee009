"""The images of known good plans are kept, and released once nothing known good needs them."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.agent.proven_plans import serve
from tests.unit.cluster_nodes import AgentUnderTest, MemoryActions
from tests.unit.known_good_entries import known_good_entry
from tests.unit.nodes import until

from sparkd.base.lib.dockerd.reader import DockerError
from sparkd.base.state import known_good
from sparkd.base.state.known_good import Entry, KnownGood


def images_logged(node: AgentUnderTest) -> list[str]:
    return [line for line in node.events.lines if line.startswith("known_good.image.")]


@pytest.mark.parametrize(
    ("outcome", "events"),
    [
        (
            (("sparkd/known-good:1", True), ("sparkd-kept-2", False)),
            ["known_good.image.kept name=sparkd/known-good:1", "known_good.image.released name=sparkd-kept-2"],
        ),
        (DockerError("no space"), ["known_good.image.failed reason=no space hint=the next start that proves"]),
    ],
)
def test_the_images_of_known_good_plans_are_kept_beside_the_loop(
    started: AgentUnderTest, outcome: tuple[tuple[str, bool], ...] | DockerError, events: list[str]
) -> None:
    class Keeping(MemoryActions):
        def keep_images(
            self, named: Sequence[str], pinned: Sequence[str], before: Collection[str]
        ) -> Iterator[tuple[str, bool]]:
            own = ("sha256:i",)
            assert named == own
            assert pinned == own
            assert before == ()
            assert threading.current_thread().name == "kept-images"
            if isinstance(outcome, DockerError):
                raise outcome
            yield from outcome

    agent = started.agent
    agent.reporter.update_engine(image="sha256:i")
    started.remake(actions=Keeping(agent.host, agent.loop, "i"))
    started.set_plan("agreed", **dict(agent.plan.shared))
    serve(started)
    until(lambda: len(images_logged(started)) >= len(events))
    for line, text in zip(images_logged(started), events, strict=True):
        assert line.startswith(text)


@pytest.mark.parametrize(
    ("written", "before"),
    [
        (lambda known: known_good.FILE.encode(KnownGood(known)), {"sha256:old", "sha256:i"}),
        (lambda known: known_good.FILE.encode(KnownGood(known)).replace("sha256:old", "sha256:x;y"), set()),
        (lambda _known: "rubbish", set()),
        (None, set()),
    ],
    ids=["what is over is released", "one bad entry", "unreadable", "lost"],
)
def test_images_are_released_by_what_was_read_alone(
    started: AgentUnderTest, written: Callable[[tuple[Entry, ...]], str] | None, before: set[str]
) -> None:
    calls: list[set[str]] = []

    class Keeping(MemoryActions):
        def keep_images(
            self, named: Sequence[str], pinned: Sequence[str], before: Collection[str]
        ) -> Iterator[tuple[str, bool]]:
            calls.append(set(before))
            yield from ()

    agent = started.agent
    agent.reporter.update_engine(image="sha256:new")
    started.remake(actions=Keeping(agent.host, agent.loop, "i"))
    started.set_plan("agreed", **dict(agent.plan.shared))
    if written:
        known = (known_good_entry(image_id="sha256:i"), known_good_entry("d2", image_id="sha256:old"))
        Tree(Path(agent.host.files.root)).file(known_good.FILE.path, written(known))
    serve(started)
    until(lambda: calls)
    assert calls == [before]
