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

Outcome = Iterator[tuple[str, bool]]


class Keeping(MemoryActions):
    """Keeps what it was called with, and does with images what the test says."""

    outcome: Callable[[], Outcome]
    calls: list[tuple[object, ...]]

    def keep_images(self, named: Sequence[str], pinned: Sequence[str], before: Collection[str]) -> Outcome:
        self.calls.append((named, pinned, set(before), threading.current_thread().name))
        yield from self.outcome()


def serve_image(node: AgentUnderTest, image: str, outcome: Callable[[], Outcome] = lambda: iter(())) -> Keeping:
    """Serve a plan of this image until it is known good."""
    keeping = Keeping(node.agent.host, node.agent.loop, "i")
    keeping.outcome, keeping.calls = outcome, []
    node.agent.reporter.update_engine(image=image)
    node.remake(actions=keeping)
    node.set_plan("agreed", **dict(node.agent.plan.shared))
    serve(node)
    return keeping


def images_logged(node: AgentUnderTest) -> list[str]:
    return [line for line in node.events.lines if line.startswith("known_good.image.")]


def test_the_images_of_known_good_plans_are_kept_beside_the_loop(started: AgentUnderTest) -> None:
    outcome = (("sparkd/known-good:1", True), ("sparkd-kept-2", False))
    keeping = serve_image(started, "sha256:i", lambda: iter(outcome))
    until(lambda: len(images_logged(started)) == 2)
    assert keeping.calls == [(("sha256:i",), ("sha256:i",), set(), "kept-images")]
    kept, released = images_logged(started)
    assert kept.startswith("known_good.image.kept name=sparkd/known-good:1")
    assert released.startswith("known_good.image.released name=sparkd-kept-2")


def test_images_that_docker_can_not_keep_are_left_to_the_next_start(started: AgentUnderTest) -> None:
    def fail() -> Outcome:
        raise DockerError("no space")

    serve_image(started, "sha256:i", fail)
    until(lambda: images_logged(started))
    (line,) = images_logged(started)
    assert line.startswith("known_good.image.failed reason=no space hint=the next start that proves")


def encode(known: tuple[Entry, ...]) -> str:
    return known_good.FILE.encode(KnownGood(known))


@pytest.mark.parametrize(
    ("write", "before"),
    [
        (encode, {"sha256:old", "sha256:i"}),
        (lambda known: encode(known).replace("sha256:old", "sha256:x;y"), set()),
        (lambda _known: "rubbish", set()),
    ],
    ids=["what is over is released", "one bad entry", "unreadable"],
)
def test_images_are_released_by_what_was_read_alone(
    started: AgentUnderTest, write: Callable[[tuple[Entry, ...]], str], before: set[str]
) -> None:
    known = (known_good_entry(image_id="sha256:i"), known_good_entry("d2", image_id="sha256:old"))
    Tree(Path(started.agent.host.files.root)).file(known_good.FILE.path, write(known))
    keeping = serve_image(started, "sha256:new")
    until(lambda: keeping.calls)
    assert [call[2] for call in keeping.calls] == [before]


def test_without_a_list_of_known_good_plans_no_image_is_released(started: AgentUnderTest) -> None:
    keeping = serve_image(started, "sha256:new")
    until(lambda: keeping.calls)
    assert [call[2] for call in keeping.calls] == [set()]
