"""`sparkd plan`: the script, the container and the digest of a rank, without a secret."""

import json
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.commands import sparkd
from tests.unit.plans import shipped

from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.image_asserts import render_asserts
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.plan.model import LaunchPlan, Node
from sparkd.base.state.launch_history import FILE, AssertResult, LaunchHistory
from sparkd.tools.cli.plan import read_missing_kernels
from sparkd.tools.node.plan_text import describe_plan


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sparkd.toml"
    path.write_text('[engine]\nrecipe = "tiny-cpu"\n[engine.env]\nNCCL_DEBUG = "INFO"\n')
    return path


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("hf_do_not_print")
    return path


@pytest.mark.parametrize("words", ["plan", "plan --json", "plan --script"])
def test_the_script_is_printed_and_no_secret(config: Path, token: Path, words: str) -> None:
    done = sparkd(*words.split(), config=config, SPARKD_ENGINE__SECRETS__HF_TOKEN=str(token))
    assert done.returncode == 0, done.stderr
    assert "hf_do_not_print" not in done.stdout
    assert "exec -- vllm serve /models/tiny" in done.stdout


def test_the_json_has_variables_files_of_secrets_and_the_digest(config: Path, token: Path) -> None:
    done = sparkd("plan", "--json", config=config, SPARKD_ENGINE__SECRETS__HF_TOKEN=str(token))
    made = json.loads(done.stdout)
    assert made["env"]["NCCL_DEBUG"] == "INFO"
    assert made["secrets"] == [{"name": "HF_TOKEN", "file": str(token)}]
    assert len(made["digest"]) == 64


PAIR = {
    "SPARKD_CLUSTER__NODES": "10.0.0.1,10.0.0.2",
    "SPARKD_ENGINE__RECIPE": "dspark-nvfp4-1m",
    "SPARKD_FABRIC__INTERFACE": "fab0",
    "SPARKD_FABRIC__HCAS": "mlx5_0",
}


@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_whole_container_is_shown(config: Path, rank: str) -> None:
    shown = sparkd("plan", "--rank", rank, config=config, **PAIR).stdout
    assert "\nulimit     memlock unlimited to unlimited\n" in shown
    assert "\ndevice     /dev/infiniband\n" in shown


def test_the_head_alone_has_an_endpoint(config: Path) -> None:
    head, worker = (sparkd("plan", "--rank", rank, config=config, **PAIR).stdout for rank in "01")
    assert "\nendpoint   " in head
    assert "\nendpoint   " not in worker


def test_the_plan_of_another_rank_has_the_same_digest(config: Path) -> None:
    head, worker = (json.loads(sparkd("plan", "--json", "--rank", rank, config=config, **PAIR).stdout) for rank in "01")
    assert head["role"] == "head"
    assert worker["role"] == "worker"
    assert head["digest"] == worker["digest"]


def test_a_rank_beyond_the_nodes_is_a_usage_error(config: Path) -> None:
    assert sparkd("plan", "--rank", "2", config=config, **PAIR).returncode == 2


@pytest.fixture
def checked_plan(tree: Tree) -> LaunchPlan:
    """A plan whose image is on the node."""
    plan = make_plan(shipped("deepseek-v4-flash-balanced"), Settings(), Node(0, "10.0.0.1", "10.0.0.1", 2, "fab0"))
    tree.dockerd()
    tree.docker("/version", {"Arch": "arm64"})
    image = {"Id": "sha256:1", "Architecture": "arm64", "Os": "linux", "Config": {}}
    tree.docker(f"/images/{plan.image_to_run}/json", image)
    return plan


@pytest.mark.parametrize("unbuilt", ["0.6.12", ""])
def test_what_the_checked_image_lacks_of_flashinfer_is_known(
    tree: Tree, checked_plan: LaunchPlan, unbuilt: str
) -> None:
    result = AssertResult("", 1.0, "", unbuilt)
    history = LaunchHistory().record_asserts("sha256:1", render_asserts(checked_plan.asserts), result)
    tree.file(FILE.path, FILE.encode(history))
    assert read_missing_kernels(CheckInputs(checked_plan, Settings()), Host(tree.root)) == unbuilt


def test_what_an_image_lacks_is_shown_with_the_command_that_adds_it(checked_plan: LaunchPlan) -> None:
    shown = describe_plan(checked_plan, (), None, None, "0.6.12")
    assert "pip install flashinfer-jit-cache==0.6.12 --index-url" in shown
    assert "usual folders" in shown
    assert "print(torch.version.cuda)" in shown
    assert "the image has no" not in shown, "it may have it elsewhere"


def test_an_image_that_lacks_nothing_has_no_such_command(checked_plan: LaunchPlan) -> None:
    assert "flashinfer-jit-cache" not in describe_plan(checked_plan, (), None, None, "")
