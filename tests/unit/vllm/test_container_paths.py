"""Compile caches are found where the programs themselves put them, and kept unless something keeps them already."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.plans import ALONE, HEAD, WORKER, plan

from sparkd.base.plan.model import LaunchPlan
from sparkd.base.vllm.container_paths import SYSTEM_TARGETS, cache_folders, is_below, kept_caches

DEFAULT = {
    "vllm": "/root/.cache/vllm",
    "inductor": "/tmp/torchinductor_root",
    "flashinfer": "/root/.cache/flashinfer",
    "triton": "/root/.triton",
    "tilelang": "/root/.tilelang",
    "deep_gemm": "/root/.deep_gemm",
    "cuda": "/root/.nv/ComputeCache",
}


def targets(made: LaunchPlan) -> dict[str, str]:
    """The folder in the container of each cache that the plan keeps."""
    return {cache.name: cache.target for cache in made.caches}


def test_every_recipe_keeps_the_caches_of_vllm_and_its_compilers() -> None:
    assert targets(plan()) == DEFAULT
    without_gpu = plan(ALONE, container={"gpus": "none"}, args={"tensor-parallel-size": 1})
    assert [*targets(without_gpu)] == ["vllm", "inductor"]


@pytest.mark.parametrize(
    ("env", "changed"),
    [
        ({"XDG_CACHE_HOME": "/x"}, {"vllm": "/x/vllm"}),
        ({"XDG_CACHE_HOME": "/x", "VLLM_CACHE_ROOT": "/v"}, {"vllm": "/v"}),
        ({"TORCHINDUCTOR_CACHE_DIR": "/i"}, {"inductor": "/i"}),
        ({"FLASHINFER_WORKSPACE_BASE": "/f"}, {"flashinfer": "/f/.cache/flashinfer"}),
        ({"TRITON_CACHE_DIR": "/t//c/."}, {"triton": "/t/c"}),
        ({"TRITON_HOME": "/t"}, {"triton": "/t/.triton"}),
        ({"TILELANG_CACHE_DIR": "/l"}, {"tilelang": "/l"}),
        ({"DG_JIT_CACHE_DIR": "/d"}, {"deep_gemm": "/d"}),
        ({"CUDA_CACHE_PATH": "/c"}, {"cuda": "/c"}),
        ({"VLLM_CACHE_ROOT": ""}, {}),
    ],
)
def test_the_variables_of_the_recipe_are_followed(env: dict[str, str], changed: dict[str, str]) -> None:
    assert targets(plan(ALONE, env=env)) == {**DEFAULT, **changed}


@pytest.mark.parametrize("text", ["/c//v", "/c/./v", "//c/v/"])
def test_a_folder_has_the_name_that_docker_mounts_it_at(text: str) -> None:
    kept = targets(plan(ALONE, env={"VLLM_CACHE_ROOT": text}))
    assert cache_folders({"VLLM_CACHE_ROOT": text})["vllm"] == kept["vllm"] == "/c/v"
    assert cache_folders({"VLLM_CACHE_ROOT": "c//v"})["vllm"] == "c/v", "none that docker could mount"


def test_another_home_moves_what_lies_in_it() -> None:
    moved = targets(plan(ALONE, env={"HOME": "/home/v"}))
    assert moved == {name: target.replace("/root/", "/home/v/") for name, target in DEFAULT.items()}


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        pytest.param({"caches": {"triton": None}}, {"triton": None}, id="left out by the recipe"),
        pytest.param(
            {"caches": {"triton": "/t", "own": "/own"}}, {"triton": "/t", "own": "/own"}, id="of the recipe's own"
        ),
        pytest.param(
            {"caches": {"home": "/root"}},
            {**dict.fromkeys(DEFAULT), "home": "/root", "inductor": DEFAULT["inductor"]},
            id="below a cache of the recipe's",
        ),
        pytest.param(
            {"container": {"volumes": ["/srv:/root/.cache:rw"]}}, {"vllm": None, "flashinfer": None}, id="in a volume"
        ),
        pytest.param(
            {"container": {"volumes": ["/srv:/root/.triton:ro"]}}, {"triton": None}, id="hidden by the recipe's will"
        ),
        pytest.param({"model": {"path": "/root/.cache/vllm"}}, {"vllm": None}, id="the model's folder"),
        pytest.param(
            {"env": {"TRITON_CACHE_DIR": "/jit", "TILELANG_CACHE_DIR": "/jit/t"}},
            {"triton": "/jit", "tilelang": None},
            id="two in one folder",
        ),
        pytest.param({"env": {"VLLM_CACHE_ROOT": "/dev/shm/v"}}, {"vllm": None}, id="no mount may be in /dev/shm"),
        pytest.param({"env": {"VLLM_CACHE_ROOT": "/models/v"}}, {"vllm": None}, id="no mount may be in /models"),
        pytest.param({"env": {"VLLM_CACHE_ROOT": "~/v"}}, {"vllm": None}, id="no absolute path"),
        pytest.param({"env": {"VLLM_CACHE_ROOT": "/"}}, {"vllm": None}, id="no mount may be at the root"),
        pytest.param({"env": {"TORCHINDUCTOR_CACHE_DIR": "/tmp"}}, {"inductor": None}, id="no mount may be at /tmp"),
        pytest.param({"env": {"VLLM_CACHE_ROOT": "/c/{node.rank}"}}, {"vllm": None}, id="ranks would differ"),
        pytest.param({"secrets": {"HOME": "/etc/home"}}, {}, id="a secret is no path"),
    ],
)
def test_a_cache_is_not_kept_twice_nor_where_no_mount_may_be(keys: dict[str, object], kept: dict[str, str]) -> None:
    expected = {name: target for name, target in {**DEFAULT, **kept}.items() if target}
    assert targets(plan(ALONE, **keys)) == expected


def test_both_ranks_keep_the_same() -> None:
    keys = {"env": {"VLLM_CACHE_ROOT": "/c/{node.address}", "VLLM_HOST_IP": "{node.address}"}}
    assert plan(HEAD, **keys).caches == plan(WORKER, **keys).caches


@given(
    st.dictionaries(st.sampled_from(["HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TILELANG_CACHE_DIR"]), st.text())
)
def test_no_value_of_a_variable_makes_a_mount_that_docker_refuses(env: dict[str, str]) -> None:
    kept = [*kept_caches({}, env, ["/models", "/srv/x"], gpu=True).values()]
    assert len(set(kept)) == len(kept)
    for target in kept:
        assert target.startswith("/") and ":" not in target and ".." not in target.split("/")
        assert not any(is_below(target, reserved) for reserved in ("/models", *SYSTEM_TARGETS))
    assert cache_folders(env).keys() == DEFAULT.keys()
