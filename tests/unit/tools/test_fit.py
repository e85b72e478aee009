"""What a node lacks for a recipe, and which recipe comes first."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.plans import plan, recipe

from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib.dockerd.reader import FORBIDDEN, DockerError, DockerReader
from sparkd.base.lib.text import GIB
from sparkd.base.plan.inputs import CheckInputs
from sparkd.tools.node.fit import FIRST, Fit, Lack, Supply, judge_supply, read_supply, sort_key

SPARK = Supply(total_bytes=120 * GIB, gpu=True)
NO_MODEL = replace(SPARK, model_fault="is not there")
NO_IMAGE = replace(SPARK, image_fault="image i:1 is not on this node")


def lack_of_memory(gib: str) -> Lack:
    return Lack(f"needs {gib} GiB of memory", lasting=True)


@pytest.mark.parametrize(
    ("supply", "keys", "lacks"),
    [
        pytest.param(SPARK, {}, [], id="all is there"),
        pytest.param(replace(SPARK, gpu=False), {}, [Lack("needs a GPU", lasting=True)], id="no GPU"),
        pytest.param(replace(SPARK, gpu=False), {"container": {"gpus": "none"}}, [], id="no GPU needed"),
        pytest.param(SPARK, {"memory_bytes": 119 * GIB}, [lack_of_memory("121.0")], id="memory"),
        pytest.param(SPARK, {"args": {"gpu-memory-utilization": 0.99}}, [lack_of_memory("120.8")], id="share"),
        pytest.param(
            NO_MODEL,
            {"model": {"path": "m", "repo": "a/m"}},
            [Lack("/srv/models/m is not there", "sudo sparkd model pull x")],
            id="a model that can be downloaded",
        ),
        pytest.param(NO_MODEL, {}, [Lack("/srv/models/m is not there")], id="no repository"),
        pytest.param(NO_IMAGE, {}, [Lack("image i:1 is not on this node", "sudo docker pull i:1")], id="image"),
        pytest.param(
            NO_IMAGE,
            {"image": {"ref": "i:1", "build": "make it"}},
            [Lack("you build its image: image i:1 is not on this node", "make it", by_hand=True)],
            id="an image that is built",
        ),
        pytest.param(
            replace(SPARK, image_fault="docker: away", docker_command="start it"),
            {},
            [Lack("docker: away", "start it")],
            id="docker",
        ),
        pytest.param(
            replace(SPARK, excess="weights of 138.8 GiB"),
            {},
            [Lack("weights of 138.8 GiB", lasting=True)],
            id="a model that can't fit",
        ),
    ],
)
def test_a_lack_names_what_is_missing_and_how_to_get_it(
    supply: Supply, keys: dict[str, object], lacks: list[Lack]
) -> None:
    assert list(judge_supply("x", recipe(**keys), CheckInputs(plan(**keys), Settings()), supply)) == lacks


class FailingDocker(Host):
    """A machine whose docker runs, and answers with the error."""

    error = ""

    def docker_reader(self) -> DockerReader:
        raise DockerError(f"GET /images/i/json: {self.error}")


@pytest.mark.parametrize(
    ("error", "command"), [(FORBIDDEN, "sudo sparkd init --plan"), ("timed out", "systemctl status docker")]
)
def test_a_docker_that_runs_is_not_to_be_started(tree: Tree, error: str, command: str) -> None:
    """As one that bars this user, for `sparkd init --plan` without sudo."""
    tree.dockerd()
    tree.meminfo(MemTotal=120, MemFree=100, MemAvailable=100)
    inputs = CheckInputs(plan(container={"gpus": "none"}), Settings())
    host = FailingDocker(tree.root)
    host.error = error
    assert read_supply(inputs, host, None).docker_command == command


def test_a_recipe_by_its_path_is_named_by_it() -> None:
    keys: dict[str, object] = {
        "model": {"path": "m", "repo": "a/m"},
        "image": {"ref": "i:1", "build": {"from": "b:1", "steps": [{"run": "true"}]}},
    }
    supply = replace(NO_MODEL, image_fault=NO_IMAGE.image_fault)
    lacks = judge_supply("/my own/x.yaml", recipe(**keys), CheckInputs(plan(**keys), Settings()), supply)
    commands = [f"sudo sparkd {verb} '/my own/x.yaml'" for verb in ("model pull", "image build")]
    assert [lack.command for lack in lacks] == commands


def test_the_first_one_is_what_serves_now_on_most_nodes_and_what_no_command_brings_comes_last() -> None:
    model, image = Lack("no model", "pull"), Lack("no image", "pull")
    built = Lack("you build its image", "make it", by_hand=True)
    wanted = (
        Fit("own", 1, "m", own=True),
        Fit(FIRST, 2, "m", own=False),
        Fit("b", 2, "m", own=False),
        Fit("c", 1, "m", own=False),
        Fit("d", 2, "m", own=False, lacks=(image,)),
        Fit("e", 2, "m", own=True, lacks=(model, image)),
        Fit("ea", 2, "m", own=True, lacks=(built,)),
        Fit("f", 2, "m", own=True, lacks=(Lack("no model"),)),
        Fit("g", 2, "m", own=True, lacks=(Lack("needs a GPU", lasting=True),)),
    )
    reverse = wanted[::-1]
    assert tuple(sorted(reverse, key=sort_key)) == wanted
