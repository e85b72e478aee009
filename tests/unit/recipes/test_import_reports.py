"""The compose file and scripts of field reports become the recipes that sparkd ships of them, flag for flag."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.plans import shipped
from tests.unit.started_engines import imported

from sparkd.base.config import Settings
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import Node
from sparkd.base.recipes.schema import Recipe


def argv(recipe: Recipe) -> dict[str, object]:
    """The engine's words by flag; JSON by its meaning."""
    node = Node(0, "10.0.0.1", "10.0.0.1", recipe.nodes.min, "fab0")
    flags: dict[str, object] = {}
    flag = "program"
    for word in make_plan(recipe, Settings(), node).argv:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            flag = name
            flags[flag] = value if equals else True
        else:
            more = json.loads(word) if word.startswith("{") else word
            flags[flag] = more if flags.get(flag) in (None, True) else f"{flags[flag]} {more}"
    return flags


FORUM = """\
services:
  vllm:
    image: aidendle94/sparkrun-vllm-ds4-gb10:production-ready
    network_mode: host
    ipc: host
    shm_size: "64gb"
    ulimits: {memlock: -1, stack: 67108864}
    gpus: all
    devices: ["/dev/infiniband:/dev/infiniband"]
    volumes:
      - ${HF_CACHE:-${HOME}/.cache/huggingface}:/cache/huggingface
      - /etc/passwd:/etc/passwd:ro
      - /etc/group:/etc/group:ro
    environment:
      HF_HOME: /cache/huggingface
      HF_HUB_OFFLINE: "1"
      VLLM_CACHE_ROOT: /cache/huggingface/vllm-cache
      NCCL_NET: IB
      NCCL_IB_HCA: "rocep1s0f0,roceP2p1s0f0"
      NODE_RANK: "${NODE_RANK:?0 on the head}"
      HEADLESS: "${HEADLESS:-}"
      MASTER_ADDR: "${MASTER_ADDR:?the head}"
    command:
      - bash
      - -lc
      - >
        exec /usr/local/bin/dsv4-vllm-entrypoint serve deepseek-ai/DeepSeek-V4-Flash
        --served-model-name deepseek-v4-flash --host 0.0.0.0 --port 8000 --trust-remote-code
        --tensor-parallel-size 2 --pipeline-parallel-size 1 --kv-cache-dtype fp8 --block-size 256
        --max-model-len 1000000 --max-num-seqs 6 --max-num-batched-tokens 8192 --gpu-memory-utilization 0.82
        --enable-prefix-caching --speculative-config '{"method":"mtp","num_speculative_tokens":2}'
        --tokenizer-mode deepseek_v4 --distributed-executor-backend mp --tool-call-parser deepseek_v4
        --enable-auto-tool-choice --reasoning-parser deepseek_v4
        --reasoning-config
        '{"reasoning_parser":"deepseek_v4","reasoning_start_str":"<think>","reasoning_end_str":"</think>"}'
        --default-chat-template-kwargs '{"thinking":true,"reasoning_effort":"high"}' --enable-flashinfer-autotune
        --nnodes 2 --node-rank ${NODE_RANK} --master-addr ${MASTER_ADDR} --master-port 25000 ${HEADLESS:+--headless}
"""


def test_the_forums_compose_file_with_both_env_files_is_the_shipped_recipe(tmp_path: Path) -> None:
    for number, headless in enumerate(("", "1")):
        (tmp_path / f"{number}").mkdir()
        text = f"NODE_RANK={number}\nHEADLESS={headless}\nMASTER_ADDR=192.168.0.8   # the head\nHF_CACHE=/srv/hf\n"
        (tmp_path / f"{number}" / ".env").write_text(text)
    result = imported(tmp_path, FORUM, FORUM)
    expected = shipped("deepseek-v4-flash-b12x-1m")
    recipe = result.recipe
    assert argv(recipe) == argv(expected)
    assert recipe.container == expected.container
    assert recipe.model.path == expected.model.path
    assert recipe.model.repo == expected.model.repo
    assert recipe.image.ref == expected.image.ref
    assert recipe.nodes == expected.nodes
    assert recipe.env.items() <= expected.env.items()
    left_out = {"line 11: --volume /srv/hf:/cache/huggingface", "line 19: NCCL_IB_HCA", "line 20: NODE_RANK"}
    assert left_out <= {note.partition(": left out")[0] for note in result.notes}


REPORT_RUN = """\
docker run -d --name vllm_ds4 --gpus all --ipc host --net host --privileged \\
  -v /home/milo/models:/models -v ~/.cache/vllm:/root/.cache/vllm \\
  ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest sleep infinity
"""


REPORT_SCRIPT = """\
#!/bin/bash
export VLLM_HOST_IP=192.168.1.{address}
export NCCL_SOCKET_IFNAME=bond0
export NCCL_IB_DISABLE=0
export OMP_NUM_THREADS=8
vllm serve /models/DeepSeek-V4-Flash \\
  --served-model-name deepseek-v4-flash --host 0.0.0.0 --port 8000 --trust-remote-code \\
  --tensor-parallel-size 2 --pipeline-parallel-size 1 --kv-cache-dtype fp8 --block-size 256 \\
  --enable-prefix-caching --enable-chunked-prefill --max-model-len 200000 --max-num-seqs 4 \\
  --max-num-batched-tokens 16384 --gpu-memory-utilization 0.90 --disable-custom-all-reduce \\
  --compilation-config '{{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}}' \\
  --speculative-config '{{"method":"deepseek_mtp","num_speculative_tokens":2}}' \\
  --tokenizer-mode deepseek_v4 --tool-call-parser deepseek_v4 --enable-auto-tool-choice \\
  --reasoning-parser deepseek_v4 --default-chat-template-kwargs '{{"thinking":true}}' --load-format safetensors \\
  --nnodes 2 --node-rank {rank} --master-addr 10.0.0.1 --master-port 29501 {more}
"""


def test_the_reports_docker_run_and_both_scripts_are_the_shipped_recipe(tmp_path: Path) -> None:
    head = REPORT_SCRIPT.format(address=11, rank=0, more="")
    worker = REPORT_SCRIPT.format(address=12, rank=1, more="--headless > /tmp/vllm.log 2>&1")
    result = imported(tmp_path, REPORT_RUN, head, worker)
    expected = shipped("deepseek-v4-flash-latency")
    # Declared: the report's own folder of the model, and --privileged, for which the shipped one has a device.
    assert result.recipe.model.path == "/home/milo/models/DeepSeek-V4-Flash"
    assert result.recipe.container.privileged
    assert {**argv(result.recipe), "program": ""} == {**argv(expected), "program": ""}
    assert result.recipe.nodes == expected.nodes
    assert result.recipe.image.ref == expected.image.ref
    assert result.recipe.env == {"NCCL_IB_DISABLE": "0", "OMP_NUM_THREADS": "8"}
    assert any("/root/.cache/vllm: left out: sparkd keeps the compile caches itself" in note for note in result.notes)
