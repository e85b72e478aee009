"""Compile caches are found where the programs themselves put them, and kept unless something keeps them already."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.plans import ALONE, HEAD, WORKER, plan

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


def test_every_recipe_keeps_the_caches_of_vllm_and_its_compilers() -> None:
    assert {one.name: one.target for one in plan().caches} == DEFAULT
    without_gpu = plan(ALONE, container={"gpus": "none"}, args={"tensor-parallel-size": 1})
    assert [one.name for one in without_gpu.caches] == ["vllm", "inductor"]


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
    assert {one.name: one.target for one in plan(ALONE, env=env).caches} == {**DEFAULT, **changed}


@pytest.mark.parametrize("text", ["/c//v", "/c/./v", "//c/v/"])
def test_a_folder_has_the_name_that_docker_mounts_it_at(text: str) -> None:
    (kept,) = [one.target for one in plan(ALONE, env={"VLLM_CACHE_ROOT": text}).caches if one.name == "vllm"]
    assert cache_folders({"VLLM_CACHE_ROOT": text})["vllm"] == kept == "/c/v"
    assert cache_folders({"VLLM_CACHE_ROOT": "c//v"})["vllm"] == "c/v", "none that docker could mount"


def test_another_home_moves_what_lies_in_it() -> None:
    moved = {one.name: one.target for one in plan(ALONE, env={"HOME": "/home/v"}).caches}
    assert moved == {name: target.replace("/root/", "/home/v/") for name, target in DEFAULT.items()}


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        ({"caches": {"triton": None}}, {"triton": None}),
        ({"caches": {"triton": "/t", "own": "/own"}}, {"triton": "/t", "own": "/own"}),
        # What the recipe mounts keeps it already, or hides it by the recipe's will.
        ({"caches": {"home": "/root"}}, {**dict.fromkeys(DEFAULT), "home": "/root", "inductor": DEFAULT["inductor"]}),
        ({"container": {"volumes": ["/srv:/root/.cache:rw"]}}, {"vllm": None, "flashinfer": None}),
        ({"container": {"volumes": ["/srv:/root/.triton:ro"]}}, {"triton": None}),
        ({"model": {"path": "/root/.cache/vllm"}}, {"vllm": None}),
        # Two in one folder.
        ({"env": {"TRITON_CACHE_DIR": "/jit", "TILELANG_CACHE_DIR": "/jit/t"}}, {"triton": "/jit", "tilelang": None}),
        # No mount may be there, or ranks would differ.
        ({"env": {"VLLM_CACHE_ROOT": "/dev/shm/v"}}, {"vllm": None}),
        ({"env": {"VLLM_CACHE_ROOT": "/models/v"}}, {"vllm": None}),
        ({"env": {"VLLM_CACHE_ROOT": "~/v"}}, {"vllm": None}),
        ({"env": {"VLLM_CACHE_ROOT": "/"}}, {"vllm": None}),
        ({"env": {"TORCHINDUCTOR_CACHE_DIR": "/tmp"}}, {"inductor": None}),
        ({"env": {"VLLM_CACHE_ROOT": "/c/{node.rank}"}}, {"vllm": None}),
        # A secret is no path.
        ({"secrets": {"HOME": "/etc/home"}}, {}),
    ],
)
def test_a_cache_is_not_kept_twice_nor_where_no_mount_may_be(keys: dict[str, object], kept: dict[str, str]) -> None:
    expected = {name: target for name, target in {**DEFAULT, **kept}.items() if target}
    assert {one.name: one.target for one in plan(ALONE, **keys).caches} == expected


def test_both_ranks_keep_the_same_and_a_difference_is_found() -> None:
    keys = {"env": {"VLLM_CACHE_ROOT": "/c/{node.address}", "VLLM_HOST_IP": "{node.address}"}}
    assert plan(HEAD, **keys).caches == plan(WORKER, **keys).caches
    assert plan(HEAD, **keys).digest == plan(WORKER, **keys).digest
    assert plan(HEAD, caches={"triton": None}).digest != plan(HEAD).digest
    assert dict(plan(HEAD).shared)["caches.tilelang"] == "/root/.tilelang"


@given(
    st.dictionaries(st.sampled_from(["HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TILELANG_CACHE_DIR"]), st.text())
)
def test_no_value_of_a_variable_makes_a_mount_that_docker_refuses(env: dict[str, str]) -> None:
    kept = [*kept_caches({}, env, ["/models", "/srv/x"], gpu=True).values()]
    assert len(set(kept)) == len(kept)
    for target in kept:
        assert target.startswith("/") and ":" not in target and ".." not in target.split("/")
        assert not any(is_below(target, one) for one in ("/models", *SYSTEM_TARGETS))
    assert cache_folders(env).keys() == DEFAULT.keys()
