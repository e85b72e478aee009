"""What sparkd adds to a plan that says nothing else: on each node by this node's values, under one digest."""

import pytest
from msgspec.structs import replace
from tests.unit.plans import ALONE, HEAD, WORKER, configured, plan, recipe

from sparkd.base.lib.errors import AwaitedError
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import LaunchPlan, Node
from sparkd.base.recipes.schema import Limit, Recipe

OF_THE_NODE = ("VLLM_HOST_IP", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_IB_HCA")
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


def of_the_node(made: LaunchPlan) -> dict[str, str]:
    return {name: text for name, text in made.env if name in OF_THE_NODE}


@pytest.mark.parametrize("executor", ["mp", "ray"])
def test_ranks_meet_on_the_fabric_of_their_own_node(executor: str) -> None:
    head, worker = (plan(node, executor=executor) for node in (HEAD, WORKER))
    assert of_the_node(head) == {
        "VLLM_HOST_IP": "10.0.0.1",
        "NCCL_SOCKET_IFNAME": "=bond0",
        "GLOO_SOCKET_IFNAME": "bond0",
        "TP_SOCKET_IFNAME": "bond0",
        "NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0",
    }
    assert of_the_node(worker) == {
        "VLLM_HOST_IP": "10.0.0.2",
        "NCCL_SOCKET_IFNAME": "=enp1s0f0np0",
        "GLOO_SOCKET_IFNAME": "enp1s0f0np0",
        "TP_SOCKET_IFNAME": "enp1s0f0np0",
        "NCCL_IB_HCA": "rocep1s0f0",
    }
    assert head.digest == worker.digest
    assert dict(head.shared)["env.VLLM_HOST_IP"] == "{node.address}"


def test_nccl_says_why_it_fails_between_nodes() -> None:
    assert dict(plan(HEAD).env)["NCCL_DEBUG"] == "WARN"
    assert dict(plan(HEAD, env={"NCCL_DEBUG": "INFO"}).env)["NCCL_DEBUG"] == "INFO"
    assert "NCCL_DEBUG" not in dict(plan(ALONE).env)


def test_the_nodes_of_a_cluster_have_names_in_the_form_that_torch_looks_up() -> None:
    def hosts(*nodes: str) -> tuple[tuple[str, str], ...]:
        settings = configured(cluster={"nodes": nodes})
        return make_plan(recipe(args={"tensor-parallel-size": 2}), settings, HEAD).hosts

    assert hosts("10.0.0.1", "10.0.0.2") == (("::ffff:10.0.0.1", "sparkd-rank0"), ("::ffff:10.0.0.2", "sparkd-rank1"))
    assert hosts("fd00::1", "fe80::2%x\n::1 evil") == (("fd00::1", "sparkd-rank0"), ("fe80::2", "sparkd-rank1"))
    assert plan(ALONE).hosts == ()


def test_a_node_alone_gets_no_address() -> None:
    assert of_the_node(plan(ALONE)) == {}


def test_ranks_without_a_gpu_get_addresses_and_no_device() -> None:
    without = plan(HEAD, container={"gpus": "none"})
    assert of_the_node(without).keys() == {"VLLM_HOST_IP", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}
    assert not without.names_hcas
    assert ALLOCATOR not in dict(without.env)


def test_without_rdma_no_device_is_named_and_the_digest_is_the_same() -> None:
    bare = plan(replace(HEAD, hcas=()))
    assert "NCCL_IB_HCA" not in dict(bare.env)
    assert "NCCL_IB_DISABLE" not in dict(bare.env), "until the nodes agree, it may still come"
    assert bare.digest == plan(HEAD).digest
    assert bare.names_hcas


@pytest.mark.parametrize("tcp", [{"NCCL_IB_DISABLE": "1"}, {"NCCL_IB_DISABLE": "0x1"}, {"NCCL_NET": "Socket"}])
def test_where_tcp_is_meant_no_device_is_awaited(tcp: dict[str, str]) -> None:
    assert not plan(HEAD, env=tcp).names_hcas


def test_settings_that_name_the_nodes_devices_themselves_leave_the_digest_as_it_is() -> None:
    without_rdma = replace(HEAD, hcas=())
    by_settings = plan(without_rdma, configured(engine={"env": {"NCCL_IB_HCA": "{node.hcas}"}}))
    assert by_settings.digest == plan(without_rdma).digest


def test_an_unknown_interface_is_awaited() -> None:
    with pytest.raises(AwaitedError, match=r"_IFNAME: \{node.interface\} is not known") as caught:
        plan(replace(HEAD, interface=""))
    assert caught.value.hint == "set fabric.interface"


each_variable = pytest.mark.parametrize("name", [*OF_THE_NODE, ALLOCATOR])


@each_variable
def test_what_the_recipe_says_holds_and_null_leaves_it_out(name: str) -> None:
    own = plan(HEAD, env={name: "own"})
    assert dict(own.env)[name] == "own"
    assert own.digest != plan(HEAD).digest
    assert name not in dict(plan(HEAD, env={name: None}).env)


@each_variable
def test_what_the_settings_say_holds(name: str) -> None:
    own = plan(HEAD, configured(engine={"env": {name: "own"}}))
    assert own.digest == plan(HEAD, env={name: "own"}).digest


@each_variable
def test_a_secret_of_the_name_is_the_variable(name: str) -> None:
    secret = plan(HEAD, secrets={name: "/etc/s"})
    assert name not in dict(secret.env)
    assert [known.name for known in secret.secrets] == [name]


@pytest.mark.parametrize("node", [ALONE, HEAD])
def test_the_allocator_grows_its_segments_where_nothing_speaks_against_it(node: Node) -> None:
    assert dict(plan(node).env)[ALLOCATOR] == "expandable_segments:True"
    two = {"args": {"tensor-parallel-size": 2, "pipeline-parallel-size": node.cluster_size}, "nodes": {"gpus": 2}}
    assert ALLOCATOR not in dict(plan(node, **two).env), "ranks of one node share graph buffers"


def test_the_recipes_own_options_of_the_allocator_are_kept_as_they_are() -> None:
    assert ALLOCATOR not in dict(plan(env={"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}).env)


@pytest.mark.parametrize("flag", ["enable-sleep-mode", "enable-cumem-allocator"])
def test_vllms_own_allocator_takes_the_place_of_growing_segments(flag: str) -> None:
    assert ALLOCATOR not in dict(plan(args={flag: True}).env)
    assert ALLOCATOR in dict(plan(args={flag: False}).env)


@pytest.mark.parametrize(
    "args",
    [
        {"kv-transfer-config": {"kv_connector": "NixlConnector"}},
        {"kv-transfer-config.kv_connector": "X"},
        {"kv-offloading-size": 8},
        {"ec-transfer-config": "{}"},
    ],
)
def test_no_segment_grows_beside_a_connector(args: dict[str, object]) -> None:
    """vLLM 0.32 refuses it."""
    assert ALLOCATOR not in dict(plan(args=args).env)


def test_files_have_a_limit_of_their_own_unless_the_recipe_gives_one() -> None:
    def limit(**container: object) -> Limit | None:
        return plan(container=container).container.limits.get("nofile")

    assert limit() == Limit(soft=1048576, hard=1048576)
    assert limit(ulimits={"nofile": 64, "memlock": -1}) == Limit(soft=64, hard=64)
    assert limit(ulimits={"nofile": None}) is None
    assert plan(container={"ulimits": {"nofile": None}}).digest != plan().digest


def test_memory_may_be_locked_without_limit_unless_the_recipe_gives_one() -> None:
    def limit(**container: object) -> Limit | None:
        return plan(container=container).container.limits.get("memlock")

    assert limit() == limit(ulimits={"memlock": -1}) == Limit(soft=-1, hard=-1)
    assert limit(ulimits={"memlock": 64}) == Limit(soft=64, hard=64)
    assert limit(ulimits={"memlock": None}) is None
    assert plan(container={"ulimits": {"memlock": -1}}).digest == plan().digest
    assert plan(container={"ulimits": {"memlock": None}}).digest != plan().digest


def test_a_containers_own_shared_memory_is_large_unless_the_recipe_says_how_large() -> None:
    def size_bytes(**container: object) -> int | None:
        return plan(container=container).container.shm_size_bytes

    assert size_bytes() is None
    assert size_bytes(shm_bytes=1 << 20) == size_bytes(ipc="private", shm_bytes=1 << 20) == 1 << 20
    assert size_bytes(ipc="private") == size_bytes(ipc="shareable") == 32 << 30
    silent, explicit = (plan(container={"ipc": "private", "shm_bytes": size}) for size in (None, 32 << 30))
    assert silent.digest == explicit.digest


def test_a_stored_recipe_keeps_what_it_left_out() -> None:
    off = recipe(env={ALLOCATOR: None}, container={"ulimits": {"nofile": None}})
    again = Recipe.model_validate(off.model_dump(mode="json", by_alias=True))
    assert again == off
    assert again.container.limits == {"memlock": Limit(soft=-1, hard=-1)}


def test_a_launch_by_tcp_gets_no_device_of_rdma_and_has_the_same_digest() -> None:
    keys = {
        "args": {"tensor-parallel-size": 2},
        "container": {"devices": ["/dev/infiniband", "/dev/x"]},
        "env": {"NCCL_IB_DISABLE": "0"},
    }
    by_tcp = make_plan(recipe(**keys), configured(), HEAD, by_tcp=True)
    assert by_tcp.container.devices == ("/dev/x",)
    assert dict(by_tcp.env)["NCCL_IB_DISABLE"] == "1"
    assert "NCCL_IB_HCA" not in dict(by_tcp.env)
    assert by_tcp.digest == plan(HEAD, **keys).digest
