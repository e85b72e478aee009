"""A plan for Ray: its scripts run with a `ray` that records its arguments."""

import json
import socket
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.unit.plans import ALONE, configured, plan

from sparkd.base.config import Settings
from sparkd.base.lib.errors import ConfigError
from sparkd.base.plan import script
from sparkd.base.plan.model import LaunchPlan, Node

HEAD = Node(0, "127.0.0.2", "127.0.0.2", 2, "lo", ("rocep1s0f0",))
WORKER = Node(1, "127.0.0.3", "127.0.0.2", 2, "lo", ("rocep1s0f1",))
RECORDER = '#!/bin/sh\n{ printf "%s " "${0##*/}" "$@"; echo; env; echo; } >>"$RECORD"\n'


def ray_plan(node: Node, settings: Settings | None = None, **keys: object) -> LaunchPlan:
    return plan(node, settings, **{"executor": "ray", **keys})


def start_script(
    tmp_path: Path, launch_plan: LaunchPlan, programs: tuple[str, ...] = ("ray", "vllm")
) -> subprocess.Popen[str]:
    """`programs`: those that the image has, each of which records its calls."""
    for name in programs:
        (tmp_path / name).write_text(RECORDER)
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), "RECORD": str(tmp_path / "record")}
    command = ("/bin/bash", "-c", launch_plan.script)
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def read_recorded_calls(tmp_path: Path) -> list[tuple[str, dict[str, str]]]:
    """Command line and environment of each call."""
    blocks = (tmp_path / "record").read_text().split("\n\n")
    calls = [block.splitlines() for block in blocks if block.strip()]
    return [(words.strip(), dict(line.partition("=")[::2] for line in env)) for words, *env in calls]


def test_the_head_starts_ray_and_then_the_engine_on_it(tmp_path: Path) -> None:
    assert start_script(tmp_path, ray_plan(HEAD)).wait(30) == 0
    (ray_command, _), (engine_command, engine_env) = read_recorded_calls(tmp_path)
    assert ray_command.startswith("ray start --head --port=29501 --include-dashboard=false ")
    assert "--node-ip-address=127.0.0.2" in ray_command.split()
    assert engine_command.startswith("vllm serve /models/m ")
    assert engine_command.endswith(" --tensor-parallel-size 2 --distributed-executor-backend ray")
    assert engine_env["RAY_ADDRESS"] == "127.0.0.2:29501"


def test_the_heads_ray_has_the_variables_of_its_node_and_kills_nothing_for_memory(tmp_path: Path) -> None:
    assert start_script(tmp_path, ray_plan(HEAD)).wait(30) == 0
    _, env = read_recorded_calls(tmp_path)[0]
    wanted = {"VLLM_HOST_IP": "127.0.0.2", "NCCL_IB_HCA": "rocep1s0f0", "RAY_memory_monitor_refresh_ms": "0"}
    assert wanted.items() <= env.items()


def test_variables_of_one_node_are_not_copied_to_other_ranks(tmp_path: Path) -> None:
    assert start_script(tmp_path, ray_plan(HEAD)).wait(30) == 0
    variables_of_one_node = json.loads((tmp_path / ".config/vllm/ray_non_carry_over_env_vars.json").read_text())
    names = "GLOO_SOCKET_IFNAME MAX_JOBS NCCL_IB_HCA NCCL_SOCKET_IFNAME TP_SOCKET_IFNAME VLLM_HOST_IP"
    assert variables_of_one_node == names.split(), "vLLM copies all others from the head to all ranks"


def test_a_worker_waits_for_the_heads_ray_and_then_offers_its_gpu(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.2", 0))
        port = server.getsockname()[1]
        worker = start_script(tmp_path, ray_plan(WORKER, configured(cluster={"master_port": port})))
        assert worker.stdout is not None
        assert worker.stdout.readline() == f"waiting for the Ray of 127.0.0.2 port {port}\n"
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(1.5)
        server.listen(4)
        assert worker.wait(30) == 0
    ((ray_command, env),) = read_recorded_calls(tmp_path)
    assert ray_command.startswith(f"ray start --block --address=127.0.0.2:{port} --node-ip-address=127.0.0.3 ")
    assert env["VLLM_HOST_IP"] == "127.0.0.3"
    assert env["NCCL_IB_HCA"] == "rocep1s0f1"
    assert env["RAY_AUTH_MODE"] == "token"
    assert env["RAY_LOG_TO_STDERR"] == "1", "the rank's lines are in its own node's journal"


@pytest.mark.parametrize("node", [HEAD, WORKER])
def test_ray_gets_a_gpu_for_each_rank_of_the_node(node: Node) -> None:
    args = {"tensor-parallel-size": 2, "pipeline-parallel-size": "{cluster.size}"}
    assert "--num-gpus=2" in ray_plan(node, args=args, nodes={"max": 2, "gpus": 2}).script.split()
    assert "--num-gpus=1" in ray_plan(node).script.split()


@pytest.mark.parametrize("node", [HEAD, WORKER])
def test_the_script_of_an_image_without_ray_ends_with_a_reason(tmp_path: Path, node: Node) -> None:
    process = start_script(tmp_path, ray_plan(node), programs=("vllm",))
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 64
    assert output == "the image is not what the recipe needs: executor: ray, and it has no ray\n"
    assert not (tmp_path / "record").exists()


def test_an_address_of_version_6_stands_in_brackets() -> None:
    node = replace(HEAD, address="fd00::1", head_address="fd00::1")
    assert "export RAY_ADDRESS=[fd00::1]:29501" in ray_plan(node).script


def test_a_recipe_overrides_rays_variables() -> None:
    own = {"RAY_DEDUP_LOGS": "1", "VLLM_HOST_IP": "10.1.1.1"}
    env = dict(ray_plan(HEAD, env={**own, "RAY_AUTH_MODE": None}).env)
    assert own.items() <= env.items()
    assert "RAY_AUTH_MODE" not in env


def test_a_node_alone_runs_the_engine_without_ray() -> None:
    alone = ray_plan(ALONE)
    assert alone.script == ray_plan(ALONE, executor="mp").script
    assert not alone.on_ray


def test_a_user_script_is_refused_with_a_hint() -> None:
    settings = configured(engine={"script": "/etc/sparkd/run.sh"})
    with pytest.raises(ConfigError, match=r"engine\.script starts the engine its own way") as caught:
        ray_plan(HEAD, settings)
    assert "executor: mp" in caught.value.hint
    ray_plan(HEAD, settings, executor="mp")


def test_nodes_with_another_executor_do_not_agree() -> None:
    assert dict(ray_plan(HEAD).shared)["executor"] == "ray"
    assert ray_plan(HEAD).digest == ray_plan(WORKER).digest != ray_plan(HEAD, executor="mp").digest


def test_a_token_is_of_one_epoch_and_one_key() -> None:
    key, epoch = b"k" * 32, "a"
    token = script.ray_token(key, epoch)
    assert len(token) == 64
    assert script.ray_token(key, epoch) == token
    assert len({token, script.ray_token(key, "b"), script.ray_token(b"l" * 32, epoch)}) == 3
