"""What a recipe asserts of its image: run once for each image, in a container of its own, and judged by preflight."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping

import pytest
from tests.tree import Tree
from tests.unit.agent_runs import CONTAINER, REF, World, configuration, end, open_world, run_agent
from tests.unit.docker_server import json_response, plain
from tests.unit.vllm_answers import ONE_FLAG, packed
from tests.unit.wire import http

from sparkd.agent.daemon.context import Pace
from sparkd.base.host import Host
from sparkd.base.lib.errors import ExitCode
from sparkd.base.state import vllm_tables
from sparkd.base.state.launch_history import FILE

ASSERTING, REFUSED = "a" * 64, ""
"""Containers of an image's assertions and query, and one that docker can't make."""
FORK = "sparkd-test/fork:1"
OLD, NEW = "sha256:" + "1" * 64, "sha256:" + "2" * 64
FAULT = b"AssertionError: torch is built without CUDA\nthe image is not what the recipe needs: python3 -c 1\n"
RECIPE = """\
schema: 1
name: asserting
extends: tiny-cpu
image:
  ref: sparkd-test/vllm-cpu:0.32.0
  build: make image
  assert: ["python3 -c 1"]
"""
OF_FORK = f"schema: 1\nname: asserting\nextends: tiny-cpu\nimage: {{ref: {FORK}, vllm: '%s'}}\n"


class AssertingWorld(World):
    """Its docker answers as the image's assertions do in their containers, and as a rank's in the others."""

    def __init__(self, tree: Tree, port: int) -> None:
        super().__init__(tree, port)
        self.runs: list[str] = []
        """The images whose assertions were run."""
        self._creates: list[str] = []
        self.use(OLD)
        text = configuration(port, unskipped=("image",)).replace("tiny-cpu", "asserting")
        self.tree.file("/etc/sparkd/sparkd.toml", text)
        self.tree.file("/etc/sparkd/recipes/asserting.yaml", RECIPE)

    def use(self, image: str, code: int = 0, log: bytes = b"") -> None:
        """The image has this id from now on, and its assertions end so."""
        self._image, self._code, self._log = image, code, log
        fields = {"Id": image, "Architecture": "amd64", "Os": "linux", "RootFS": {"Layers": [image]}, "Config": {}}
        self.tree.docker("/version", {"Version": "29.2.1", "Arch": "amd64"})
        for ref in (REF, FORK):
            self.tree.docker(f"/images/{ref}/json", fields)

    def run(self, *creates: str, once: Mapping[str, Callable[[], object]]) -> tuple[ExitCode, str]:
        """Run the agent, which has to create these containers in this order; its exit code, and the journal."""
        self._creates = [*creates]
        code, journal = run_agent(self, once=once)
        assert not self._creates, journal
        return code, journal

    def docker(self, request: str) -> Iterable[bytes]:
        path = plain(request).replace(FORK, REF)
        if path == "POST /containers/create":
            if not self._creates:
                return json_response({"message": "the test expects no more containers"}, 409)
            container = self._creates.pop(0)
            if container == REFUSED:
                return json_response({"message": "no space left on device"}, 500)
            if container == ASSERTING:
                self.runs.append(self._image)
                return json_response({"Id": ASSERTING}, 201)
        if ASSERTING in path:
            self.requests.append(path)
            action = path.rpartition("/")[2]
            answers = {
                "wait": json_response({"StatusCode": self._code}),
                "json": json_response({"Config": {"Tty": True}}),
                "logs": (http(self._log),),
            }
            return answers.get(action, (http(b"", status=204),))
        return super().docker(request.replace(FORK, REF))

    def results(self) -> list[dict[str, object]]:
        asserts: dict[str, dict[str, object]] = json.loads((self.tree.root / FILE.path[1:]).read_text())["asserts"]
        return list(asserts.values())


@pytest.fixture
def asserting() -> Iterator[AssertingWorld]:
    with open_world(AssertingWorld) as world:
        world.pace = Pace(look_seconds=0.05, look_share=1)
        yield world


def serve_once(world: AssertingWorld, *creates: str) -> str:
    world.failing.clear()
    code, journal = world.run(*creates, once={"serving": end})
    assert code is ExitCode.GOOD, journal
    return journal


def test_an_image_is_checked_before_its_first_launch_and_not_again(asserting: AssertingWorld) -> None:
    journal = serve_once(asserting, ASSERTING, CONTAINER)
    assert "engine.image.checked" in journal
    assert asserting.runs == [OLD]
    assert f"DELETE /containers/{ASSERTING}" in asserting.requests
    assert [result["fault"] for result in asserting.results()] == [""]
    assert "engine.image.checked" not in serve_once(asserting, CONTAINER)


def test_what_flashinfer_lacks_in_an_image_is_kept_with_the_result(asserting: AssertingWorld) -> None:
    asserting.use(OLD, 0, b"/usr/local/lib/python3.12/dist-packages/flashinfer_python-0.6.12.dist-info\n")
    serve_once(asserting, ASSERTING, CONTAINER)
    assert [(result["fault"], result["unbuilt"]) for result in asserting.results()] == [("", "0.6.12")]


def test_an_image_that_is_not_as_asserted_blocks_until_it_is_built_again(asserting: AssertingWorld) -> None:
    asserting.use(OLD, 64, FAULT)
    rebuilt = asserting.once("blocked", lambda: asserting.use(NEW))
    journal = serve_once(asserting, ASSERTING, ASSERTING, CONTAINER)
    rebuilt.join()
    (line,) = [line for line in journal.splitlines() if "agent.run.blocked" in line]
    assert "AssertionError: torch is built without CUDA" in line
    assert "make image" in line
    assert asserting.runs == [OLD, NEW]
    assert journal.index("agent.run.blocked") < journal.index("engine.container.started")


def test_an_engine_that_a_blocked_node_has_started_ends_in_its_own_phase(asserting: AssertingWorld) -> None:
    """An image that a person has just brought is checked while the node still reports that it is blocked."""
    asserting.use(OLD, 64, FAULT)
    acts = {"blocked": lambda: asserting.use(NEW), "serving": asserting.fail}
    code, journal = asserting.run(ASSERTING, ASSERTING, CONTAINER, once=acts)
    assert code is ExitCode.ENGINE_ENDED, journal
    assert asserting.last_exit.phase == "serving"


def test_the_images_own_vllm_is_queried_once_and_the_next_preflight_judges_by_it(asserting: AssertingWorld) -> None:
    """A fork, as by its parser, that lacks all flags of the recipe but one."""
    asserting.use(OLD, 0, packed(ONE_FLAG).encode())
    text = configuration(asserting.port, unskipped=("image", "plan-lint")).replace("tiny-cpu", "asserting")
    asserting.tree.file("/etc/sparkd/sparkd.toml", text)
    code, journal = asserting.run(ASSERTING, once={"blocked": end})
    assert code is ExitCode.GOOD
    assert "engine.vllm.queried image=sparkd-test/vllm-cpu:0.32.0 version=0.1.dev1 flags=1" in journal
    table = vllm_tables.read_tables(Host(asserting.tree.root).files).tables[OLD]
    assert table.version == "0.1.dev1"
    assert [*table.by_name] == ["max-model-len"]
    (line,) = [line for line in journal.splitlines() if "agent.run.blocked" in line]
    assert "is no flag of" in line
    assert asserting.runs == [OLD]


def test_assertions_that_can_not_run_are_no_verdict_on_the_image(asserting: AssertingWorld) -> None:
    asserting.use(OLD, 137)
    code, journal = asserting.run(ASSERTING, once={"blocked": end})
    assert code is ExitCode.GOOD
    assert "what the recipe asserts of sparkd-test/vllm-cpu:0.32.0 can't be checked: exit code 137" in journal
    assert asserting.results() == []
    assert asserting.rank is None


def test_a_query_that_is_killed_is_no_answer_and_runs_no_known_assertion_again(asserting: AssertingWorld) -> None:
    serve_once(asserting, ASSERTING, CONTAINER)
    (checked,) = asserting.results()
    (asserting.tree.root / vllm_tables.FILE.path[1:]).unlink()
    asserting.tree.file("/etc/sparkd/recipes/asserting.yaml", f"{RECIPE}args: {{no-such-flag: true}}\n")
    asserting.use(OLD, 137)
    serve_once(asserting, ASSERTING, CONTAINER)
    assert not vllm_tables.read_tables(Host(asserting.tree.root).files).is_queried(OLD)
    asserting.use(OLD, 0, packed(ONE_FLAG).encode())
    assert "engine.vllm.queried" in serve_once(asserting, ASSERTING, CONTAINER)
    assert asserting.results() == [checked]


@pytest.mark.parametrize(("release", "creates"), [("", (ASSERTING, CONTAINER)), ("0.32", (CONTAINER,))])
def test_the_vllm_of_an_image_of_unknown_release_is_queried_without_assertions(
    asserting: AssertingWorld, release: str, creates: tuple[str, ...]
) -> None:
    asserting.tree.file("/etc/sparkd/recipes/asserting.yaml", OF_FORK % release)
    asserting.use(OLD, 0, packed(ONE_FLAG).encode())
    serve_once(asserting, *creates)
    serve_once(asserting, CONTAINER)


@pytest.mark.parametrize("recipe", [OF_FORK % "", RECIPE.replace(REF, FORK)], ids=["no assertion", "a known one"])
def test_a_query_whose_container_can_not_be_made_blocks_no_start(asserting: AssertingWorld, recipe: str) -> None:
    serve_once(asserting, ASSERTING, CONTAINER)
    (asserting.tree.root / vllm_tables.FILE.path[1:]).unlink()
    asserting.tree.file("/etc/sparkd/recipes/asserting.yaml", recipe)
    journal = serve_once(asserting, REFUSED, CONTAINER)
    assert "agent.run.blocked" not in journal
    assert "engine.vllm.queried image=sparkd-test/fork:1 flags=0 reason=" in journal
    assert journal.count("preflight.gate.passed") == 2, "the second one removes what the query may have left"
