"""`sparkd recipe check` sees what a plan would: planted mistakes of nodes, ports, placeholders and files."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from sparkd.tools.cli import main

TP, PP, DP, CP = (f"{name}-parallel-size" for name in ("tensor", "pipeline", "data", "prefill-context"))
Table = Mapping[str, object]
LONG_PATH: Table = {"path": "m" * 4000}
LONG = "{model.path}" * 24
"""96,192 characters, once LONG_PATH fills it."""


class Checker:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._file, self._capsys = folder / "x.yaml", capsys

    def check(self, args: Table, *options: str, **keys: object) -> tuple[int, str]:
        """Exit code, and the output about a recipe that is good except for these keys."""
        table = {"schema": 1, "name": "x", "model": {"path": "m"}, "image": {"ref": "i"}, **keys}
        self._file.write_text(json.dumps({**table, "args": {"gpu-memory-utilization": 0.9, **args}}, indent=1))
        code = main.main(["recipe", "check", str(self._file), *options])
        captured = self._capsys.readouterr()
        return code, captured.out + captured.err


@pytest.fixture
def checker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checker:
    return Checker(tmp_path, capsys)


@pytest.mark.parametrize(
    ("args", "nodes"),
    [
        ({}, {}),
        ({}, {"min": 1, "max": 1}),
        ({TP: 2}, {}),
        ({TP: 2}, {"min": 2, "max": 2}),
        ({TP: 2, PP: 2}, {"min": 4}),
        ({DP: 2}, {"min": 2, "max": 2}),
        ({DP: 4, "data-parallel-rank": 1}, {"max": 1}),
        ({TP: "{cluster.size}"}, {"min": 1, "max": 4}),
        ({TP: "{cluster.size}", "port": 9000}, {"min": 1, "max": 64}),
        ({CP: 2}, {"min": 2, "max": 2}),
        ({TP: 2}, {"max": 1, "gpus": 2}),
        ({TP: 2, PP: "{cluster.size}"}, {"min": 1, "max": 2, "gpus": 2}),
    ],
)
def test_a_recipe_that_some_nodes_can_serve_is_good(checker: Checker, args: Table, nodes: Table) -> None:
    code, output = checker.check(args, nodes=nodes)
    assert "x is good (" in output
    assert code == 0


@pytest.mark.parametrize(("gpus", "right"), [(1, False), (2, True)])
def test_the_gpus_of_a_node_are_those_of_the_recipe(checker: Checker, gpus: int, right: bool) -> None:
    env = {"CUDA_VISIBLE_DEVICES": "0,1", "MAX_JOBS": "4"}
    _, output = checker.check({TP: gpus}, nodes={"max": 1, "gpus": gpus}, env=env, expect={"weights_gb": 40})
    assert ("CUDA_VISIBLE_DEVICES" not in output) is right
    assert ("on a cold cache 8 compilers at once" in output) is right, "each rank has four"


@pytest.mark.parametrize(("jobs", "fits"), [("1", True), ("2", False), ("22", False), (None, False)])
def test_compilers_beside_the_weights_are_counted(checker: Checker, jobs: str | None, fits: bool) -> None:
    code, output = checker.check({}, env={"MAX_JOBS": jobs}, expect={"weights_gb": 85})
    assert code == 0
    assert ("compilers at once (MAX_JOBS) take" not in output) is fits, output


@pytest.mark.parametrize(
    ("args", "nodes", "expected"),
    [
        ({TP: 2}, {"min": 1, "max": 1}, "makes 2 rank(s)"),
        ({TP: 2}, {"min": 3, "max": 4}, "the nodes are 4"),
        ({TP: 4}, {"min": 2, "max": 2}, "makes 4 rank(s)"),
        ({TP: "4"}, {"min": 2, "max": 2}, "makes 4 rank(s)"),
        ({PP: 2}, {"min": 1, "max": 1}, "makes 2 rank(s)"),
        ({PP: 3}, {"min": 2, "max": 2}, "makes 3 rank(s)"),
        ({TP: 2, PP: 2}, {"min": 2, "max": 2}, "makes 4 rank(s)"),
        ({TP: 2, PP: 2}, {"min": 2, "max": 3}, "or name 4 node(s) in cluster.nodes, as nodes.min and nodes.max must"),
        ({}, {"min": 2, "max": 2}, "makes 1 rank(s)"),
        ({}, {"min": 2}, f"set args.{TP} x args.{PP} to "),
        ({TP: 16}, {}, "makes 16 rank(s)"),
        ({TP: 9}, {"min": 9, "max": 9}, "names at most 8"),
        ({CP: 2}, {"min": 1, "max": 1}, "makes 2 rank(s)"),
        ({DP: 2}, {"min": 1, "max": 1}, f"args.{DP} 2 makes 2 rank(s)"),
        ({TP: 1, DP: 2}, {"min": 1, "max": 1}, f"(set args.{DP} to 1, or name 2 node(s)"),
        ({DP: 3}, {"min": 2, "max": 2}, "makes 3 rank(s)"),
        ({TP: 2, DP: 2}, {"min": 2, "max": 2}, f"args.{TP} 2 x args.{DP} 2 makes 4 rank(s)"),
        ({TP: 2, PP: 2, DP: 2}, {"min": 4, "max": 4}, "makes 8 rank(s)"),
        ({TP: "{cluster.size}", DP: 2}, {"min": 1, "max": 8}, "makes 16 rank(s)"),
        ({TP: 2}, {"max": 1}, "where a node has several GPUs, nodes.gpus says how many"),
        ({TP: 2}, {"min": 2, "max": 2, "gpus": 2}, f"2 node(s) have 2 GPUs each (nodes.gpus) (set args.{TP} to 4, or"),
        ({DP: 0}, {}, f"args.{DP} is 0: a number from 1"),
        ({DP: "two"}, {}, f"args.{DP} is 'two': a number from 1"),
        ({TP: 0}, {}, f"args.{TP} is 0: a number from 1"),
        ({TP: 2}, {"min": 1, "max": 2}, "nodes.min is 1, and the recipe fits 2 node(s) only"),
        ({TP: 4}, {"min": 2, "max": 4}, "nodes.min is 2, and the recipe fits 4 node(s) only"),
    ],
)
def test_sizes_that_the_nodes_cannot_hold_are_found(checker: Checker, args: Table, nodes: Table, expected: str) -> None:
    code, output = checker.check(args, nodes=nodes)
    assert expected in output
    assert "x.yaml: " in output
    assert code == (0 if "only" in expected else 78)


@pytest.mark.parametrize(
    ("args", "env", "expected"),
    [
        ({"port": 29501}, {}, "args.port is 29501, the port of cluster.master_port"),
        ({"port": 29510}, {}, "args.port is 29510, the port of cluster.report_port"),
        ({"port": "29510"}, {}, "args.port is 29510, the port of cluster.report_port"),
        ({"port": 29511}, {}, "args.port is 29511, the port of observe.listen"),
        ({"port": 0}, {}, "args.port is 0"),
        ({"port": 65536}, {}, "args.port is 65536"),
        ({"port": -1}, {}, "args.port is -1"),
        ({"port": "http"}, {}, "args.port is 'http'"),
        ({"port": True}, {}, "args.port is True"),
        ({"port": "{node.rank}"}, {}, "args.port is '0'"),
        ({"some-port": 8000}, {}, "args.some-port is 8000, the port of args.port"),
        ({"port": 9000, "some-port": "9000"}, {}, "args.some-port is 9000, the port of args.port"),
        ({"some-port": 29501}, {}, "the port of cluster.master_port"),
        ({"one-port": 7000, "other-port": 7000}, {}, "the port of args.one-port"),
        ({DP: 2, "data-parallel-rpc-port": 29501}, {}, "the port of cluster.master_port"),
        ({DP: 2, "data-parallel-rpc-port": 8000}, {}, "the port of args.port"),
        ({"kv-transfer-config": {"kv_port": 8000}}, {}, "kv-transfer-config.kv_port is 8000, the port of args.port"),
        ({"kv-transfer-config": '{"kv_port": 29510}'}, {}, "the port of cluster.report_port"),
        ({"kv-transfer-config.kv_port": 8000}, {}, "the port of args.port"),
        ({}, {"VLLM_NIXL_SIDE_CHANNEL_PORT": "8000"}, "env.VLLM_NIXL_SIDE_CHANNEL_PORT is 8000, the port of args.port"),
        ({}, {"VLLM_DP_MASTER_PORT": 29501}, "the port of cluster.master_port"),
    ],
)
def test_ports_that_two_would_take_are_found(checker: Checker, args: Table, env: Table, expected: str) -> None:
    code, output = checker.check(args, env=env, flags={"extra": ["some-port", "one-port", "other-port"]})
    assert expected in output
    assert code == 78


def test_ports_that_nothing_listens_on_are_none(checker: Checker) -> None:
    args = {"port": 8001, "data-parallel-rpc-port": 29501, "kv-transfer-config": {"kv_port": 14579}}
    assert checker.check(args, env={"VLLM_PORT": "8001", "MASTER_PORT": "29501"})[0] == 0


@pytest.mark.parametrize(
    ("keys", "expected", "code"),
    [
        ({"env": {"A": "{node.adress}"}}, "no placeholder {node.adress}; did you mean node.address?", 78),
        ({"env": {"A": "{node.x}"}}, "there is no placeholder {node.x}", 78),
        ({"env": {"A": "{head.port}"}}, "there is no placeholder {head.port}", 78),
        ({"env": {"A": "{cluster.nodes}"}}, "there is no placeholder {cluster.nodes}", 78),
        ({"env": {"A": "{model.name}"}}, "there is no placeholder {model.name}", 78),
        ({"env": {"A": "{node.}"}}, "there is no placeholder {node.}", 78),
        ({"args": {"seed": "{node.number}"}}, "there is no placeholder {node.number}", 78),
        ({"args": {"seed": "{model.path}" * 8000}, "model": LONG_PATH}, "once it is filled in", 78),
        ({"args": {"hf-overrides": {"a": LONG, "b": [LONG]}}, "model": LONG_PATH}, "once it is filled in", 78),
        ({"args": {"lora-modules": [LONG] * 21}, "model": LONG_PATH}, "args.lora-modules: with it, all", 78),
        ({"args": {"lora-modules": [LONG] * 20}, "env": {"A": LONG}, "model": LONG_PATH}, "env.A: with it, all", 78),
        ({"args": {"hf-overrides": {"a": ["{node.x}"]}}}, "there is no placeholder {node.x}", 78),
        ({"env": {"A": "a$b pa$$word $ORIGIN/lib:${LIB} ^[a-z]{b}$ {port} $$HOME"}}, "x is good (", 0),
        ({"args": {"tokenizer": "{nodes.x}"}}, "--tokenizer is given {nodes.x} as it stands", 0),
        ({"args": {"tokenizer": "x-{interface}-y"}}, "--tokenizer is given {interface} as it stands", 0),
        ({"env": {"A": "$HOME/x"}}, "A is given $HOME as it stands", 0),
        ({"env": {"A": "/x:${LD_LIBRARY_PATH}"}}, "A is given ${LD_LIBRARY_PATH} as it stands", 0),
        ({"args": {"tokenizer": "{model}"}}, "--tokenizer is given {model} as it stands", 0),
        ({"args": {"tokenizer": "${MODEL}"}}, "--tokenizer is given ${MODEL} as it stands", 0),
        ({"args": {"hf-overrides": {"a": "{b}"}}}, "--hf-overrides is given {b} as it stands", 0),
        ({"model": {"path": "{model}"}}, "model.path is given {model} as it stands", 0),
        ({"model": {"path": "m", "served_name": "{name}"}}, "model.served_name is given {name} as it stands", 0),
        ({"container": {"volumes": ["/etc/$USER:/x:ro"]}}, "container.volumes is given $USER as it stands", 0),
        ({"container": {"volumes": ["/etc:/x/{node.rank}:ro"]}}, "container.volumes is given {node.rank} as it", 0),
        ({"model": {"path": "m", "aliases": ["{name}"]}}, "model.aliases is given {name} as it stands", 0),
        ({"secrets": {"A": "/etc/{name}"}}, "secrets.A is given {name} as it stands", 0),
        ({"caches": {"vllm": "/x/{name}"}}, "caches.vllm is given {name} as it stands", 0),
    ],
)  # fmt: skip
def test_placeholders_that_nothing_fills_are_found(checker: Checker, keys: Table, expected: str, code: int) -> None:
    status, output = checker.check(**{"args": {}, **keys})  # type: ignore[arg-type]  # args is a table
    assert expected in output
    assert status == code


@pytest.mark.parametrize(
    "args",
    [
        {"chat-template": "{% for m in messages %}{{ m }}{content}{% endfor %}"},
        {"hf-overrides": {"a": {"b": 1}}},
        {"compilation-config": {"cudagraph_mode": "NONE"}},
        {"generation-config": "costs 5$ {1}"},
    ],
)
def test_braces_that_are_no_placeholder_are_good(checker: Checker, args: Table) -> None:
    assert "x is good (" in checker.check(args)[1]


def test_what_a_cache_or_volume_keeps_is_not_fetched_at_each_start(checker: Checker) -> None:
    hub = "/root/.cache/huggingface"
    mounts: tuple[Table, ...] = ({}, {"caches": {"hub": hub}}, {"container": {"volumes": [f"/srv/hub:{hub}:ro"]}})
    outputs = [checker.check({"tokenizer": "org/m"}, **keys)[1] for keys in mounts]
    assert ["--tokenizer names org/m" in output for output in outputs] == [True, False, False]


def test_files_that_are_nowhere_are_found_once(checker: Checker, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/good.jinja").touch()
    volumes = [f"{tmp_path}/there:/t:ro", f"{tmp_path}/gone:/g:ro", f"{tmp_path}/there:/t/deeper:ro"]
    for flag in ("chat-template", "tool-parser-plugin", "reasoning-parser-plugin"):
        for path, missing in (
            ("/t/good.jinja", ""),
            ("/t/deeper/good.jinja", ""),
            ("/t/x/../good.jinja", ""),
            ("/models/m/of-the-model.jinja", ""),
            ("/in/the/image.jinja", ""),
            ("/g/x.jinja", ""),
            ("/t/bad.jinja", "there/bad.jinja"),
            ("/t/deeper/good.jinj", "there/good.jinj"),
            ("/t/x/../bad", "there/bad"),
        ):
            code, output = checker.check({flag: path}, container={"volumes": volumes})
            lines = [line for line in output.splitlines() if "does not exist on this machine" in line]
            assert (code, len(lines)) == (0, 2 if missing else 1), output
            assert f"{tmp_path}/gone does not exist on this machine: the source of the container's /g" in lines[0]
            assert not missing or f"{tmp_path}/{missing} does not exist on this machine: --{flag}" in lines[1]


def test_other_files_that_are_nowhere_are_found(checker: Checker, tmp_path: Path) -> None:
    devices = {"devices": ["/dev/infiniband", f"{tmp_path}/dev"]}
    code, output = checker.check({}, secrets={"A": f"{tmp_path}/none"}, container=devices)
    assert code == 0
    assert output.count("on this machine") == 2, "RDMA devices may come later"
    assert "/none does not exist on this machine: secret A" in output
    for flag, path, warned in (
        ("chat-template", "relative.jinja", True),
        ("tool-parser-plugin", "/workspace/mods/m/x.py", True),
        ("tool-parser-plugin", "/workspace/x.py", False),
        ("chat-template", "{{ messages }}", False),
    ):
        assert (f"{path} is in no mount on this machine: --{flag}" in checker.check({flag: path})[1]) is warned
        built = {"ref": "i", "build": "docker build -t i ."}
        assert "in no mount" not in checker.check({flag: path}, image=built)[1]


def test_contradictions_of_other_keys_are_found(checker: Checker) -> None:
    twice = checker.check({}, env={"A": "b"}, secrets={"A": "/etc/x"})[1]
    assert "A is given both under env and under secrets" in twice
    assert "args.host is '[::]'" in checker.check({"host": "[::]"})[1]
    assert "mounted twice" in checker.check({}, model={"path": "/m"}, container={"volumes": ["/m:/m:ro"]})[1]
    assert "gives no name to serve it as" in checker.check({}, model={"path": "/-m"})[1]


def test_a_recipe_is_held_against_a_folder_of_a_model(checker: Checker, tmp_path: Path) -> None:
    folder, lengths = tmp_path / "some-model", {"max-model-len": 100_000, "quantization": "awq", TP: 3}
    folder.mkdir()
    own = {"num_attention_heads": 40, "max_position_embeddings": 4096, "quantization_config": {"quant_method": "fp8"}}
    (folder / "config.json").write_text(json.dumps(own))
    assert checker.check(lengths, nodes={"min": 3})[0] == 0
    code, output = checker.check(lengths, "--model", str(folder), nodes={"min": 3})
    assert code == 78
    for line in (
        "x.yaml: line 15: --max-model-len 100000, and the model's config.json allows 4096 (lower max-model-len)",
        "x.yaml: line 16: --quantization awq, and the model's config.json says fp8 (take quantization out",
        "x.yaml: line 17: --tensor-parallel-size 3, and the model has 40 attention heads: 1, 2, 4, 5, 8, 10 would fit",
    ):
        assert line in output, output
    # Without the option the recipe's own model counts, if it is here.
    assert checker.check(lengths, nodes={"min": 3}, model={"path": str(folder)})[1].count("config.json") == 2
    code, output = checker.check({}, "--model", str(tmp_path))
    assert f"{tmp_path}/config.json: --model needs" in output
    assert code == 78


def test_the_weights_in_a_folder_of_a_model_are_added_up(checker: Checker, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    end = 200 << 30
    header = json.dumps({"layers.0.w": {"dtype": "U8", "shape": [end], "data_offsets": [0, end]}}).encode()
    with (tmp_path / "model.safetensors").open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + end)
    assert checker.check({})[0] == 0
    code, output = checker.check({}, "--model", str(tmp_path))
    assert "weights of 200.0 GiB on each node are" in output
    assert code == 78
