"""The rules of plan-lint on variables of the environment: their names, devices, addresses, and what they forbid."""

import pytest
from msgspec.structs import replace
from tests.unit.lint_launches import LAUNCH, judge, with_flags

from sparkd.base.vllm.flag import SHIPPED
from sparkd.base.vllm.lint import rules


def reasons(**env: str) -> list[str]:
    return [issue.reason for issue in rules.find_issues(replace(LAUNCH, env=env))]


@pytest.mark.parametrize("name", ["VLLM_DP_SIZ", "VLLM_HOST_PI", "VLLM_USE_FASTOKEMS"])
def test_a_name_that_one_letter_would_make_right_warns(name: str) -> None:
    assert judge(replace(LAUNCH, env={name: "1"})) == ["variable-misprint warns"]


@pytest.mark.parametrize("name", ["VLLM_TP_SIZE", "VLLM_USE_FLASHINFER_MOE_FP4"])
def test_a_short_word_with_another_letter_is_another_word(name: str) -> None:
    """VLLM_TP_SIZE is a variable of public launch scripts; VLLM_DP_SIZE is vLLM's."""
    assert judge(replace(LAUNCH, env={name: "1"})) == []


FIXED = {"VLLM_HOST_IP": "10.0.0.2", "MASTER_ADDR": "10.0.0.1", "GLOO_SOCKET_IFNAME": "10.0.0.1"}
PAIR = replace(LAUNCH, env=FIXED, nodes=2)


def test_an_address_of_one_node_is_none_of_all() -> None:
    assert [(issue.rule, issue.at) for issue in rules.find_issues(PAIR)] == [
        ("one-address", f"env.{name}") for name in FIXED
    ]
    assert rules.find_issues(PAIR)[0].reason == "VLLM_HOST_IP=10.0.0.2: all nodes get the address of one"
    assert judge(replace(PAIR, nodes=1)) == []


def test_addresses_of_this_node_and_the_head_are_right() -> None:
    assert judge(replace(PAIR, addresses=("10.0.0.2", "10.0.0.1"))) == []


def test_an_address_of_another_node_is_named_with_the_right_ones() -> None:
    (issue,) = rules.find_issues(replace(PAIR, addresses=("10.0.0.1", "10.0.0.1")))
    assert issue.reason == "VLLM_HOST_IP=10.0.0.2: this node is 10.0.0.1, the head 10.0.0.1"


def test_an_address_where_all_ranks_meet_is_right_on_all_nodes() -> None:
    meeting = {"NCCL_COMM_ID": "10.0.0.1:1", "NCCL_IB_ADDR_RANGE": "10.0.0.0", "UCX_TLS": "rc"}
    assert judge(replace(PAIR, env=meeting)) == []


@pytest.mark.parametrize("address", ["fd00::2", "fe80::2%enp1s0f0np0"])
def test_sparkds_own_address_of_version_6_is_none_of_another_node(address: str) -> None:
    several = replace(PAIR, env={"VLLM_HOST_IP": address, "MASTER_ADDR": "fd00::1"})
    assert judge(replace(several, addresses=(address, "fd00::1"))) == []
    assert judge(replace(several, addresses=("fd00::1", "fd00::1"))) == ["one-address warns"]


@pytest.mark.parametrize(
    ("devices", "shown"),
    [
        ("rocep1s0f0,mlx5_1", "mlx5_1"),
        ("rocep1s0f0:1,mlx5_1:1", "mlx5_1"),
        ("^=mlx5_0,mlx5_1", "^=mlx5_0"),
        ("=mlx5_0", "=mlx5_0"),
    ],
)
def test_a_device_that_no_spark_has_is_named(devices: str, shown: str) -> None:
    name = shown.lstrip("^=")
    assert reasons(NCCL_IB_HCA=devices) == [f"NCCL_IB_HCA={shown}: no device of a Spark is called {name}"]


@pytest.mark.parametrize("devices", ["rocep1s0f0,roceP2p1s0f0", "=rocep1s0f0:1", "xmlx5_0"])
def test_devices_that_a_spark_may_have_are_good(devices: str) -> None:
    assert reasons(NCCL_IB_HCA=devices) == []


@pytest.mark.parametrize(("gpus", "visible"), [(1, "0"), (2, "0,1"), (2, "2,5")])
def test_an_engine_may_see_as_many_gpus_as_the_recipe_has(gpus: int, visible: str) -> None:
    assert judge(replace(LAUNCH, env={"CUDA_VISIBLE_DEVICES": visible}, gpus=gpus)) == []


@pytest.mark.parametrize(
    ("gpus", "visible", "why"),
    [
        (1, "1", "a Spark has one GPU, 0"),
        (1, "0,1", "a Spark has one GPU, 0"),
        (2, "0", "nodes.gpus of the recipe is 2"),
        (2, "0,1,2", "nodes.gpus of the recipe is 2"),
    ],
)
def test_another_number_of_visible_gpus_is_named(gpus: int, visible: str, why: str) -> None:
    (issue,) = rules.find_issues(replace(LAUNCH, env={"CUDA_VISIBLE_DEVICES": visible}, gpus=gpus))
    assert issue.reason == f"CUDA_VISIBLE_DEVICES={visible}: {why}"


REMOVED = replace(LAUNCH, env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"})
IMAGE = replace(SHIPPED, image="i:1")


def test_a_variable_that_vllm_has_no_more_warns_and_may_be_an_older_images() -> None:
    (issue,) = rules.find_issues(REMOVED)
    assert f"{SHIPPED.version}: since 0.15" in issue.reason
    assert rules.is_doubtful(REMOVED)


def test_a_removed_variable_does_not_block_by_the_images_own_table_either() -> None:
    assert judge(replace(REMOVED, vllm=IMAGE)) == ["variable-removed warns"]


def test_an_image_whose_variables_are_not_known_is_not_judged_by_those_of_others() -> None:
    assert judge(replace(REMOVED, vllm=replace(IMAGE, variables=()))) == []


def test_a_variable_that_another_vllm_has_is_no_misprint() -> None:
    later = replace(IMAGE, variables=("VLLM_DP_SIZES",))
    assert judge(replace(LAUNCH, env={"VLLM_DP_SIZE": "1"}, vllm=later)) == []


def test_forked_workers_warn_where_a_gpu_is_used() -> None:
    forking = replace(LAUNCH, env={"VLLM_WORKER_MULTIPROC_METHOD": "fork"})
    assert judge(forking) == ["fork warns"]
    assert judge(replace(forking, gpu=False)) == []
    assert judge(replace(LAUNCH, env={"VLLM_WORKER_MULTIPROC_METHOD": "spawn"})) == []


MOVING = replace(LAUNCH, env={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"})


@pytest.mark.parametrize(
    ("connector", "beside"),
    [
        ({"kv-offloading-size": "8"}, ["pointless warns"]),
        ({"kv-transfer-config": '{"kv_connector":"NixlConnector"}'}, []),
    ],
)
def test_a_kv_connector_blocks_beside_expandable_segments(connector: dict[str, str | None], beside: list[str]) -> None:
    assert judge(with_flags(MOVING, connector)) == ["connector-memory blocks", *beside]
    assert judge(with_flags(LAUNCH, connector)) == beside
    unmoved = with_flags(MOVING, {**connector, "enable-cumem-allocator": None})
    assert judge(unmoved) == beside, "they do not move there"


def test_expandable_segments_are_good_without_a_connector() -> None:
    assert judge(MOVING) == []
    assert judge(with_flags(MOVING, {"kv-transfer-config": '{"kv_role":"kv_both"}'})) == []
