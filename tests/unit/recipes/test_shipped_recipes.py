"""The shipped recipes: each is whole, renders for every rank, and is what its report ran, flag for flag.

`SPARKD_UPDATE_GOLDEN=1` regenerates the scripts.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
import yaml
from tests.unit import reported
from tests.unit.plans import ALONE, HEAD, shipped
from tests.unit.recipe_files import complaints

from sparkd.base.config import Settings
from sparkd.base.lib import recipes_dir
from sparkd.base.plan import script
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import LaunchPlan, Node
from sparkd.base.recipes.additions import EXECUTE_TIMEOUT, MAX_JOBS, NVCC_THREADS, RAY, RAY_ENV, READY_TIMEOUT, VERBS
from sparkd.base.recipes.image import Build, Lines
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import find_recipes
from sparkd.base.recipes.schema import Recipe
from sparkd.base.vllm.command import first_values
from sparkd.base.vllm.flag import parse_json
from sparkd.tools.node.recipe_lint import lint

GOLDEN = Path(__file__).parent / "golden-recipes"
NAMES = [*find_recipes([recipes_dir()])]
WORKER = Node(1, "10.0.0.2", "10.0.0.1", 2, "bond0", ("rocep1s0f0", "roceP2p1s0f0"))
OWNED = {"nnodes", "node-rank", "master-addr", "master-port", "headless", "distributed-executor-backend"}
"""Flags that sparkd sets: cluster.nodes, cluster.master_port and the recipe's executor decide them."""


def nodes(recipe: Recipe) -> tuple[Node, ...]:
    return (ALONE,) if recipe.nodes.max == 1 else (HEAD, WORKER)


def plan(recipe: Recipe, node: Node) -> LaunchPlan:
    return make_plan(recipe, Settings(), node)


def flags(argv: Iterable[str]) -> dict[str, object]:
    """What vLLM makes of the words: JSON by its meaning, dotted flags as the mapping that they fill."""
    values: dict[str, object] = {}
    for flag, text in first_values(argv).items():
        name, dot, field = flag.partition(".")
        value = True if text is None else parse_json(text)
        value = text if value is None else value
        if dot:
            table = values.setdefault(name, {})
            assert isinstance(table, dict)
            table[field] = value
        elif name not in OWNED:
            values[name] = value
    return values


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


def test_the_balanced_recipe_is_that_of_its_source() -> None:
    args = shipped("deepseek-v4-flash-balanced").args
    assert (args["max-model-len"], args["max-num-seqs"], args["enable-expert-parallel"]) == (131072, 8, True)
    assert (args["max-num-batched-tokens"], args["gpu-memory-utilization"]) == (16384, "0.90")


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_passes_the_rules_of_a_launch(name: str) -> None:
    errors, warnings = lint(load_recipe(name, [recipes_dir()]))
    assert (errors, warnings) == ([], [])


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_renders_for_every_rank(name: str) -> None:
    recipe = shipped(name)
    for node in nodes(recipe):
        made = plan(recipe, node)
        golden = GOLDEN / f"{name}.{made.role}.sh"
        if os.environ.get("SPARKD_UPDATE_GOLDEN"):
            golden.write_text(made.script)
        assert made.script == golden.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_says_what_its_image_must_fulfil_and_how_it_is_built(name: str) -> None:
    image = shipped(name).image
    assert image.asserts or name.startswith("tiny-")
    assert image.build or image.ref.partition("/")[0] in ("ghcr.io", "vllm", "aidendle94", "eugr"), "no registry has it"
    syntax = ["bash", "-n", "-c", script.render_asserts(image.asserts)]
    assert subprocess.run(syntax, capture_output=True, text=True, check=True).stderr == ""


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "dspark-nvfp4-1m",
            """\
            if getattr(self, "_gpu_rejected_context_mask", False):
                    rejected = torch.zeros(
            """,
            """\
                getattr(self, "_gpu_rejected_context_mask", False)
                rejected = rejected_for_gpu_mask.to(
            """,
        )
    ],
)
def test_a_patch_is_there_once(tmp_path: Path, name: str, good: str, bad: str) -> None:
    patched = tmp_path / "patched.py"
    wanted = [
        one.model_copy(update={"file": str(patched)}) for one in shipped(name).image.asserts if isinstance(one, Lines)
    ]
    for text, code in ((good, 0), (bad, 64), ("", 64)):
        patched.write_text(text)
        done = subprocess.run(["bash", "-c", script.render_asserts(wanted)], capture_output=True, check=False)
        assert done.returncode == code, done.stderr


# As in a container without GPU: what loads a library of CUDA's fails there.
NO_DRIVER = 'raise ImportError("libcuda.so.1: cannot open shared object file: No such file or directory")\n'
SAME_IMAGE = ("balanced", "conservative", "eugr", "ray")
MXFP4 = "vllm/model_executor/layers/quantization/mxfp4.py"
MODULES = {
    "torch/__init__.py": NO_DRIVER,
    "torch/version.py": "cuda: str | None = '13.0'\n",
    "deep_gemm/__init__.py": NO_DRIVER,
    "vllm/__init__.py": NO_DRIVER,
    MXFP4: "torch.cuda.empty_cache()\n" * 2,
}


def check_asserts(root: Path, wanted: Iterable[str | Lines]) -> tuple[int, str]:
    """Exit code and fault, where `root` has the modules of the image."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(root)}
    program = ["bash", "-c", script.render_asserts(wanted)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, script.find_fault(done.stderr)


def write_modules(root: Path, changed: Mapping[str, str | None]) -> None:
    for path, text in {**MODULES, **changed}.items():
        if text is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({}, ""),
        ({"torch/version.py": "cuda: str | None = None\n"}, "AssertionError: torch is built without CUDA"),
        ({"torch/__init__.py": None, "torch/version.py": None}, "torch is missing"),
        ({"deep_gemm/__init__.py": None}, "AssertionError: DeepGEMM is missing"),
        ({"deep_gemm/__init__.py": None, "vllm/third_party/deep_gemm/__init__.py": NO_DRIVER}, ""),
        ({MXFP4: None}, "No such file"),
        ({MXFP4: "torch.cuda.empty_cache()\n" * 4}, "4 times empty_cache"),
        ({MXFP4: "torch.accelerator.empty_cache()\n" * 4}, ""),
        ({MXFP4: "torch.accelerator.empty_cache()\n" * 4 + "torch.cuda.empty_cache()\n"}, "1 times empty_cache"),
        ({MXFP4: ""}, "0 times empty_cache"),
    ],
)
def test_what_an_image_lacks_is_found_without_loading_what_it_has(
    tmp_path: Path, changed: dict[str, str | None], fault: str
) -> None:
    write_modules(tmp_path, changed)
    wanted, *others = (shipped(f"deepseek-v4-flash-{name}").image.asserts for name in SAME_IMAGE)
    assert all(other == wanted for other in others)
    code, found = check_asserts(tmp_path, wanted)
    assert code == (64 if fault else 0), found
    assert fault in found


def steps(name: str) -> list[str]:
    """Programs of what builds the recipe's image."""
    build = shipped(name).image.build
    assert isinstance(build, Build)
    return [step.run for step in build.steps if step.run]


def run_step(program: str, root: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(root)}
    words = ["bash", "-eo", "pipefail", "-c", program]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, cwd=root)


SETUP = """\
class {name}:
    def process_weights_after_loading(self, layer):
        w13 = w2 = w13_scale = w2_scale = w13_bias = w2_bias = layer
        self._setup_kernel(layer, w13, w2, w13_scale, w2_scale, w13_bias, w2_bias)

"""
LOAD = """\
from types import SimpleNamespace
calls = []
torch = SimpleNamespace(cuda=SimpleNamespace(empty_cache=lambda: calls.append("emptied")))
exec(open("{path}").read())
Mxfp4._setup_kernel = lambda self, *words: calls.append(len(words))
Mxfp4().process_weights_after_loading(0)
assert calls == [7, "emptied"], calls
"""


def test_the_fix_of_the_load_is_made_once_where_an_image_lacks_it(tmp_path: Path) -> None:
    given = SETUP.format(name="GptOss") + SETUP.format(name="Mxfp4")
    for text in (given, "torch.accelerator.empty_cache()\n", "torch.cuda.empty_cache()\n" * 2):
        write_modules(tmp_path, {MXFP4: text, "vllm/__init__.py": ""})
        for _ in range(2):
            done = run_step(steps("deepseek-v4-flash-built")[1], tmp_path)
            assert done.returncode == 0, done.stderr
        code, fault = check_asserts(tmp_path, shipped("deepseek-v4-flash-built").image.asserts)
        assert code == 0, fault
        assert ((tmp_path / MXFP4).read_text() == text) is (text != given)
        if text == given:
            loaded = run_step(f"python3 -c '{LOAD.format(path=tmp_path / MXFP4)}'", tmp_path)
            assert loaded.returncode == 0, loaded.stderr


def test_an_overlay_and_the_programs_of_its_stages_are_taken_out_of_their_repository(tmp_path: Path) -> None:
    program = (
        steps("dspark-nvfp4-1m")[1].replace("/opt/", f"{tmp_path}/opt/").replace("/tmp/stage", f"{tmp_path}/stage")
    )
    vllm, recipe = tmp_path / "opt/env/lib/python3.12/site-packages/vllm", tmp_path / "opt/dspark/recipe"
    for folder in (vllm / "v1", recipe / "nvfp4", recipe / "overlay/vllm/v1", tmp_path / "opt/env/bin"):
        folder.mkdir(parents=True)
    (tmp_path / "opt/env/bin/python").symlink_to(sys.executable)
    (vllm / "v1/a.py").write_text("old = 1\n")
    (vllm / "kept.py").write_text("kept = 1\n")
    (recipe / "overlay/vllm/v1/a.py").write_text("new = 1\n")
    for stage in "abc":
        inner = f"from pathlib import Path\nPath('{tmp_path}/order').open('a').write('{stage}')\n"
        text = f"ARG BASE_IMAGE=x\nFROM ${{BASE_IMAGE}}\n\nRUN /opt/env/bin/python - <<'PY'\n{inner}PY\n"
        (recipe / f"nvfp4/Dockerfile.stage-{stage}").write_text(text)
    done = run_step(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [(vllm / name).read_text() for name in ("v1/a.py", "kept.py")] == ["new = 1\n", "kept = 1\n"]
    assert (tmp_path / "order").read_text() == "abc"
    assert not (tmp_path / "stage.py").exists()
    (recipe / "nvfp4/Dockerfile.stage-b").write_text("FROM x\n")
    assert run_step(program, tmp_path).returncode == 1, "a stage without a program"


@pytest.mark.parametrize(
    "name", ["deepseek-v4-flash-nvidia", "dspark-nvfp4-1m", "dspark-speed-baseline", "nemotron-3-super-nvfp4"]
)
def test_a_torch_for_the_cpu_is_found_without_loading_it(tmp_path: Path, name: str) -> None:
    wanted = shipped(name).image.asserts[:1]
    write_modules(tmp_path, {})
    assert check_asserts(tmp_path, wanted)[0] == 0
    write_modules(tmp_path, {"torch/version.py": "cuda = None\n"})
    code, found = check_asserts(tmp_path, wanted)
    assert (code, "AssertionError: torch is built without CUDA" in found) == (64, True)


def test_no_script_is_left_of_a_recipe_that_is_gone() -> None:
    assert {path.name.partition(".")[0] for path in GOLDEN.iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("tiny-")])
def test_every_recipe_names_its_report_and_expected_figures(name: str) -> None:
    loaded = load_recipe(name, [recipes_dir()])
    recipe, text = loaded.recipe, loaded.files[0].read_text()
    assert recipe.source.count(";") >= 2, "title; author; section"
    assert recipe.source.partition(";")[0] in text.replace(f'source: "{recipe.source}"', "").replace("\n# ", " ")
    if not recipe.expect:
        assert "measured nothing of it" in text.replace("\n# ", " ")
        return
    rates = recipe.expect["decode_tokens_per_second"]
    assert isinstance(rates, dict)
    assert max(int(count) for count in rates) <= int(str(recipe.args["max-num-seqs"]))


def test_the_reports_are_those_of_the_recipes() -> None:
    assert {report.recipe for report in reported.REPORTS} == {name for name in NAMES if not name.startswith("tiny-")}


@pytest.mark.parametrize("report", reported.REPORTS, ids=lambda report: report.recipe)
def test_the_reports_own_flags_are_what_is_launched(report: reported.Report) -> None:
    recipe = shipped(report.recipe)
    read = {**flags(shlex.split(report.line)), **report.corrected}
    expected = {flag: value for flag, value in read.items() if value is not None}
    for node in nodes(recipe):
        made = plan(recipe, node)
        assert made.argv[: len(recipe.image.entrypoint)] == recipe.image.entrypoint
        launched = flags(made.argv[len(recipe.image.entrypoint) + 1 :])
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
    assert (spec.privileged, spec.shm_bytes, spec.devices) == (False, report.shm_bytes, devices)
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
            return all(numbers(one) for one in value.values())
        return isinstance(value, int | float) and not isinstance(value, bool) and value > 0

    assert numbers(json.loads(json.dumps(dict(shipped(name).expect))))
