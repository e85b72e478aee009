"""The images of the shipped recipes: what is checked of each, and how those of no registry are built."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from tests.unit.plans import shipped

from sparkd.base.lib import recipes_dir
from sparkd.base.plan.image_asserts import find_fault, render_asserts
from sparkd.base.recipes.image import Build, Lines
from sparkd.base.recipes.lookup import find_recipes


@pytest.mark.parametrize("name", find_recipes([recipes_dir()]))
def test_every_recipe_says_what_its_image_must_fulfil_and_how_it_is_built(name: str) -> None:
    image = shipped(name).image
    assert image.asserts or name.startswith("tiny-")
    assert image.build or image.ref.partition("/")[0] in ("ghcr.io", "vllm", "aidendle94", "eugr"), "no registry has it"
    syntax = ["bash", "-n", "-c", render_asserts(image.asserts)]
    assert subprocess.run(syntax, capture_output=True, text=True, check=True).stderr == ""


PATCHED = """\
            if getattr(self, "_gpu_rejected_context_mask", False):
                    rejected = torch.zeros(
"""
UNPATCHED = """\
                getattr(self, "_gpu_rejected_context_mask", False)
                rejected = rejected_for_gpu_mask.to(
"""


@pytest.mark.parametrize(("text", "code"), [(PATCHED, 0), (UNPATCHED, 64), ("", 64), (PATCHED * 2, 64)])
def test_the_lines_of_a_patch_have_to_be_in_the_image_once(tmp_path: Path, text: str, code: int) -> None:
    module = tmp_path / "patched.py"
    module.write_text(text)
    lines = [wanted for wanted in shipped("dspark-nvfp4-1m").image.asserts if isinstance(wanted, Lines)]
    assert lines
    in_module = [wanted.model_copy(update={"file": str(module)}) for wanted in lines]
    done = subprocess.run(["bash", "-c", render_asserts(in_module)], capture_output=True, check=False)
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
    program = ["bash", "-c", render_asserts(wanted)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, find_fault(done.stderr)


def write_modules(root: Path, changed: Mapping[str, str | None]) -> None:
    for path, text in {**MODULES, **changed}.items():
        if text is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)


@pytest.mark.parametrize(
    ("changed", "words"),
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
    tmp_path: Path, changed: dict[str, str | None], words: str
) -> None:
    write_modules(tmp_path, changed)
    wanted, *others = (shipped(f"deepseek-v4-flash-{name}").image.asserts for name in SAME_IMAGE)
    assert all(other == wanted for other in others)
    code, fault = check_asserts(tmp_path, wanted)
    assert code == (64 if words else 0), fault
    assert words in fault


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
    unfixed = SETUP.format(name="GptOss") + SETUP.format(name="Mxfp4")
    for text in (unfixed, "torch.accelerator.empty_cache()\n", "torch.cuda.empty_cache()\n" * 2):
        write_modules(tmp_path, {MXFP4: text, "vllm/__init__.py": ""})
        for _ in range(2):
            done = run_step(steps("deepseek-v4-flash-built")[1], tmp_path)
            assert done.returncode == 0, done.stderr
        code, fault = check_asserts(tmp_path, shipped("deepseek-v4-flash-built").image.asserts)
        assert code == 0, fault
        assert ((tmp_path / MXFP4).read_text() == text) is (text != unfixed)
        if text == unfixed:
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
    code, fault = check_asserts(tmp_path, wanted)
    assert code == 64
    assert "AssertionError: torch is built without CUDA" in fault
