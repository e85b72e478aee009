"""The shipped recipes: each is whole, renders for every rank, and is what its report ran, flag for flag.

`SPARKD_UPDATE_GOLDEN=1` regenerates the scripts.
"""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.unit import reported
from tests.unit.plans import ALONE, HEAD, flags, shipped
from tests.unit.recipe_files import complaints

from sparkd.base.config import Settings
from sparkd.base.lib import recipes_dir
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import LaunchPlan, Node
from sparkd.base.recipes.additions import EXECUTE_TIMEOUT, MAX_JOBS, NVCC_THREADS, RAY, RAY_ENV, READY_TIMEOUT, VERBS
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import find_recipes
from sparkd.base.recipes.schema import Recipe
from sparkd.tools.node.recipe_lint import lint

GOLDEN = Path(__file__).parent / "golden-recipes"
NAMES = [*find_recipes([recipes_dir()])]
REPORTED = [name for name in NAMES if not name.startswith("tiny-")]
"""Recipes of a report: the others are those of the tests."""
WORKER = Node(1, "10.0.0.2", "10.0.0.1", 2, "bond0", ("rocep1s0f0", "roceP2p1s0f0"))
OWNED = {"nnodes", "node-rank", "master-addr", "master-port", "headless", "distributed-executor-backend"}
"""Flags that sparkd sets: cluster.nodes, cluster.master_port and the recipe's executor decide them."""


def nodes(recipe: Recipe) -> tuple[Node, ...]:
    return (ALONE,) if recipe.nodes.max == 1 else (HEAD, WORKER)


def plan(recipe: Recipe, node: Node) -> LaunchPlan:
    return make_plan(recipe, Settings(), node)


@pytest.mark.parametrize("name", NAMES)
def test_the_random_models_of_the_tests_are_declared_and_no_others(name: str) -> None:
    assert shipped(name).model.random_weights is name.startswith("tiny-")


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_recipe_is_whole_and_says_its_source(name: str) -> None:
    loaded = load_recipe(name, [recipes_dir()])
    assert loaded.recipe.name == name
    assert loaded.recipe.source
    assert loaded.recipe.description
    assert not complaints(yaml.safe_load(loaded.files[0].read_text()))


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_passes_the_rules_of_a_launch(name: str) -> None:
    errors, warnings = lint(load_recipe(name, [recipes_dir()]))
    assert not errors
    assert not warnings


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_renders_for_every_rank(name: str) -> None:
    recipe = shipped(name)
    for node in nodes(recipe):
        made = plan(recipe, node)
        golden = GOLDEN / f"{name}.{made.role}.sh"
        if os.environ.get("SPARKD_UPDATE_GOLDEN"):
            golden.write_text(made.script)
        assert made.script == golden.read_text()


def test_no_script_is_left_of_a_recipe_that_is_gone() -> None:
    assert {path.name.partition(".")[0] for path in GOLDEN.iterdir()} == set(NAMES)


def read_comments(name: str) -> str:
    """The recipe's text without its source, its comments joined."""
    text = load_recipe(name, [recipes_dir()]).files[0].read_text()
    return text.replace(f'source: "{shipped(name).source}"', "").replace("\n# ", " ")


@pytest.mark.parametrize("name", REPORTED)
def test_every_recipe_names_its_report(name: str) -> None:
    source = shipped(name).source
    assert source.count(";") >= 2, "title; author; section"
    assert source.partition(";")[0] in read_comments(name)


@pytest.mark.parametrize("name", [name for name in REPORTED if not shipped(name).expect])
def test_a_recipe_without_expected_figures_says_that_its_report_has_none(name: str) -> None:
    assert "measured nothing of it" in read_comments(name)


@pytest.mark.parametrize("name", [name for name in REPORTED if shipped(name).expect])
def test_a_recipe_expects_rates_up_to_as_many_requests_as_it_takes_at_once(name: str) -> None:
    recipe = shipped(name)
    rates = recipe.expect["decode_tokens_per_second"]
    assert isinstance(rates, dict)
    assert max(int(count) for count in rates) <= int(str(recipe.args["max-num-seqs"]))


def test_the_reports_are_those_of_the_recipes() -> None:
    assert {report.recipe for report in reported.REPORTS} == set(REPORTED)


@pytest.mark.parametrize("report", reported.REPORTS, ids=lambda report: report.recipe)
def test_the_reports_own_flags_are_what_is_launched(report: reported.Report) -> None:
    recipe = shipped(report.recipe)
    read = {**flags(shlex.split(report.line)), **report.corrected}
    expected = {flag: value for flag, value in read.items() if value is not None}
    for node in nodes(recipe):
        made = plan(recipe, node)
        assert made.argv[: len(recipe.image.entrypoint)] == recipe.image.entrypoint
        launched = flags(made.argv[len(recipe.image.entrypoint) + 1 :])
        launched = {flag: value for flag, value in launched.items() if flag not in OWNED}
        for flag, reason in report.added.items():
            assert reason
            launched.pop(flag)
        assert launched == expected


@pytest.mark.parametrize("report", reported.REPORTS, ids=lambda report: report.recipe)
def test_the_reports_own_environment_is_what_the_engine_gets(report: reported.Report) -> None:
    recipe = shipped(report.recipe)
    for node in nodes(recipe):
        env = dict(plan(recipe, node).env)
        for name in (READY_TIMEOUT, EXECUTE_TIMEOUT, MAX_JOBS, NVCC_THREADS):
            del env[name]
        if recipe.executor == RAY:
            env = {name: text for name, text in env.items() if name not in RAY_ENV}
        for name in reported.OF_THE_NODE & env.keys():
            assert env.pop(name).removeprefix("=") in (node.address, node.interface, ",".join(node.hcas))
        added = {"NCCL_DEBUG": "WARN"} if len(nodes(recipe)) > 1 else {}
        assert env == {**added, **report.env}


@pytest.mark.parametrize("report", reported.REPORTS, ids=lambda report: report.recipe)
def test_the_reports_own_container_is_what_is_made(report: reported.Report) -> None:
    recipe = shipped(report.recipe)
    spec = plan(recipe, nodes(recipe)[0]).container
    assert (spec.gpus, spec.ipc, spec.network) == ("all", "host", "host")
    # Where the report is privileged, RDMA's devices are all that it needs.
    devices = (VERBS,) if report.privileged else report.devices
    assert spec.devices == devices
    assert spec.shm_bytes == report.shm_bytes
    assert not spec.privileged
    assert [mount.target for mount in spec.volumes] == ["/models", *report.mounts]


def test_the_conservative_recipe_advises_the_reports_settings_of_the_kernel() -> None:
    made = plan(shipped("deepseek-v4-flash-conservative"), HEAD)
    assert dict(made.sysctls) == {
        "vm.min_free_kbytes": "1572864",
        "vm.overcommit_memory": "0",
        # The same author's post in the forum.
        "vm.vfs_cache_pressure": "200",
        "vm.dirty_ratio": "5",
        "vm.dirty_background_ratio": "2",
    }


@pytest.mark.parametrize(
    ("name", "program", "cuda"),
    [
        ("dspark-nvfp4-1m", "/opt/env/bin/vllm", "/opt/env/targets/sbsa-linux"),
        ("deepseek-v4-flash-b12x-1m", "/usr/local/bin/dsv4-vllm-entrypoint", ""),
    ],
)
def test_the_login_shell_around_vllm_passes_every_flag_on_as_it_is(
    tmp_path: Path, name: str, program: str, cuda: str
) -> None:
    vllm = tmp_path / "vllm"
    vllm.write_text('#!/bin/sh\nprintf \'%s\\0\' "$@" "$CUDA_HOME"\n')
    vllm.chmod(0o755)
    argv = plan(shipped(name), HEAD).argv
    assert argv[:2] == ("bash", "-lc")
    ran = subprocess.run(
        [word.replace(program, str(vllm)) for word in argv],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    passed_on = argv[argv.index(f"/models/{shipped(name).model.path}") :]
    assert ran.stdout.split("\0")[:-1] == ["serve", *passed_on, cuda]


@pytest.mark.parametrize("name", NAMES)
def test_what_a_recipe_expects_is_json_with_numbers(name: str) -> None:
    def numbers(value: object) -> bool:
        if isinstance(value, dict):
            return all(map(numbers, value.values()))
        return isinstance(value, int | float) and not isinstance(value, bool) and value > 0

    assert numbers(json.loads(json.dumps(dict(shipped(name).expect))))
