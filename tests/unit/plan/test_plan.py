"""Recipe, settings and node make a plan: pure, the same digest on every rank, a clear error where they do not fit."""

import pytest
from msgspec.structs import replace
from tests.unit.plans import ALONE, HEAD, WORKER, configured, plan, shipped

from sparkd.base.config import Settings
from sparkd.base.lib.errors import AwaitedError, ConfigError
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import Node, Secret
from sparkd.base.recipes.schema import Volume
from sparkd.base.vllm.args import JsonValue, command_line
from sparkd.base.vllm.command import parse_command


def volume(source: str, target: str) -> Volume:
    return Volume.model_construct(source=source, target=target, read_only=True)


def test_a_plan_has_what_its_recipe_says_of_the_container() -> None:
    made = make_plan(shipped("tiny-cpu"), Settings(), ALONE)
    assert made.image == "sparkd-test/vllm-cpu:0.32.0"
    assert made.model_path == "/srv/models/tiny"
    assert made.served_name == "tiny"
    assert made.memory_bytes == 3758096384
    assert made.gpu_memory_utilization is None
    assert made.container.gpus == "none"
    assert made.container.ipc == "host"
    assert made.container.init


def test_a_model_may_have_further_names() -> None:
    made = plan(model={"path": "m", "served_name": "o", "aliases": ["p", "q/r"]}, args={"seed": 1})
    assert made.argv == ("vllm", "serve", "/models/m", "--served-model-name", "o", "p", "q/r", "--seed", "1")
    assert made.served_name == "o"


def test_vllms_module_gets_its_model_by_a_flag_as_it_ignores_a_bare_word() -> None:
    module = ("python3", "-m", "vllm.entrypoints.openai.api_server")
    for entrypoint in (module, (*module, "--model")):
        made = plan(image={"ref": "i:1", "entrypoint": [*entrypoint]}, args={"seed": 1})
        assert made.argv[:5] == (*module, "--model", plan().argv[2])
        assert [flag.name for flag in parse_command(made.argv)] == ["model", "served-model-name", "seed"]
    script = ("bash", "-c", f'exec {" ".join(module)} "$@"', "x")
    assert plan(image={"ref": "i:1", "entrypoint": [*script]}).argv[:5] == (*script, "--model")


@pytest.mark.parametrize(("node", "role"), [(ALONE, "head"), (HEAD, "head"), (WORKER, "worker")])
def test_the_first_node_is_the_head(node: Node, role: str) -> None:
    assert plan(node).role == role


@pytest.mark.parametrize(("value", "share"), [("0.90", 0.9), (1, 1.0)])
def test_a_share_of_the_memory_is_a_number_up_to_the_whole(value: JsonValue, share: float) -> None:
    assert plan(args={"gpu-memory-utilization": value}).gpu_memory_utilization == share


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, []),
        (True, ["--f"]),
        (False, ["--no-f"]),
        ("", ["--f", ""]),
        ("a b", ["--f", "a b"]),
        ("-x", ["--f=-x"]),
        (-1, ["--f=-1"]),
        (0.5, ["--f", "0.5"]),
        ([1, "b", "0.90"], ["--f", "1", "b", "0.90"]),
        ({"b": [1, None, True], "a": {"c": "é\n"}}, ["--f", '{"b":[1,null,true],"a":{"c":"é\\n"}}']),
        ({}, ["--f", "{}"]),
    ],
)
def test_a_flag_is_written_as_the_recipe_says(value: JsonValue, words: list[str]) -> None:
    assert command_line({"f": value}) == words


def test_settings_override_the_recipe_entry_by_entry() -> None:
    made = plan(
        ALONE,
        configured(
            engine={
                "image": "other:2",
                "models_dir": "/data",
                "args": {"max_model_len": 2, "new": "n"},
                "env": {"A": "2", "VLLM_ENGINE_READY_TIMEOUT_S": "7"},
                "secrets": {"VLLM_API_KEY": "/etc/k"},
            },
            readiness={"timeout_seconds": 60},
        ),
        args={"max-model-len": 1, "seed": 3},
        env={"A": "1", "B": "1"},
        secrets={"VLLM_API_KEY": "/etc/other", "HF_TOKEN": "/etc/t"},
    )
    assert made.image == "other:2"
    assert made.argv[-6:] == ("--max-model-len", "2", "--seed", "3", "--new", "n")
    assert {"VLLM_ENGINE_READY_TIMEOUT_S": "7", "A": "2", "B": "1"}.items() <= dict(made.env).items()
    assert made.secrets == (Secret("HF_TOKEN", "/etc/t"), Secret("VLLM_API_KEY", "/etc/k"))
    assert made.container.volumes[0] == volume("/data", "/models")


def test_an_absolute_model_is_mounted_where_it_is() -> None:
    made = plan(model={"path": "/data/hub/m"})
    assert made.container.volumes == (volume("/data/hub/m", "/data/hub/m"),)
    assert made.model_path == made.argv[2] == "/data/hub/m"
    assert made.served_name == "m"


def test_placeholders_are_filled_and_other_braces_stay() -> None:
    made = plan(
        HEAD,
        args={
            "a": "{node.rank}/{cluster.size} at {head.address}:{port} {{node.rank}} {x.y}",
            "b": {"k": ["{model.path}"], "{node.rank}": 1},
            "c": '{"m":"{node.address}"}',
        },
        env={"H": "{node.hcas}"},
    )
    text = dict(zip(made.argv, made.argv[1:], strict=False))
    assert text["--a"] == "0/2 at 10.0.0.1:{port} {0} {x.y}"
    assert text["--b"] == '{"k":["/models/m"],"{node.rank}":1}'
    assert text["--c"] == '{"m":"10.0.0.1"}'
    assert dict(made.env)["H"] == "rocep1s0f0,roceP2p1s0f0"


def test_a_flag_that_names_missing_devices_waits_for_them() -> None:
    with pytest.raises(AwaitedError, match=r"args.a: \{node.hcas\} is not known"):
        plan(replace(HEAD, hcas=()), args={"a": "{node.hcas}", "tensor-parallel-size": 2})


@pytest.mark.parametrize(
    ("keys", "node", "needles"),
    [
        ({"env": {"A": "{node.adress}"}}, ALONE, ["env.A", "{node.adress}", "did you mean node.address?"]),
        ({"args": {"a": {"b": ["{node.}"]}}}, ALONE, ["args.a", "{node.}"]),
        ({"env": {"A": "{node.interface}"}}, ALONE, ["env.A", "not known on this node", "set fabric.interface"]),
        ({"args": {"a": "{node.hcas}"}}, ALONE, ["args.a", "set fabric.hcas"]),
        ({"nodes": {"min": 2, "max": 2}}, ALONE, ["needs 2 node(s)", "names 1", "(choose another engine.recipe"]),
        ({"nodes": {"max": 1}}, HEAD, ["needs 1 node(s)", "names 2"]),
        ({"nodes": {"min": 3}}, HEAD, ["needs 3 to 64 node(s)"]),
        ({"args": {"tensor-parallel-size": None}}, HEAD, ["no args.tensor-parallel-size makes 1", "the nodes are 2"]),
        ({"args": {"tensor-parallel-size": 4}}, HEAD, ["makes 4 rank", "(set args.tensor", "name 4 node"]),
        ({"args": {"pipeline-parallel-size": "2"}}, HEAD, ["pipeline-parallel-size 2 makes 4 rank"]),
        ({"args": {"tensor-parallel-size": 2}}, ALONE, ["makes 2 rank", "the nodes are 1"]),
        ({"args": {"tensor-parallel-size": "all"}}, HEAD, ["tensor-parallel-size is 'all'"]),
        ({"args": {"tensor-parallel-size": 0}}, ALONE, ["a number from 1"]),
        ({"args": {"tensor-parallel-size": True}}, ALONE, ["a number from 1"]),
        ({"args": {"port": "http"}}, ALONE, ["args.port is 'http'", "1 to 65535"]),
        ({"args": {"port": 0}}, ALONE, ["args.port is 0"]),
        ({"args": {"port": 29511}}, ALONE, ["the port of observe.listen"]),
        ({"args": {"port": 29501}}, ALONE, ["the port of cluster.master_port"]),
        ({"args": {"host": 1}}, ALONE, ["args.host is 1"]),
        ({"args": {"host": "[::1]"}}, ALONE, ["args.host is '[::1]'", "without brackets: ::1"]),
        ({"args": {"host": "[x y]"}}, ALONE, ["args.host is '[x y]'", "such as 0.0.0.0"]),
        ({"args": {"host": "a/b"}}, ALONE, ["args.host is 'a/b'"]),
        ({"args": {"host": "h:80"}}, ALONE, ["args.host is 'h:80'"]),
        ({"args": {"host": "h\n"}}, ALONE, ["args.host is"]),
        ({"model": {"path": "a/-m"}}, ALONE, ["'-m'", "set model.served_name"]),
        ({"args": {"gpu-memory-utilization": "high"}}, ALONE, ["gpu-memory-utilization is 'high'"]),
        ({"args": {"gpu-memory-utilization": 1.2}}, ALONE, ["at most 1"]),
        ({"args": {"gpu-memory-utilization": True}}, ALONE, ["at most 1"]),
        ({"env": {"A": "1"}, "secrets": {"A": "/a"}}, ALONE, ["A is given both under env and under secrets"]),
        ({"model": {"path": "/m"}, "caches": {"c": "/m"}}, ALONE, ["/m is mounted twice"]),
    ],
)
def test_a_contradiction_is_reported(keys: dict[str, object], node: Node, needles: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(node, **keys)
    for needle in needles:
        assert needle in str(caught.value)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        (None, "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "::1"),
        ("spark-1.lan", "spark-1.lan"),
        ("localhost", "127.0.0.1"),
        ("{node.address}", "127.0.0.1"),
    ],
)
def test_the_engine_is_reached_on_an_address_of_the_node(host: str | None, address: str) -> None:
    assert plan(args={"host": host}).api_host == address


def test_a_port_that_is_left_out_is_vllms_own() -> None:
    made = plan(args={"port": None})
    assert made.api_port == 8000
    assert "--port" not in made.argv


def test_a_node_alone_gets_no_flag_of_clusters() -> None:
    assert not {"--nnodes", "--node-rank", "--headless", "--distributed-executor-backend"} & set(plan().argv)


def test_a_worker_gets_no_number_of_api_servers_which_vllm_refuses_beside_headless() -> None:
    head, worker = (plan(node, args={"tensor-parallel-size": 2, "api-server-count": 2}) for node in (HEAD, WORKER))
    assert "--api-server-count" in head.argv
    assert "--headless" in worker.argv
    assert "--api-server-count" not in worker.argv
    assert head.digest == worker.digest


def test_a_user_script_gets_the_command_as_its_arguments() -> None:
    made = plan(ALONE, configured(engine={"script": "/etc/sparkd/run.sh"}), args={"seed": 1})
    assert made.user_script == "/etc/sparkd/run.sh"
    assert made.argv[:2] == ("bash", "/run/sparkd-user-script")
    assert made.argv[2:] == plan(args={"seed": 1}).argv
    assert plan().user_script == ""


SHARED: list[dict[str, object]] = [
    {"args": {"seed": 1}},
    {"env": {"A": "1"}},
    {"secrets": {"A": "/a"}},
    {"image": {"ref": "i:2"}},
    {"image": {"ref": "i:1", "entrypoint": ["sh"]}},
    {"image": {"ref": "i:1", "assert": ["true"]}},
    {"image": {"ref": "i:1", "assert": [{"file": "/a", "pattern": "b"}]}},
    {"model": {"path": "n"}},
    {"model": {"path": "m", "served_name": "o"}},
    {"model": {"path": "m", "aliases": ["o"]}},
    {"container": {"privileged": True}},
    {"container": {"volumes": ["/a:/b:ro"]}},
    {"container": {"ulimits": {"memlock": 1 << 34}}},
    {"caches": {"c": "/c"}},
    {"name": "y"},
]


@pytest.mark.parametrize("keys", SHARED, ids=str)
def test_the_digest_changes_with_each_shared_value(keys: dict[str, object]) -> None:
    assert plan(HEAD, **keys).digest != plan(HEAD).digest


def test_kernel_settings_and_the_release_of_vllm_are_not_in_the_digest() -> None:
    changed = plan(host={"sysctls": {"vm.swappiness": 10}}, image={"ref": "i:1", "vllm": "0.29"})
    assert (changed.sysctls, changed.vllm) == ((("vm.swappiness", "10"),), "0.29")
    assert changed.digest == plan().digest


def test_the_digest_has_nothing_of_one_node() -> None:
    changed = configured(engine={"models_dir": "/elsewhere"}, memory={"floor_mib": 1})
    assert plan(HEAD, changed).digest == plan(HEAD).digest
    assert plan(WORKER, env={"A": "{node.address}"}).digest == plan(HEAD, env={"A": "{node.address}"}).digest
    assert plan(HEAD, secrets={"A": "/a"}).digest == plan(HEAD, secrets={"A": "/b"}).digest


def test_the_digest_is_the_same_by_meaning() -> None:
    written, turned = {"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"d": 2, "c": 1}, "a": 1}
    assert plan(HEAD, args=written).digest == plan(HEAD, args=turned).digest
    assert plan(HEAD, args={"a": None}).digest == plan(HEAD).digest


@pytest.mark.parametrize(
    "sections",
    [
        {"supervise": {"peer_timeout_seconds": 21}},
        {"cluster": {"allow_image_difference": True}},
        {"cluster": {"nodes": ["10.0.0.1"]}},
    ],
    ids=str,
)
def test_the_digest_changes_with_settings_by_which_nodes_act_together(sections: dict[str, object]) -> None:
    assert plan(HEAD, configured(**sections)).digest != plan(HEAD).digest


def test_the_digest_changes_with_the_heads_address() -> None:
    assert plan(replace(HEAD, head_address="10.0.0.9")).digest != plan(HEAD).digest


@pytest.mark.parametrize(
    ("node", "keys"),
    [
        (HEAD, {"args": {"tensor-parallel-size": "{cluster.size}"}}),
        (HEAD, {"args": {"tensor-parallel-size": 1, "pipeline-parallel-size": "2"}}),
        (replace(HEAD, cluster_size=8), {"args": {"tensor-parallel-size": 4, "pipeline-parallel-size": 2}}),
        (ALONE, {"args": {"tensor-parallel-size": 1}}),
        (ALONE, {"args": {"tensor-parallel-size": 2}, "container": {"gpus": "none"}}),
    ],
)
def test_one_rank_a_node_is_a_plan_and_several_without_gpus_on_a_node_alone(
    node: Node, keys: dict[str, object]
) -> None:
    assert plan(node, **keys).digest


def test_the_shared_values_are_flat_and_sorted_with_placeholders_unfilled() -> None:
    made = plan(
        WORKER,
        configured(cluster={"nodes": ["10.0.0.1", "10.0.0.2"]}),
        args={"seed": 1, "left-out": None, "c": {"b": 1, "a": [1]}},
        env={"VLLM_HOST_IP": "{node.address}"},
        container={"ulimits": {"memlock": -1}, "volumes": ["/a:/b:ro"]},
        caches={"vllm": "/root/.cache"},
    )
    values = dict(made.shared)
    assert list(made.shared) == sorted(made.shared)
    wanted = {
        "recipe": "x",
        "image": "i:1",
        "entrypoint": '["vllm","serve"]',
        "model": "/models/m",
        "plan_schema": "5",
        "args.seed": "1",
        "args.c": '{"a":[1],"b":1}',
        "args.tensor-parallel-size": "{cluster.size}",
        "env.VLLM_HOST_IP": "{node.address}",
        "container.ulimits.memlock": "-1 to -1",
        "container.mounts": '["/b read-only","/models read-only"]',
        "caches.vllm": "/root/.cache",
        "cluster.nodes": '["10.0.0.1","10.0.0.2"]',
        "cluster.head": "10.0.0.1",
        "supervise.peer_timeout_seconds": "20",
    }
    assert wanted.items() <= values.items()
    assert not {"args.left-out", "assert", "container.shm_bytes"} & values.keys()


def test_no_new_privileges_that_is_not_set_counts_as_false() -> None:
    """As in an earlier version, which knew no null: its nodes and those of this one serve together."""
    assert dict(plan(HEAD).shared)["container.no_new_privileges"] == "false"
