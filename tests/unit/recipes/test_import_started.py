"""What starts vLLM today becomes a recipe: command lines, scripts, compose files, units, containers. Nothing is run."""

from __future__ import annotations

import io
import json
import os
import pwd
import re
import shlex
import time
from pathlib import Path

import pytest
from tests.unit.clock import unstalled
from tests.unit.commands import stdin_of

from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib import recipes_dir
from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.text_file import read_owned_file
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import Node
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.schema import Recipe
from sparkd.base.recipes.yaml import YamlError, parse_as_pyyaml
from sparkd.tools.cli import main
from sparkd.tools.importers.bundle import Place
from sparkd.tools.importers.convert import import_forms
from sparkd.tools.importers.docker_line import read_script
from sparkd.tools.importers.forms import read_container_form, read_form
from sparkd.tools.importers.variables import Variables

IMAGE = "vllm/vllm-openai:v0.32.0"
LINE = f"docker run --gpus all {IMAGE} --model org/m"
RUN = f"docker run {IMAGE} --model org/m --port $P"
COMPOSE = f"services:\n  vllm:\n    image: {IMAGE}\n    command: --model org/m\n"
SNAPSHOT = f"hub/models--a--b/snapshots/{'0' * 40}"
UNIT = "[Unit]\nDescription=x\n[Service]\n"


def imported(
    folder: Path, *texts: str, image: str = "", service: str = "", **overrides: str
) -> tuple[Recipe, list[str], str]:
    """The recipe as it is read back, the notes without the path, and the written text."""
    forms = []
    for number, text in enumerate(texts):
        path = folder / f"{number}" / "given"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        form = read_form(text, path, overrides, service, owner=os.getuid())
        assert form, "the form is recognised"
        forms.append(form)
    result = import_forms(forms, (), Place(image=image))
    written = folder / f"{result.name}.yaml"
    written.write_text(result.text)
    return load_recipe(str(written), []).recipe, [note.partition(": ")[2] for note in result.notes], result.text


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


def shipped(name: str) -> Recipe:
    return load_recipe(name, [recipes_dir()]).recipe


# The forms of the field reports that the shipped recipes were made from, by their facts: images, flags and variables.

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
    recipe, notes, _ = imported(tmp_path, FORUM, FORUM)
    expected = shipped("deepseek-v4-flash-b12x-1m")
    assert argv(recipe) == argv(expected)
    assert recipe.container == expected.container
    assert (recipe.model.path, recipe.model.repo, recipe.image.ref, recipe.nodes) == (
        expected.model.path, expected.model.repo, expected.image.ref, expected.nodes,
    )  # fmt: skip
    assert {name: expected.env[name] for name in recipe.env} == recipe.env
    left_out = {"11": "--volume /srv/hf:/cache/huggingface", "19": "NCCL_IB_HCA", "20": "NODE_RANK"}
    assert {f"line {line}: {what}: left out" for line, what in left_out.items()} <= {
        ": ".join(note.split(": ")[:2]) + ": left out" for note in notes
    }


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
    recipe, notes, _ = imported(tmp_path, REPORT_RUN, head, worker)
    expected = shipped("deepseek-v4-flash-latency")
    # Declared: the report's own folder of the model, and --privileged, for which the shipped one has a device.
    assert recipe.model.path == "/home/milo/models/DeepSeek-V4-Flash"
    assert recipe.container.privileged
    ours, theirs = argv(recipe), argv(expected)
    assert {**ours, "program": ""} == {**theirs, "program": ""}
    assert recipe.nodes == expected.nodes
    assert recipe.image.ref == expected.image.ref
    assert recipe.env == {"NCCL_IB_DISABLE": "0", "OMP_NUM_THREADS": "8"}
    assert any("/root/.cache/vllm: left out: sparkd keeps the compile caches itself" in note for note in notes)


def test_the_conservative_reports_flags_are_those_of_the_shipped_recipe(tmp_path: Path) -> None:
    flags = (
        "--served-model-name deepseek-v4-flash --max-model-len 200000 --max-num-seqs 2 --max-num-batched-tokens 8192 "
        "--gpu-memory-utilization 0.78 --kv-cache-dtype fp8 --block-size 256 --enable-expert-parallel "
        """--compilation-config '{"cudagraph_mode":"PIECEWISE"}' --disable-custom-all-reduce --trust-remote-code """
        "--host 0.0.0.0 --port 8000 --load-format safetensors --tokenizer-mode deepseek_v4 "
        "--tool-call-parser deepseek_v4 --enable-auto-tool-choice --reasoning-parser deepseek_v4 "
        "--tensor-parallel-size 2 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29501"
    )
    recipe, _, _ = imported(tmp_path, f"docker run {IMAGE} --model deepseek-ai/DeepSeek-V4-Flash {flags}")
    ours, theirs = argv(recipe), argv(shipped("deepseek-v4-flash-conservative"))
    # Declared: the shipped one has the report's flags beyond its list too, such as those of speculative decoding.
    assert {flag: theirs.get(flag) for flag in ours if flag != "program"} == {
        flag: value for flag, value in ours.items() if flag != "program"
    }


@pytest.mark.parametrize(
    ("line", "args", "container"),
    [
        (f"sudo docker run -dit --rm --gpus=all {IMAGE} org/m --port 9000", {"port": 9000}, {}),
        (f"sudo nerdctl run --gpus all {IMAGE} org/m --port 9000", {"port": 9000}, {}),
        (f"docker run -p 9898:8000 {IMAGE} --model org/m", {"port": 9898}, {}),
        (f"docker run -p127.0.0.1:80:9000 {IMAGE} --model org/m --port=9000", {"port": 80, "host": "127.0.0.1"}, {}),
        (f"docker run --net host -p 1:8000 {IMAGE} --model org/m", {}, {}),
        (f"docker run --ipc=host --shm-size 16g {IMAGE} --model=org/m", {}, {"ipc": "host", "shm_bytes": 16 << 30}),
        (f"docker run --shm-size=1g {IMAGE} --model org/m", {}, {"ipc": "private", "shm_bytes": 1 << 30}),
        (f"docker run --ulimit memlock=-1 {IMAGE} --model org/m", {},
         {"ulimits": {"memlock": {"soft": -1, "hard": -1}}}),
        (f"docker run --device /dev/fuse {IMAGE} --model org/m", {}, {"devices": ("/dev/fuse",)}),
        (f"docker run --entrypoint vllm {IMAGE} serve org/m -tp 1", {"tensor-parallel-size": 1}, {}),
        (f"docker run {IMAGE} python3 -m vllm.entrypoints.openai.api_server --model org/m --seed 1", {"seed": 1}, {}),
        (f"docker run -e S=3 --entrypoint bash {IMAGE} -c 'vllm serve org/m --seed $S'", {"seed": 3}, {}),
        (f"docker run {IMAGE} sh -lc 'exec vllm serve org/m'", {}, {}),
        (f"docker run {IMAGE} bash -c 'vllm serve \"$@\"' vllm org/m --seed 1", {"seed": 1}, {}),
        (f"docker run {IMAGE} serve org/m --seed 1", {"seed": 1}, {}),
        (f"bash -c 'sh -c \"bash -c \\\"docker run {IMAGE} --model org/m\\\"\"'", {}, {}),
        (f'docker run {IMAGE} bash -c -i "vllm serve \\\n  org/m --seed 1"', {"seed": 1}, {}),
        (f"docker run --privileged --init --memory 100g {IMAGE} --model org/m", {},
         {"privileged": True, "init": True, "memory_limit_bytes": 100 << 30}),
        (f"docker run --privileged=false --init=false {IMAGE} --model org/m", {}, {"privileged": False, "init": False}),
    ],
)  # fmt: skip
def test_a_docker_line_becomes_flags_and_settings_of_the_container(
    line: str, args: dict[str, object], container: dict[str, object], tmp_path: Path
) -> None:
    recipe, _, _ = imported(tmp_path, line)
    assert (recipe.args, recipe.model.repo, recipe.image.ref) == (args, "org/m", IMAGE)
    assert recipe.container.model_dump(exclude_unset=True) == container


@pytest.mark.parametrize(
    ("script", "args"),
    [
        (f'MODEL="${{MODEL:-org/m}}"\nPORT=9000 # here\ndocker run {IMAGE} --model "$MODEL" --port ${{PORT}}\n',
         {"port": 9000}),
        (f'ARGS=(--seed 1\n  # why\n  --block-size 16)\ndocker run {IMAGE} --model org/m "${{ARGS[@]}}" "$@"',
         {"seed": 1, "block-size": 16}),
        (f"A=()\ndocker run {IMAGE} --model org/m ${{A[@]+\"${{A[@]}}\"}}", {}),
        (f'C="${{C:-$(python3 - <<E\nprint({{"a": (1)}})\nE\n)}}"\n{LINE} --seed "1"', {"seed": 1}),
        (f"X=$(sed -n '/${{a/p')\n{LINE} --seed 1", {"seed": 1}),
        (f"X=$(x | awk '/Up\\)/ {{print $1}}' | sed 's/\\(a\\)//' | jq '\\(.a)')\n{LINE} --seed 1", {"seed": 1}),
        (f"M=org/m\ndocker run {IMAGE} --model $M --tokenizer /t/${{M##*/}}", {"tokenizer": "/t/m"}),
        (f"{LINE} --dtype auto>log 2>&1", {"dtype": "auto"}),
        (f"{LINE} --dtype auto&>log", {"dtype": "auto"}),
        (f'X="--seed 1"\ndocker run {IMAGE} --model org/m $X 2>&1 | tee log &', {"seed": 1}),
        (f'cat <<EOF\ndocker run bad --model bad/bad\nEOF\n{LINE}', {}),
        *((f'cat <<{word}\ndocker run bad --model bad/bad\nEOF\nEOF-1.x\n{LINE}', {})
          for word in ("EOF-1.x", "'EOF-1.x'", '"EOF-1.x"', "\\EOF-1.x")),
        (f'if [ -z "$X" ]; then\n  echo "docker run"\nfi\nfor i in 1 2; do sleep $i; done\n{LINE}', {}),
        (f"if (( 1 << 3 )); then echo; fi\nfor (( i = 1; i < 1 << 3; i <<= 1 )); do echo; done\n{LINE}", {}),
        (f"[[ $x =~ (if|b) && ( -n $y || $z ) ]] && echo\nS=1\n{LINE} --seed $S", {"seed": 1}),
        (f"S=1\nS=2 | cat; : |& export S=3; A=(1) | unset S\n{LINE} --seed $S", {"seed": 1}),
        (LINE.replace("run", "-D --context=a -H b container run"), {}),
        (f"docker rm -f v || true\n{LINE} \\\n  --seed 1\ndocker logs -f v", {"seed": 1}),
        (f"docker run -d --name v {IMAGE} sleep infinity\ndocker exec -d v bash -c \"vllm serve org/m --seed 1\"",
         {"seed": 1}),
        *((f"{runner} '{LINE} --seed 1'", {"seed": 1})
          for runner in ("sudo -u x bash -c", "timeout 9 sh -c", "screen -dmS v bash -c", "sg docker -c", "su - x -c",
                         "sudo -E nohup timeout -k 5 1.5h env -i A=b taskset 0xff nice -n 5 bash -lc")),
        *((f"{other} '{RUN} --headless'\n{LINE} --seed 1", {"seed": 1})
          for other in ("timeout 60 ssh node2 bash -lc", "sudo -E ssh -t node2 sh -c", "sudo chroot /mnt bash -c",
                        "sudo -n useradd -m -s /bin/bash -c")),
        (f"env P=9 bash -c '{LINE} --port $P'", {"port": 9}),
        (f"""X="$(grep -E '^({'A' * 60})=' f)"\neval "$X"\nbash -c "echo $X '$X'; {LINE} --seed 1\"""", {"seed": 1}),
        (f"C='{LINE}'\nC+=\" --stop 'a b'\"\neval \"$C\" --seed 1", {"stop": "a b", "seed": 1}),
    ],
)  # fmt: skip
def test_a_plain_script(script: str, args: dict[str, object], tmp_path: Path) -> None:
    recipe, _, _ = imported(tmp_path, script)
    assert (recipe.args, recipe.model.repo, recipe.image.ref) == (args, "org/m", IMAGE)


@pytest.mark.parametrize(
    "script",
    [
        f'P=8000\n[ "$DEBUG" = 1 ] && P=9000\n{RUN}',
        f'[ -f "$P" ] || P=9000\n{RUN}',
        f'[ -f "$P" ] ||\n  # why\n  export P=9000; {RUN}',
        f'P=8000\n[ -n "$P" ] || P=9000\n{RUN}',
        f"test -f x && A=1 && P=9000; {RUN}",
        f"A=1 && test -f x && P=9000; {RUN}",
        f"(test -f x) && P=9000\n{RUN}",
        f"{{ test -f x; }} && P=9000\n{RUN}",
        f"test -f x && P=9000 || {RUN}",
        f"bash -c 'P=8000; test -f x && P=9000; {RUN}'",
        f"test -f x || true && P=9000\n{RUN}",
        f': "${{P:=}}"\ntest -f x && : "${{P:=9000}}"\n{RUN}',
        f'if test -f x; then : "${{P:=9000}}"; fi\n{RUN}',
        f"P=80\ntest -f x && P+=00\n{RUN}",
        f"P=80\n(( A = 1, P <<= 3 ))\n{RUN}",
        f"P=80\n(( P++ )) && echo\n{RUN}",
        f"P=80\nfor P in 1 2; do echo; done\n{RUN}",
        f"P=80\nread -r P <x\n{RUN}",
    ],
)
def test_the_value_is_not_known_where_an_operator_decides_about_the_assignment(script: str, tmp_path: Path) -> None:
    recipe, notes, _ = imported(tmp_path, script)
    assert "port" not in recipe.args
    assert any(re.search(r"--port: left out: what \$\{?P\}? stands for", note) for note in notes)


@pytest.mark.parametrize(
    "script",
    [
        f"P=8000\n(P=9000; echo hi)\n{RUN}",
        f"P=8000\n(P=9000\ncase $1 in a) P=1;; (b) P=2;; esac; (P=3); P=4)\n{RUN}",
        f"f() (P=9000)\nP=8000\n{RUN}",
        f"P=9000; (P=8000; {RUN})",
        f"export A=1 && export P=8000 && {RUN}",
        f"cd x && P=8000\n{RUN}",
        f"set -e; P=8000 && {RUN}",
        f"test -f x && P=8000 && {RUN}",
        f"A=(1) && P=8000\n{RUN}",
        f"test -f x && A=1\nP=8000\n{RUN}",
        f"test -f x && echo\nP=8000\n{RUN}",
        f"test -f x && A=(1)\nP=8000\n{RUN}",
        f"test -f x && >log\nP=8000\n{RUN}",
        f"test -f x || true && P=8000 && {RUN}",
        f"mkdir -p x && source x && P=8000\n{RUN}",
        f'test -f x && A=(--port 8000) && docker run {IMAGE} --model org/m "${{A[@]}}"',
        f'C="{RUN.replace("$P", "8000")}"\ntest -f x && C+=" --seed 1"\n$C',
        f'declare -a A=(--port 8000)\ndocker run {IMAGE} --model org/m "${{A[@]}}"',
        f'f() {{ B=(1); }}\nA=(--port 8000)\ndocker run {IMAGE} --model org/m "${{A[@]}}"',
        f': "${{P:=8000}}"\n{RUN}',
        f'[ -n "$P" ] || P=8000\n{RUN}',
        f'[ -z "${{P:-}}" ] && P=8000\n{RUN}',
        f"P=8000; : ${{P:=9000}}\n{RUN}",
        f'A=(--port 8000)\ntest -f x && A+=(--seed 1)\ndocker run {IMAGE} --model org/m "${{A[@]}}"',
    ],
)
def test_the_value_is_known_where_the_assignment_surely_counts(script: str, tmp_path: Path) -> None:
    recipe, _, _ = imported(tmp_path, script)
    assert recipe.args == {"port": 8000}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"docker run {IMAGE} --model <name>", "line 1: what <name> stands for in <name> is not known"),
        (f"docker run {IMAGE} --model '<name>'", "line 1: names the model <name>: write its name there"),
        (f"docker run {IMAGE} --model “org/m”", "line 1: names the model “org/m”: write its name there, in plain"),
        (COMPOSE.replace("org/m", "org/<name>"), "line 4: names the model org/<name>: write its name there"),
        (f"for m in a b; do docker run {IMAGE} --model $m; done", r"line 1: what \$\{m\} stands for .* -o m=VALUE"),
        (f"M=a\nif q; then M=ab; fi\ndocker run {IMAGE} --model $M", r"line 3: what \$\{M\} stands for in \$\{M\} is"),
        ("F+=(--rm)\ndocker run ${G[@]}", "line 2: docker run names no image: write it"),
        (f"{LINE} 'x", "line 1: the quote ' has no end"),
        (f'\n{LINE} "x', 'line 2: the quote " has no end'),
        ("vllm serve org/m", "line 1: names no image to run it in: --image REF"),
        (f"docker run {IMAGE} --config /x.yaml", "line 1: names no model .* but a file of flags, --config: write them"),
        (f'M=""\ndocker run {IMAGE} --model "$M"', "line 2: names no model right behind"),
        (f'docker run {IMAGE} "$1" "$@"', r"line 1: what \$1 stands for in \$1 is not known"),
        ("pgrep -f vllm.entrypoints.openai.api_server", "line 1: starts no vLLM server"),
        ("docker compose run -e A=1 vllm serve org/m", "line 1: starts no vLLM server"),
        (f"{LINE}\n{LINE}", "vLLM is started by 2 commands"),
        (f"if x; then D=docker; fi\nsudo $D run {IMAGE} --model org/m", "line 2: what .* or give -o D=VALUE"),
        (f"if [[ -n $x ]\n{LINE}", r"line 2: \[\[ has no end: close it"),
        ("docker run redis", "line 1: starts no vLLM server by itself: import the file"),
        ("cat >a.yml <<E\nservices:\nE\ndocker compose up", "line 4: .*, but runs its compose file: import that file"),
        ("docker run -Z x --model y", "line 1: docker's option -Z is not known"),
        (COMPOSE + f"  b:\n    image: {IMAGE}\n    command: --model org/b\n",
         "2 services vllm, b: name one by --service"),
        (COMPOSE.replace("--model org/m", "--model ${M:?say it}"), r"line 4: what \$M stands for"),
        (COMPOSE.replace("--model org/m", '"--model org/m --seed ${X"'), "line 4: command: "),
        (COMPOSE + "    extends: x\n", "line 5: extends: write the service out, or name another by --service"),
        ("services: 3\n# vllm", "line 1: services: must be a mapping"),
        (f"{UNIT}ExecStart=/usr/bin/{LINE} 'x\n", "line 4: execstart|line 4: ExecStart: no closing quotation"),
    ],
)  # fmt: skip
def test_what_is_no_plain_start_is_refused_with_its_line(text: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=fault):
        imported(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "looks"),
    [
        ("\n# nothing\n", "an empty file: name the one"),
        ("# syntax=docker/dockerfile:1\nARG V=1\n# why\nFROM $V\nCMD vllm serve org/m\n", "a Dockerfile: import what"),
        ("#!/usr/bin/env python3\nrun(['docker', 'run'])\n", "a Python script: write"),
        ("from vllm import LLM\nx: int = 1\n", "a Python script: write"),
        (f"# x\n[Unit]\nA=b\n[Container]\nImage={IMAGE}\nExec=vllm serve m\n[Service]\nA=b\n",
         "a quadlet of podman: import the unit"),
        ("apiVersion: v1\nkind: Pod\n---\napiVersion: v1\n", "a Kubernetes manifest: write image"),
        ("kind: Pod\napiVersion: v1\n", "a Kubernetes manifest: write image"),
        ("#!/bin/bash\n# x\n./serve.sh\n", "a shell script without vLLM: import the script"),
        ("# Title\n\nFirst that, then: this.\n", "Markdown: save the command"),
        (f"# Title\n\nDon't wait:\n\n```\n{LINE}\n```\n", "Markdown: save the command"),
        (f"# Title\n\nRun it:\n\n```bash\n{LINE}\n```\n", "Markdown: save the command"),
        (f"Run it:\n```\n{LINE}\n```\n", "Markdown: save the command"),
        (f"# {LINE}", "an empty file: name the one"),
        ("hello\n", "plain text: write the command"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_named_with_what_to_do(
    text: str, looks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "given"
    path.write_text(text)
    assert main.main(["recipe", "import", str(path)]) == 78
    alone = capsys.readouterr().err
    with stdin_of(io.StringIO(text)):
        assert main.main(["recipe", "import", "-"]) == 78
    for error in (alone, capsys.readouterr().err):
        assert f": line 1: looks like {looks}" in error
        assert "what is read: recipes of eugr, sparkrun and NVIDIA, command lines, scripts" in error


@pytest.mark.parametrize("start", ["#!/bin/bash\n", "#!/bin/sh\n# x\n", ""])
def test_a_fault_of_a_script_that_writes_markdown_keeps_its_line(start: str, tmp_path: Path) -> None:
    text = f"{start}cat >a.md <<E\n```\nx\n```\nE\ndocker run -Z x\n"
    with pytest.raises(ConfigError, match=f"line {text.count(chr(10))}: docker's option -Z"):
        imported(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("# mine\n  model: a/b\n  command: [\n", "line 3: while parsing a flow"),
        ('my model: x\ncommand: "vllm\n', "line 2: while scanning a quoted scalar"),
        ("# r\n- model: a/b\n", "line 1: must be a mapping"),
    ],
)
def test_a_fault_of_yaml_keeps_its_line(
    text: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(text)
    assert main.main(["recipe", "import", str(path)]) == 78
    assert f"given.yaml: {fault}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "start",
    [
        "#!/opt/python-env/bin/bash\n",
        "#!/bin/sh\n# of ImageMagick\nimport -window root x.png\n",
        "[ -d /x ] || mkdir /x\ncat >x.container <<E\n[Container]\nImage=x\nE\n",
    ],
)
def test_a_script_that_begins_like_another_kind_is_read(start: str, tmp_path: Path) -> None:
    assert imported(tmp_path, f"{start}{LINE}\n")[0].model.repo == "org/m"


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("/usr/bin/docker exec vllm_ds4 bash /workspace/x.sh", "/workspace/x.sh"),
        ("/opt/vllm/run.sh --port 1", "/opt/vllm/run.sh"),
        ("/bin/bash -l /opt/vllm/start", "/opt/vllm/start"),
        ("/bin/bash -lc /opt/vllm/start", "/opt/vllm/start"),
        ("/opt/vllm/run.sh -c x", "/opt/vllm/run.sh"),
        ("/usr/bin/docker compose --env-file /opt/.env -f /opt/vllm/compose.yaml up", "/opt/vllm/compose.yaml"),
        ("/usr/bin/docker-compose --file /opt/a.yml -f /opt/b.yml up", "/opt/a.yml"),
        ("/usr/bin/trtllm-serve m --extra_llm_api_options /tmp/extra.yml --run /x.sh", "/x.sh"),
    ],
)
def test_of_a_unit_that_runs_a_script_the_script_is_to_be_imported(command: str, script: str, tmp_path: Path) -> None:
    fault = f"given: line 4: starts no vLLM server by itself, but runs {script}: import that file by its path"
    with pytest.raises(ConfigError, match=fault):
        imported(tmp_path, f"{UNIT}ExecStart={command}\n")
    text = f"{UNIT}ExecStart={command}\n"
    assert imported(tmp_path, text, "vllm serve org/m", image=IMAGE)[0].model.repo == "org/m"


def test_what_is_no_script_or_not_the_fault_is_not_to_be_imported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"given: line 2: image: what \$I stands for .* -o I=VALUE"):
        imported(tmp_path, "docker run redis bash /x.sh\ndocker run $I --model org/m\n")
    with pytest.raises(ConfigError, match="line 1: starts no vLLM server by itself: import the file with"):
        imported(tmp_path, """docker run redis bash -c 'exec "$@"' -- python3 --model org/m\n""")


def test_dockers_own_options_are_named(tmp_path: Path) -> None:
    _, notes, _ = imported(tmp_path, LINE.replace("run", "--context far -l debug run"))
    assert notes == ["line 1: docker --context far -l debug: left out: the node's own docker runs it"]


def test_an_override_decides_what_a_script_decides_otherwise(tmp_path: Path) -> None:
    script = f"if x; then M=a/b; fi\ndocker run {IMAGE} --model $M"
    assert imported(tmp_path, script, M="org/m")[0].model.repo == "org/m"
    program = f"if x; then DOCKER=docker; fi\n$DOCKER run {IMAGE} --model org/m"
    assert imported(tmp_path, program, DOCKER="sudo docker")[0].model.repo == "org/m"
    assert imported(tmp_path, f"docker run {IMAGE} --model $1", **{"1": "org/m"})[0].model.repo == "org/m"
    for word, name in (("<your-model>", "your-model"), ('"${A[@]}"', "A")):
        with pytest.raises(ConfigError, match=f"not known: write its value, or give -o {name}=VALUE"):
            imported(tmp_path, f"if x; then A+=(y); fi\ndocker run {IMAGE} {word}")
        text = f"if x; then A+=(y); fi\ndocker run {IMAGE} {word} --seed 1"
        assert imported(tmp_path, text, **{name: "org/m"})[0].args == {"seed": 1}
    text = f"docker run {IMAGE} bash -c 'vllm serve $M'"
    assert imported(tmp_path, text, M="org/m")[0].model.repo == "org/m"
    text = 'read -ra A <<<"$X"\nvllm serve "${A[@]}"'
    assert imported(tmp_path, text, image=IMAGE, A="org/m --seed 1")[0].args == {"seed": 1}
    text = f'A=(--seed 1)\ntest -f x && A+=(--port 2)\nA+=(--dtype auto)\ndocker run {IMAGE} --model org/m "${{A[@]}}"'
    assert imported(tmp_path, text, A="--port 3 --dtype half")[0].args == {"seed": 1, "port": 3, "dtype": "half"}
    text = f'A=(run)\ntest -f x && A+=(-e B=1)\nA+=({IMAGE} --model org/m)\ndocker "${{A[@]}}"'
    assert imported(tmp_path, text, A="-e B=2")[0].env == {"B": "2"}, "its place among docker's words counts"
    text = "sudo runuser -u v -- vllm serve $M -cc 1\n"
    assert imported(tmp_path, text, image=IMAGE, M="org/m")[0].args == {"compilation-config": 1}
    text = "bash -c 'vllm serve $M'\n"
    assert imported(tmp_path, text, image=IMAGE, M="org/m")[0].model.repo == "org/m"
    text = f"{UNIT}Environment=M=org/other\nExecStart=/usr/bin/docker run {IMAGE} --model ${{M}}\n"
    assert imported(tmp_path, text, M="org/m")[0].model.repo == "org/m"
    with pytest.raises(ConfigError, match=r"-o N: nothing in .* is filled in by that name"):
        imported(tmp_path, script, N="org/m")


def test_a_compose_file(tmp_path: Path) -> None:
    text = f"""\
x-common: &common
  ipc: host
  environment: &env {{A: "1", B: "${{B:-2}}", C: $$HOME, D: "${{UNSET}}"}}
services:
  db: {{image: "postgres:16", environment: {{POSTGRES_PASSWORD: pg-password-1}}}}
  vllm:
    <<: *common
    image: {IMAGE}
    ports: ["8001:8000", {{published: 7, target: 7}}]
    volumes:
      - {{type: bind, source: ./data, target: /data, read_only: true}}
      - hub:/root/.cache/huggingface
      - other:/other
    cap_add: [IPC_LOCK]
    build: .
    env_file: [.env, more.env]
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, count: all, capabilities: [gpu]}}]}}}}}}
    healthcheck: {{test: [CMD, "true"]}}
    sysctls: {{net.core.somaxconn: 1024}}
    command: ["--model", "org/m", "--max-model-len", "${{LEN}}"]
volumes: {{hub: {{}}}}
"""
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / ".env").write_text("# none\nexport LEN='4096'\nFROM_FILE=\"x y\"\n")
    recipe, notes, _ = imported(tmp_path, text)
    assert recipe.args == {"max-model-len": 4096, "port": 8001}
    assert recipe.env == {"A": "1", "B": "2", "C": "$HOME", "LEN": "4096", "FROM_FILE": "x y"}
    assert [(one.source, one.target, one.read_only) for one in recipe.container.volumes] == [
        (f"{tmp_path}/0/data", "/data", True)
    ]
    assert [note.partition(": left out")[0].partition(": not read")[0] for note in notes] == [
        "line 3: D", "line 9: --publish 7:7", "line 12: --volume hub:/root/.cache/huggingface",
        "line 13: --volume other:/other", "line 14: --cap-add IPC_LOCK",
        "line 15: build: not done: where no registry has the image, `docker compose build` makes it",
        "line 16: env_file: more.env", "line 19: sysctls",
    ]  # fmt: skip


def test_a_port_of_an_ipv6_address_is_the_engines(tmp_path: Path) -> None:
    ports = "    ports: [{target: 8000, published: 9000, host_ip: '::1'}]\n"
    recipe, notes, _ = imported(tmp_path, COMPOSE + ports)
    assert (recipe.args["host"], recipe.args["port"], notes) == ("::1", 9000, [])


def test_of_two_ports_the_last_one_is_the_engines_as_vllm_takes_it(tmp_path: Path) -> None:
    text = f"docker run -p 9000:8001 {IMAGE} --model org/m --port 8000 --port 8001"
    recipe, notes, _ = imported(tmp_path, text)
    assert (recipe.args["port"], [note for note in notes if "publish" in note]) == (9000, [])


def test_the_options_of_docker_may_end_with_two_dashes(tmp_path: Path) -> None:
    assert imported(tmp_path, f"docker run --rm -- {IMAGE} --model org/m")[0].image.ref == IMAGE


def test_an_env_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    """Root imports a user's compose file, and finds in the folder that the user has put there a file of root's."""
    path, other = tmp_path / "compose.yaml", os.getuid() + 1
    text = COMPOSE + "    environment: {D: '${DB_PASS}'}\n"
    (tmp_path / ".env").write_text("DB_PASS=k3pt\n")
    with pytest.raises(ConfigError, match=r"\.env: is of uid \d+, what reads it of \d+: its values are not taken"):
        read_form(text, path, {}, owner=other)
    (tmp_path / ".env").rename(tmp_path / "elsewhere")
    (tmp_path / ".env").symlink_to(tmp_path / "elsewhere")
    form = read_form(text, path, {}, owner=os.getuid())
    assert form is not None
    assert "k3pt" not in repr(form)


def test_an_anchor_of_a_compose_file_may_be_defined_again(tmp_path: Path) -> None:
    text = COMPOSE + "    environment: {A: &x 1, B: *x, C: &x 2, D: *x}\n"
    assert imported(tmp_path, text)[0].env == {"A": "1", "B": "1", "C": "2", "D": "2"}


def test_an_env_file_may_be_named_in_the_long_form(tmp_path: Path) -> None:
    text = COMPOSE + "    env_file: [{path: .env, required: false}, {path: more.env, required: false}]\n"
    more = ["line 5: env_file: more.env: not read: write its variables under env, secrets under secrets"]
    recipe, notes, _ = imported(tmp_path, text)
    assert (recipe.env, notes) == ({}, more)
    (tmp_path / "0" / ".env").write_text("A=1\n")
    recipe, notes, _ = imported(tmp_path, text)
    assert (recipe.env, notes) == ({"A": "1"}, more)


def test_an_image_that_is_no_text_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 3: image: must be text"):
        imported(tmp_path, "services:\n  a:\n    image: [x]\n")


def test_a_service_that_is_only_built_has_the_image_that_compose_makes(tmp_path: Path) -> None:
    ui = "  ui: {build: ui, env_file: ui.env, command: [--config, /x.yaml]}\n"
    built = COMPOSE.replace(f"image: {IMAGE}", "build: .").replace("--model", "vllm serve") + ui
    recipe, notes, _ = imported(tmp_path, "name: My.vllm\n" + built)
    assert (recipe.model.repo, recipe.image.ref) == ("org/m", "myvllm-vllm")
    assert notes == [
        "line 4: build: not done: where no registry has the image, `docker compose build` makes it",
        "line 5: container: myvllm-vllm: no registry has it, nor is a build known: build it first",
    ], "none of the other service"
    (tmp_path / "Own-vLLM").mkdir()
    form = read_form(built, tmp_path / "Own-vLLM" / "compose.yml", {}, owner=os.getuid())
    assert form
    assert [launch.image for launch in form.launches] == ["own-vllm-vllm", "own-vllm-ui"]
    assert imported(tmp_path, "name: ${P:-foo}\n" + built)[0].image.ref == "foo-vllm"
    with pytest.raises(ConfigError, match="names no image to run it in"):
        imported(tmp_path, "name: $P\n" + built)
    (tmp_path / "0" / ".env").write_text("COMPOSE_PROJECT_NAME=bar\n")
    assert imported(tmp_path, "name: foo\n" + built)[0].image.ref == "bar-vllm"


def test_one_service_is_named(tmp_path: Path) -> None:
    text = COMPOSE + f"  b:\n    image: {IMAGE}\n    command: --model org/b\n"
    assert imported(tmp_path, text, service="b")[0].model.repo == "org/b"
    with pytest.raises(ConfigError, match="no service is named c: vllm, b"):
        imported(tmp_path, text, service="c")


def test_a_unit(tmp_path: Path) -> None:
    text = f"""\
{UNIT}Environment="A=1 2" 'PORT=9000'
EnvironmentFile=-/etc/default/vllm
ExecStartPre=-/usr/bin/docker rm -f vllm
ExecStartPre=/usr/local/bin/warm
ExecStart=/usr/bin/docker run --rm \\
    -e PCT=100%% -e A \\
    {IMAGE} --model org/m --port ${{PORT}}
ExecStop=/usr/bin/docker stop vllm
[Install]
WantedBy=multi-user.target
"""
    recipe, notes, _ = imported(tmp_path, text)
    assert (recipe.args, recipe.env) == ({"port": 9000}, {"PCT": "100%", "A": "1 2"})
    assert [note.partition(": ")[0] + note.partition(": ")[2][:12] for note in notes] == [
        "line 5EnvironmentF", "line 7ExecStartPre",
    ]  # fmt: skip


def test_a_unit_with_vllm_itself(tmp_path: Path) -> None:
    text = f"{UNIT}Environment=OMP_NUM_THREADS=8 PATH=/opt/vllm/bin:/bin\nExecStart=/opt/vllm/bin/vllm serve org/m\n"
    recipe, notes, _ = imported(tmp_path, text, image=IMAGE)
    assert notes == ["line 5: PATH: left out: the image has its own"]
    assert (recipe.image.entrypoint, recipe.env) == (("vllm", "serve"), {"OMP_NUM_THREADS": "8"}), (
        "the image's own vLLM"
    )
    text = f"docker run -d {IMAGE} sleep infinity\ndocker exec -d x /opt/vllm/bin/vllm serve org/m\n"
    assert imported(tmp_path, text)[0].image.entrypoint == ("/opt/vllm/bin/vllm", "serve"), "a path in the container"


@pytest.mark.parametrize(
    "text",
    [
        f"cat >docker-compose.yml <<EOF\nservices:\n  a: {{image: other}}\nEOF\n{LINE}\n",
        f"#!/bin/sh\n# what\n\ncat > recipe.yaml <<'EOF'\nmodel: a\ncommand: b\nEOF\n{LINE}\n",
        f"sudo tee /etc/systemd/system/x.service <<-EOF\n[Service]\nExecStart=/bin/other\nEOF\n{LINE}\n",
    ],
)
def test_what_a_script_writes_into_a_file_does_not_make_it_one(text: str, tmp_path: Path) -> None:
    recipe, notes, written = imported(tmp_path, text)
    assert (recipe.image.ref, notes) == (IMAGE, [])
    assert "(command line)" in written


@pytest.mark.parametrize(
    "start", ["# what\n\n", "---\n", "%YAML 1.2\n---\n", "version: '3'\n", "\r\nx-a: &a\n  b: 1\r\n"]
)
def test_a_compose_file_may_begin_otherwise(start: str, tmp_path: Path) -> None:
    assert "(compose)" in imported(tmp_path, start + COMPOSE)[2]


def test_a_folder_is_the_model_where_the_images_entrypoint_is_the_engine(tmp_path: Path) -> None:
    line = f"docker run -v {tmp_path}/m:/model {{}} /model --seed 1"
    assert imported(tmp_path, line.format(IMAGE))[0].model.path == f"{tmp_path}/m"
    with pytest.raises(ConfigError, match="starts no vLLM server by itself"):
        imported(tmp_path, line.format("own/vllm:1"))  # may be a program


def test_privileged_is_named_once(tmp_path: Path) -> None:
    options = "--cap-add SYS_ADMIN --security-opt seccomp:unconfined --security-opt label=disable --privileged"
    recipe, notes, _ = imported(tmp_path, f"docker run {options} {IMAGE} --model org/m")
    assert recipe.container.privileged
    assert notes == ["line 1: --privileged: kept: root in the container is root on the node"]
    assert not imported(tmp_path, f"docker run --privileged=false {IMAGE} --model org/m")[1]


def test_a_folder_of_models_is_no_loss_where_sparkd_mounts_the_model_itself(tmp_path: Path) -> None:
    line = f"\ndocker run -v {{}}:/models {IMAGE} --model /models/m"
    (tmp_path / "m").mkdir()
    recipe, notes, _ = imported(tmp_path, line.format(tmp_path))
    assert (recipe.model.path, recipe.model.served_name) == (f"{tmp_path}/m", "/models/m"), "as clients name it"
    assert notes == [f"line 2: model: no repository is named: it is read from {tmp_path}/m"]
    (loss,) = missing(tmp_path, f"{line.format(tmp_path)} --chat-template /models/x.jinja")
    assert (
        loss
        == f"line 2: --volume {tmp_path}:/models: left out: /models in the container is sparkd's own: choose another"
    )
    losses = imported(tmp_path, line.format("named"))[1]
    assert any(loss.startswith("line 2: --volume named:/models: left out: it is no folder") for loss in losses)


def test_a_snapshot_in_the_hubs_cache_of_any_user_is_its_repository(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    mount = f"-v /home/u/.cache/huggingface/hub/models--org--M-1--x:/m:ro {IMAGE}"
    recipe, notes, _ = imported(tmp_path, f"docker run {mount} --model /m/snapshots/{commit}")
    assert (recipe.name, recipe.model.path, recipe.model.repo) == ("m-1--x", "M-1--x", "org/M-1--x")
    assert (recipe.model.revision, notes) == (commit, [])


def test_an_eval_without_an_end_is_noted_and_a_model_may_have_an_apostrophe(tmp_path: Path) -> None:
    for text in ("it's", "A=(b", '"$(x'):
        notes = imported(tmp_path, f"eval {shlex.quote(text)} -y\ndocker run {IMAGE} --model /m/Jan\u2019s/m")[1]
        assert notes[0] == f"line 1: eval {text} -y: not read: give what it sets by -o NAME=VALUE"


def test_only_programs_that_are_not_run_are_noted_and_no_words_of_the_shell(tmp_path: Path) -> None:
    flow = 'set -e; [ -n "$A" ] && unset A; for i in 1 2; do (( i > 1 )) && break; done; read -r a b <x; : x'
    choice = 'case "$A" in on|off) echo on;; *) fix /x;; esac'
    text = f"{flow}\n{choice}\n(cp a b)\nvllm serve org/m"
    recipe, notes, _ = imported(tmp_path, f"docker run --entrypoint bash {IMAGE} -c '{text}'")
    assert (recipe.model.repo, [note.partition("not run: ")[2].partition(":")[0] for note in notes]) == (
        "org/m", ["echo on", "fix /x", "cp a b"],
    )  # fmt: skip


def test_what_only_podman_or_docker_itself_needs_is_no_loss(tmp_path: Path) -> None:
    options = "--replace --cgroups=split --sdnotify=conmon --stop-signal TERM"
    assert imported(tmp_path, f"{UNIT}ExecStart=/usr/bin/podman run {options} {IMAGE} --model org/m\n")[1] == []
    assert imported(tmp_path, COMPOSE + "    stop_signal: SIGINT\n")[1] == []


def test_a_mount_below_models_counts_for_its_content(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    line = f"docker run -v /srv:/models -v {tmp_path}:/models/big {IMAGE} --model /models/big/m"
    recipe, notes, _ = imported(tmp_path, line)
    assert recipe.model.path == f"{tmp_path}/m", "the innermost mount has it"
    assert notes == [f"line 1: model: no repository is named: it is read from {tmp_path}/m"]
    draft = """-v /srv/d:/models/d:ro {} --speculative-config '{{"method": "eagle3", "model": "/models/d"}}'"""
    (loss,) = missing(tmp_path, f"docker run {draft.format(IMAGE)} --model org/m")
    assert loss.startswith("line 1: --volume /srv/d:/models/d:ro: left out: /models/d in the container is sparkd's own")


SECRET = "wq8Zk2Vt9Xs4Lp7Rb3Nd"


@pytest.mark.parametrize(
    "text",
    [
        f"docker run -e HF_TOKEN={SECRET} -e OPENAI_API_KEY={SECRET} {IMAGE} --model org/m --api-key {SECRET}",
        f"T={SECRET}\ndocker run -e HF_TOKEN=$T {IMAGE} sh -c 'curl -u a:{SECRET} x; vllm serve org/m'",
        f"{COMPOSE}    environment: [HF_TOKEN={SECRET}]\n",
        f"{COMPOSE}    environment: {{HUGGING_FACE_HUB_TOKEN: {SECRET}}}\n",
        f"{UNIT}Environment=HF_TOKEN={SECRET}\nExecStart=/usr/bin/docker run -e HF_TOKEN {IMAGE} --model org/m\n",
    ],
)
def test_a_secret_becomes_a_file_and_is_nowhere(text: str, tmp_path: Path) -> None:
    recipe, notes, written = imported(tmp_path, text)
    assert recipe.secrets
    assert all(path == f"/etc/sparkd/{name.lower()}" for name, path in recipe.secrets.items())
    assert SECRET not in written + "".join(notes)
    assert f"sudo install -m 600 /dev/stdin {next(iter(recipe.secrets.values()))}" in written


def test_a_token_in_the_overrides_of_a_configuration_is_left_out_and_its_numbers_stay(tmp_path: Path) -> None:
    line = f"docker run {IMAGE} --model org/m --hf-overrides "
    recipe, notes, _ = imported(tmp_path, line + """'{"eos_token_id": 151645, "pad_token": "<pad>"}'""")
    assert (recipe.args["hf-overrides"], notes) == ('{"eos_token_id": 151645, "pad_token": "<pad>"}', [])
    recipe, notes, _ = imported(tmp_path, line + f"""'{{"token": "hf_{SECRET}"}}'""")
    assert (recipe.args, notes) == ({}, ["line 1: --hf-overrides: left out: its value looks like a secret"])


def test_a_fault_names_no_secret(tmp_path: Path) -> None:
    _, notes, written = imported(tmp_path, f"docker run {IMAGE} --model org/m --hf-token {SECRET} stray --x $Y")
    assert SECRET not in "".join(notes) + written
    with pytest.raises(ConfigError) as fault:
        imported(tmp_path, f"docker run {IMAGE} --model $Y --hf-token {SECRET} stray")
    assert SECRET not in str(fault.value)
    with pytest.raises(ConfigError, match=r"line 1: image.ref = .*@registry.example/vllm:1") as fault:
        imported(tmp_path, f"docker run https://bob:{SECRET}@registry.example/vllm:1 vllm serve org/m")
    assert SECRET not in str(fault.value)


@pytest.mark.parametrize(
    "option",
    ["-v /:/host", "-v /var/run/docker.sock:/var/run/docker.sock", "-v /etc:/etc-of-node",
     f"-v {'../' * 20}etc:/x", "--mount type=bind,source=/root/.ssh,target=/keys", "--device /dev/sda", "--pid host",
     "--cap-add SYS_ADMIN",
     "-v /a\x1b[31m:/b", "--network bridge", "--env-file /etc/shadow"],
)  # fmt: skip
def test_what_reaches_too_far_is_left_out_and_named(option: str, tmp_path: Path) -> None:
    recipe, notes, written = imported(tmp_path, f"docker run {option} {IMAGE} --model org/m")
    assert recipe.container.model_dump(exclude_unset=True) == {}
    assert len(notes) == 1
    assert notes[0].startswith("line 1: --")
    assert "\x1b" not in written + notes[0]


def test_nothing_is_run_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trap = f"touch {tmp_path}/ran"
    for text in (
        f"$({trap})\n`{trap}`\n{LINE}",
        f"{COMPOSE}    environment: {{A: '$$({trap})'}}\n",
        f"{LINE} # $({trap})",
    ):
        imported(tmp_path, text)
    (tmp_path / "0" / ".env").write_text(f"A={'../' * 20}etc/passwd\n")
    recipe, notes, _ = imported(tmp_path, f"{COMPOSE}    volumes: ['${{A}}:/x']\n")
    assert not recipe.container.volumes
    assert not (tmp_path / "ran").exists()
    assert notes[0].startswith("line 5: --volume ../../") and "gets /etc/passwd of the node" in notes[0]


def test_a_linked_env_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "elsewhere").write_text("M=org/m\n")
    (tmp_path / "0" / ".env").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"what \$M stands for"):
        imported(tmp_path, COMPOSE.replace("org/m", "$M"))


def test_aliases_that_double_themselves_end(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 8))
    with pytest.raises(ConfigError, match="its aliases make more than 20000 values"):
        imported(tmp_path, bomb + COMPOSE)
    with pytest.raises(YamlError, match="an alias"):
        parse_as_pyyaml("a: &a [1]\nb: *a\n")


def test_text_that_doubles_itself_ends(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is longer than 100000 characters"):
        imported(tmp_path, "X=aaaaaaaaaa\n" + "X=$X$X$X$X$X$X$X$X\n" * 9 + LINE)


def test_ranks_that_differ_in_more_than_their_place_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"1/given: line 1: --seed: 1 in .*0/given, 2 in .*1/given: ranks of one engine"
    ):
        imported(tmp_path, f"{LINE} --seed 1 -tp 2 --node-rank 0", f"{LINE} --seed 2 -tp 2 --node-rank 1 --headless")
    recipe, _, _ = imported(tmp_path, f"{LINE} -tp 2 --node-rank 0", f"{LINE} -tp 2 --node-rank 1 --headless")
    assert (recipe.nodes.min, recipe.nodes.max) == (2, 2)


def test_json_in_another_notation_is_no_difference(tmp_path: Path) -> None:
    texts = [f"{LINE} -tp 2 --speculative-config '{value}'" for value in ('{"a": 1, "b":[2]}', '{"b":[2],"a":1}')]
    assert json.loads(str(imported(tmp_path, *texts)[0].args["speculative-config"])) == {"a": 1, "b": [2]}
    with pytest.raises(ConfigError, match=r"--speculative-config: .* ranks of one engine need the same"):
        imported(tmp_path, texts[0], texts[1].replace("2]", "3]"))


def test_a_file_that_is_named_twice_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "given").write_text(LINE)
    assert main.main(["recipe", "import", str(tmp_path / "given"), f"{tmp_path}/./given"]) == 0
    assert capsys.readouterr().out.startswith("# Imported from given (command line).\n")


def losses(folder: Path, **texts: str) -> tuple[list[str], list[str], str]:
    """All notes, what is missing, and the written recipe, of files with these names."""
    forms = []
    for name, text in texts.items():
        form = read_form(text, folder / name, {}, owner=os.getuid())
        assert form, "the form is recognised"
        forms.append(form)
    result = import_forms(forms, (), Place())
    return [*result.notes], [*result.missing], result.text


def test_a_loss_of_any_file_is_named_with_its_file_and_counts(tmp_path: Path) -> None:
    head, worker = f"{LINE} -tp 2 --node-rank 0\n", f"\n{LINE} -tp 2 --node-rank 1 --headless $EXTRA\n"
    worker = worker.replace("--gpus all", "-v named:/t --user 1000 --gpus all")
    for files in ({"head": head, "worker": worker}, {"worker": worker, "head": head}):
        notes, missing, text = losses(tmp_path, **files)
        assert [note.partition(": left out")[0] for note in notes] == [
            f"{tmp_path}/worker: line 2{loss}" for loss in ("", ": --volume named:/t", ": --user 1000")
        ]
        assert missing == notes[:1]
        assert f"# Imported from {', '.join(files)} (command line).\n" in text
        assert f"#   {tmp_path}/worker: line 2: --user 1000: left out" in text
    setup = head.replace("--model org/m", "bash -c 'pip install y && vllm serve org/m")[:-1] + "'"
    assert losses(tmp_path, head=head, worker=setup)[1] == [
        f"{tmp_path}/worker: line 1: not run: pip install y: do it in an image, and name that under image.ref"
    ]


def test_a_loss_that_several_files_have_is_named_once_with_the_file_of_its_line(tmp_path: Path) -> None:
    run = f"docker run -d -e MASTER_ADDR=10.0.0.1 --user 1000 --name v {IMAGE} sleep infinity\n"
    serve = "\n\nexport VLLM_HOST_IP=10.0.0.{}\nvllm serve org/m -tp 2 --node-rank {}\n"
    notes, _, _ = losses(tmp_path, run=run, head=serve.format(1, 0), worker=serve.format(2, 1))
    assert [note.removeprefix(f"{tmp_path}/").partition(": left out")[0] for note in notes] == [
        "head: line 4: VLLM_HOST_IP", "run: line 1: MASTER_ADDR", "run: line 1: --user 1000",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"/second: line 2: --seed: 1 in .*/first, 2 in"):
        losses(tmp_path, first=f"{LINE} --seed 1", second=f"\n{LINE} --seed 2", third=f"{LINE} --seed 1")


def test_an_address_of_one_node_is_left_out_with_its_own_line(tmp_path: Path) -> None:
    for count in (1, 2):
        text = (
            f"{COMPOSE.replace('org/m', f'org/m -tp {count}')}    environment:\n      A: b\n      UCX_TCP_X: 10.0.0.1\n"
        )
        notes, _, written = losses(tmp_path, given=text)
        assert notes == [f"{tmp_path}/given: line 7: UCX_TCP_X: left out: sparkd sets what a node's rank needs"]
        assert 'A: "b"' in written or "A: b" in written
    head, worker = (f"{LINE} -tp 2 --node-rank {n}\n".replace("--gpus", f"-e GLOO_X=10.0.0.{n} --gpus") for n in (1, 2))
    notes, _, _ = losses(tmp_path, head=head, worker=f"\n{worker}")
    assert notes == [f"{tmp_path}/head: line 1: GLOO_X: left out: sparkd sets what a node's rank needs"]


def test_what_a_unit_gives_to_the_script_that_it_runs_is_named_as_lost(tmp_path: Path) -> None:
    unit = (
        f"{UNIT}Environment=A=1 B=2\nEnvironmentFile=/etc/x.env\nExecStartPre=/usr/bin/modprobe foo\nExecStart=/x.sh\n"
    )
    for files in ({"unit": unit, "script": f"{LINE}\n"}, {"script": f"{LINE}\n", "unit": unit}):
        notes, missing, _ = losses(tmp_path, **files)
        assert missing == []
        assert notes == [
            f"{tmp_path}/unit: line 5: EnvironmentFile=/etc/x.env: not read: write its variables under env",
            f"{tmp_path}/unit: line 6: ExecStartPre=/usr/bin/modprobe foo: not run: do it on the node, or in an image",
            f"{tmp_path}/unit: line 7: Environment=A B: left out: write what the engine needs of it under env",
        ]


def test_ray_is_named(tmp_path: Path) -> None:
    text = f"docker run {IMAGE} bash -c 'ray start --head && vllm serve org/m --distributed-executor-backend ray'"
    assert "ray start: left out: sparkd joins the nodes itself" in imported(tmp_path, text)[1][0]


def test_a_backend_that_is_not_taken_is_named_where_nodes_would_use_it(tmp_path: Path) -> None:
    ray = "--distributed-executor-backend ray"
    for flags, noted in ((f"-tp 2 {ray}", True), (ray, False), ("-tp 2", False)):
        _, notes, _ = imported(tmp_path, f"{LINE} {flags}")
        assert any(f"{ray}: left out" in note for note in notes) is noted


def test_a_container(tree) -> None:  # type: ignore[no-untyped-def]  # a fixture of files
    own = {"Config": {"Env": ["PATH=/bin"], "Entrypoint": ["vllm", "serve"]}}
    detail = {
        "Id": "a" * 64, "Image": "sha256:1",
        "Config": {"Image": IMAGE, "Entrypoint": ["vllm", "serve"], "Cmd": ["org/m", "--seed", "1"],
                   "Env": ["PATH=/bin", "A=1", f"HF_TOKEN={SECRET}"], "User": "1000:1000"},
        "HostConfig": {"NetworkMode": "bridge", "IpcMode": "private", "ShmSize": 1 << 30, "Memory": 0,
                       "Privileged": False,
                       "Binds": ["/srv/x:/x:ro", "/:/host"], "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}],
                       "Devices": [{"PathOnHost": "/dev/infiniband", "PathInContainer": "/dev/infiniband"}],
                       "DeviceRequests": [{"Driver": "nvidia"}], "CapAdd": None, "SecurityOpt": ["label=disable"],
                       "Tmpfs": {"/tmp": "size=1g", "/t": ""}, "CapDrop": ["ALL"], "ReadonlyRootfs": True,
                       "GroupAdd": ["video"], "PidMode": "host", "ExtraHosts": ["a:1.2.3.4"], "CpusetCpus": "",
                       "PortBindings": {"8000/tcp": [{"HostIp": "", "HostPort": "9000"},
                                                     {"HostIp": "::1", "HostPort": "9001"}], "7/tcp": None}},
    }  # fmt: skip
    tree.dockerd()
    tree.docker("/containers/vllm/json", detail)
    tree.docker("/images/sha256:1/json", own)
    tree.docker(f"/images/{IMAGE}/json", {"Id": "sha256:1"})
    result = import_forms([read_container_form("vllm", Host(tree.root))], (), Place())
    written = tree.root / "m.yaml"
    written.write_text(result.text)
    recipe = load_recipe(str(written), []).recipe
    assert (recipe.args, recipe.env, list(recipe.secrets)) == ({"seed": 1, "port": 9000}, {"A": "1"}, ["HF_TOKEN"])
    assert recipe.container.shm_bytes == 1 << 30
    assert [one.target for one in recipe.container.volumes] == ["/x"]
    assert {note.removeprefix("vllm: line 1: ").partition(": left out")[0] for note in result.notes} == {
        "--volume /:/host", "--user 1000:1000", "--tmpfs /tmp:size=1g", "--tmpfs /t", "--cap-drop ALL",
        "--read-only true", "--group-add video", "--pid host", "--add-host a:1.2.3.4", "--publish [::1]:9001:8000",
        "HF_TOKEN: its value is not taken: put it into /etc/sparkd/hf_token",
    }  # fmt: skip
    stop = result.steps.index("sudo docker update --restart no vllm && sudo docker stop vllm")
    assert result.steps[stop + 1] == "sudo sparkd preflight --dry-run", "which needs its port"
    assert SECRET not in result.text + "".join(result.notes)
    assert not any("docker pull" in step for step in result.steps), "its image is here"
    other = import_forms([read_container_form("vllm", Host(tree.root))], (), Place(image="mine:1"))
    assert any("mine:1: no registry has it" in note for note in other.missing)
    tree.docker(f"/images/{IMAGE}/json", {"Id": "sha256:2"})
    launch, *_ = read_container_form("vllm", Host(tree.root)).launches
    assert launch.notes[0].text.startswith(f"image: {IMAGE} is another image now than the container's 1,")
    with pytest.raises(ConfigError, match="docker has no container other"):
        read_container_form("other", Host(tree.root))
    (tree.root / "run/docker.pid").unlink()
    with pytest.raises(ConfigError, match="docker is not running on this node"):
        read_container_form("vllm", Host(tree.root))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with stdin_of(io.StringIO(f"{LINE}\n")):
        assert main.main(["recipe", "import", "-", "--write", str(tmp_path)]) == 0
    assert load_recipe(str(tmp_path / "m.yaml"), []).recipe.model.repo == "org/m"
    (tmp_path / "bare.sh").write_text("vllm serve org/bare --seed 1\n")
    assert main.main(["recipe", "import", str(tmp_path / "bare.sh")]) == 78
    assert main.main(["recipe", "import", str(tmp_path / "bare.sh"), "--image", IMAGE]) == 0
    assert f"ref: {IMAGE}" in capsys.readouterr().out
    assert main.main(["recipe", "import"]) == 2
    (tmp_path / "other.yaml").write_text(f"recipe_version: '2'\nmodel: o/m\ncontainer: {IMAGE}\n")
    assert main.main(["recipe", "import", str(tmp_path / "other.yaml"), "--image", "r/i:1"]) == 2, "has its own"


@pytest.mark.parametrize("words", [("--service", "engine"), ("--image", IMAGE)])
def test_options_of_one_file_are_refused_for_a_folder_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, str]
) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    out.mkdir()
    (source / "a.yaml").write_text(f"services:\n  engine:\n    image: {IMAGE}\n    command: vllm serve org/m\n")
    (source / "b.yaml").write_text(f"recipe_version: '2'\nmodel: o/m\ncontainer: {IMAGE}\n")
    assert main.main(["recipe", "import", str(source), *words, "--write", str(out)]) == 2
    assert "name that file" in capsys.readouterr().err
    assert not list(out.iterdir())


def missing(folder: Path, text: str) -> list[str]:
    form = read_form(text, folder / "given", {}, owner=os.getuid())
    assert form, "the form is recognised"
    return [note.partition(": ")[2] for note in import_forms([form], (), Place()).missing]


@pytest.mark.parametrize(
    ("options", "command", "is_missing"),
    [
        ("", "bash -c 'pip install x && vllm serve org/m'", True),
        ("", "bash -c 'cd /x; echo up; vllm serve org/m 2>&1 | tee log'", False),
        ("", "bash -c 'vllm serve org/m & curl localhost; wait'", False),
        ("-v named:/t", "vllm serve org/m --chat-template /t/x.jinja", True),
        ("-v named:/t", "vllm serve org/m --chat-template=/t/x.jinja", True),
        ("-v named:/t", "vllm serve org/m --chat-template /other/x.jinja", False),
        ("-v x:/root/.cache/vllm", """--model org/m -cc '{"cache_dir":"/root/.cache/vllm"}'""", False),
        ("-v x:/root/.cache/vllm", "--model org/m --chat-template /root/.cache/vllm/x.jinja", True),
        ("-v x:/hf -e HF_HOME=/hf", f"""--model org/m -sc '{{"model":"/hf/{SNAPSHOT}"}}'""", False),
        ("-v x:/hf -e HF_HOME=/hf", f"--model org/m --speculative-config.model /hf/{SNAPSHOT}", False),
        ("-v x:/hf -e HF_HOME=/hf", f"--model org/m --tokenizer /hf/{SNAPSHOT}", True),
        ("-v x:/hf -e HF_HOME=/hf", """--model org/m -sc '{"model":"/hf/d"}'""", True),
        ("-v hub:/root/.cache/huggingface --env-file x --cpus 4", "vllm serve org/m", False),
    ],
)
def test_a_loss_is_missing_where_the_engine_needs_it(
    options: str, command: str, is_missing: bool, tmp_path: Path
) -> None:
    assert bool(missing(tmp_path, f"docker run {options} {IMAGE} {command}\n")) is is_missing


@pytest.mark.parametrize(
    ("platform", "reason"),
    [
        ("linux/arm64", ""), ("linux/arm64/v8", ""), ("linux/arm64/v9", ""), ("linux/aarch64", ""), ("arm64", ""),
        ("linux/amd64", "a Spark is arm64: name an image for it"), ("linux/386", "a Spark is arm64"),
        ('""', ""), ("linux/amd64 --platform linux/arm64", ""),
        ("linux/amd64 --platform linux/amd64", "a Spark is arm64"), ('"${P:-}"', ""),
    ],
)  # fmt: skip
def test_a_platform_of_another_machine_leads_to_no_endpoint(platform: str, reason: str, tmp_path: Path) -> None:
    line = f"docker run --platform {platform} {IMAGE} --model org/m\n"
    for number, text in ((1, line), (5, f"{COMPOSE}    platform: {platform.rpartition(' ')[2]}\n")):
        losses = missing(tmp_path, text)
        assert len(losses) == bool(reason)
        pattern = f"line {number}: --platform {re.escape(platform.rpartition(' ')[2])}: left out: {reason}"
        assert not reason or re.match(pattern, losses[0])


@pytest.mark.parametrize("platform", ["$P", "linux/$(dpkg --print-architecture)"])
def test_a_platform_that_a_shell_fills_in_is_noted(platform: str, tmp_path: Path) -> None:
    _, notes, text = imported(tmp_path, f"docker run --platform {platform} {IMAGE} --model org/m\n")
    unknown = platform.removeprefix("linux/")
    assert [note.rpartition(": ")[2] for note in notes] == [f"what {unknown} stands for is not known"]
    assert "does not lead to an endpoint" not in text


def test_what_a_compose_file_includes_is_named_as_not_read(tmp_path: Path) -> None:
    _, notes, _ = imported(tmp_path, f"include: [other.yaml]\n{COMPOSE}")
    assert notes == ["line 1: include: not read: write what the engine needs of it into this file"]
    assert imported(tmp_path, f"include: []\n{COMPOSE}")[1] == []


@pytest.mark.parametrize("word", ["{a,b}", "{a..c}", "*", "x?", "$'a\\nb'", '{"a":1,"b":2}', "--x={a,b}", "~/x*"])
def test_a_word_that_bash_expands_is_not_taken_as_it_is(word: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not known"):
        imported(tmp_path, f"docker run {IMAGE} --model {word}\n")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{LINE} --block-size 16 --seed $(id -u)", r"line 1: --seed: left out: what \$\(id -u\) stands for"),
        (f"{LINE} --seed `id` --block-size 16", "line 1: --seed: left out: what `id` stands for"),
        (f"if x; then S=1; fi\n{LINE} --block-size 16 --seed=$S", r"line 2: --seed: .* in \$\{S\} is .* -o S=VALUE"),
        (f"{LINE} --seed $1 --block-size 16", r"line 1: --seed: left out: what \$1 stands for"),
        (f"{LINE} --block-size 16 $MORE", r"line 1: left out: what \$MORE stands for"),
        (f"{LINE} $(cat more) --block-size 16", r"line 1: left out: what \$\(cat more\) stands for"),
        (f"docker run {IMAGE} vllm serve org/m $MORE --block-size 16", r"line 1: left out: what \$MORE stands for"),
        (f"docker run {IMAGE} bash -c \"vllm serve org/m --block-size 16 --seed $S\"",
         r"line 1: --seed: left out: what \$S stands for in \$S is not known: write its value, or give -o S=VALUE"),
        (f"{LINE} --seed {{a,b}} --block-size 16", "line 1: --seed: left out: what {a,b} stands for"),
        (f"{LINE} --block-size 16 --seed <n>", "line 1: --seed: left out: what <n> stands for"),
        (f"F=(--block-size 16)\nif x; then F+=(--seed 1); fi\n{LINE} ${{F[@]}}",
         r"line 3: left out: what \$\{F\[@\]\} stands for"),
        (f"docker run --gpus all ${{G[@]}} {IMAGE} --model org/m --block-size 16",
         r"line 1: left out: what \$\{G\[@\]\} stands for is not known: write it"),
        (f"{UNIT}ExecStart=/usr/bin/{LINE} --block-size 16 --seed %i\n",
         "line 4: --seed: left out: what %i stands for"),
        (COMPOSE.replace("org/m", "org/m --block-size 16 --seed ${S}"), r"line 4: --seed: .* -o S=VALUE"),
    ],
)  # fmt: skip
def test_a_flag_with_a_value_that_is_not_known_is_missing_and_the_rest_taken(
    text: str, reason: str, tmp_path: Path
) -> None:
    assert imported(tmp_path, text)[0].args == {"block-size": 16}
    (line,) = missing(tmp_path, text)
    assert re.search(reason, line)


def test_words_behind_a_switch_are_not_its_value(tmp_path: Path) -> None:
    text = f"{LINE} --trust-remote-code $MORE"
    assert imported(tmp_path, text)[0].args == {"trust-remote-code": True}
    assert ["left out: what $MORE" in line for line in missing(tmp_path, text)] == [True]


@pytest.mark.parametrize(
    ("text", "line", "block"),
    [
        (f"f() {{\n  {LINE}\n}}\nf\n", 2, 1),
        (f"\nif true; then\n{LINE}\nfi", 3, 2),
        (f"while true; do {LINE}; done", 1, 1),
        (f"docker run --entrypoint bash {IMAGE} -c 'if [ a ]; then vllm serve org/m; fi'", 1, 1),
        (f"if x; then docker create redis; fi\n{LINE}", 0, 0),
    ],
)  # fmt: skip
def test_what_a_condition_starts_is_taken_and_the_condition_noted(
    text: str, line: int, block: int, tmp_path: Path
) -> None:
    recipe, notes, _ = imported(tmp_path, text)
    assert not missing(tmp_path, text)
    text = f"line {line}: what begins in line {block} decides whether it runs: taken as if it does"
    assert (recipe.model.repo, notes[:1]) == ("org/m", [text] if line else [])


def test_a_launcher_before_exec_is_none_of_the_image(tmp_path: Path) -> None:
    recipe, _, _ = imported(tmp_path, "/x/launch-cluster.sh -t i -e A=1 exec vllm serve org/m", image=IMAGE)
    assert (recipe.env, recipe.image.entrypoint, recipe.image.ref) == ({"A": "1"}, ("vllm", "serve"), IMAGE)


def test_variables_that_env_sets_in_the_container_are_taken(tmp_path: Path) -> None:
    line = f"docker run -e A=1 -e TIKTOKEN_ENCODINGS_BASE=/x {IMAGE} env B=2 C=x=y nice --adjust=5 vllm serve org/m\n"
    recipe, notes, _ = imported(tmp_path, line)
    assert recipe.env == {"A": "1", "TIKTOKEN_ENCODINGS_BASE": "/x", "B": "2", "C": "x=y"}
    assert (recipe.image.entrypoint, notes) == (("nice", "--adjust=5", "vllm", "serve"), [])


@pytest.mark.parametrize(
    "folder",
    [
        '$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)',
        '$(cd "$(dirname "$0")" && pwd)',
        "$(cd $(dirname $0) && pwd -P)",
    ],
)
def test_the_folder_of_a_script_is_known(folder: str, tmp_path: Path) -> None:
    recipe, _, _ = imported(tmp_path, f'D="{folder}"\ndocker run -v "$D/t:/t:ro" {IMAGE} --model org/m')
    assert recipe.container.volumes[0].source == f"{tmp_path}/0/t"


def test_a_unit_knows_the_home_and_leaves_the_rest_of_systemd_open(tmp_path: Path) -> None:
    line = f"docker run --cidfile=%t/x -v %h/t:/t:ro {IMAGE} --model org/m --served-model-name 5%%"
    recipe, notes, _ = imported(tmp_path, f"{UNIT}ExecStart=/usr/bin/{line}\n")
    assert (recipe.container.volumes[0].source, recipe.model.served_name) == (f"{Path.home()}/t", "5%")
    assert notes == ["line 4: --cidfile %t/x: left out: what %t stands for is not known"]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("'{a,b}'", "{a,b}"),
        ('"*"', "*"),
        ("$'a b'", "a b"),
        ('$"a"', "a"),
        ("{a}", "{a}"),
        ("\\*", "*"),
        ("a'?'", "a?"),
        ("'{'a,b}", "{a,b}"),
    ],
)
def test_a_word_that_bash_takes_as_it_is(word: str, value: str, tmp_path: Path) -> None:
    assert imported(tmp_path, f"{LINE} --served-model-name {word}\n")[0].model.served_name == value


def test_a_folder_above_and_an_assigned_home_are_found(tmp_path: Path) -> None:
    text = f"D=~/d\ndocker run -v ../up:/up -v ./x:/x -v $D:/d {IMAGE} --model org/m\n"
    volumes = imported(tmp_path, text)[0].container.volumes
    assert [volume.source for volume in volumes] == [f"{tmp_path}/up", f"{tmp_path}/0/x", f"{Path.home()}/d"]


@pytest.mark.skipif(os.geteuid() != 0, reason="sudo makes its command root's")
@pytest.mark.parametrize(
    "text",
    [
        f"docker run -v ~/t:/t {IMAGE} --model org/m\n",
        f'docker run -v "$HOME/t:/t" {IMAGE} --model org/m\n',
        f"{COMPOSE}    volumes: ['~/t:/t']\n",
        f"{COMPOSE}    volumes: ['${{HOME}}/t:/t']\n",
        f"{UNIT}ExecStart=/usr/bin/docker run -v %h/t:/t {IMAGE} --model org/m\n",
    ],
)
def test_under_sudo_the_home_is_that_of_who_runs_it(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for user, home in (("nobody", pwd.getpwnam("nobody").pw_dir), ("no-such-user", str(Path.home()))):
        monkeypatch.setenv("SUDO_USER", user)
        assert imported(tmp_path, text)[0].container.volumes[0].source == f"{home}/t"
    monkeypatch.setenv("SUDO_USER", "nobody")
    for more in ("User=www-data\n", "[Install]\nWantedBy=multi-user.target\n") if "%h" in text else ():
        assert imported(tmp_path, text + more)[0].container.volumes[0].source == "/root/t"


@pytest.mark.parametrize(
    "text",
    [
        "A=(x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40,
        "A=()\n" + "A+=(x)\n" * 20_000,
        "".join(f"export A{n}=1\n" for n in range(2000)) + "x\n" * 10_000,
        "(" * 100_000,
    ],
)
def test_lists_and_exports_that_grow_end(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too long once it is filled in"):
        imported(tmp_path, f"{text}{LINE}\n")


def test_the_recognition_of_a_long_text_ends(tmp_path: Path) -> None:
    started = unstalled()
    assert read_form("vllm." * 20_000, tmp_path / "given", {}, owner=None) is None
    assert unstalled() - started < 5  # many times as long, where each place is read to the end


@pytest.mark.parametrize("name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_the_token_is_there_before_the_model_is_pulled_with_it(name: str, tmp_path: Path) -> None:
    form = read_form(f"docker run -e {name} {IMAGE} --model org/m\n", tmp_path / "given", {}, owner=None)
    assert form
    steps = import_forms([form], (), Place()).steps
    pull = next(number for number, step in enumerate(steps) if "model pull" in step)
    assert f"/etc/sparkd/{name.lower()}" in steps[pull - 1] and steps[pull - 1].startswith("sudo install")
    assert steps[pull].endswith(f"m.yaml --token-file /etc/sparkd/{name.lower()}")


def test_a_text_that_is_cut_off_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with stdin_of(io.StringIO(f"{LINE} " + "#" * (1 << 20))):
        assert main.main(["recipe", "import", "-"]) == 78
    assert "standard input: is larger" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        f"{UNIT}ExecStartPre=curl -H 'Authorization: Bearer {SECRET}' x\nExecStart={LINE}\n",
        LINE.replace("--gpus", f"--mount type=volume,volume-opt=o=username=u,password={SECRET},target=/x --gpus"),
    ],
)
def test_a_note_on_what_is_left_out_names_no_secret(text: str, tmp_path: Path) -> None:
    _, notes, written = imported(tmp_path, text)
    assert notes and SECRET not in "".join(notes) + written


def test_copies_of_the_engine_are_ranks_as_the_plan_counts_them(tmp_path: Path) -> None:
    assert imported(tmp_path, f"{LINE} --data-parallel-size 2 -tp 2\n")[0].nodes.min == 4


def test_yes_is_text_in_a_compose_file_but_switches_privileged_on(tmp_path: Path) -> None:
    text = f"{COMPOSE}    environment: {{A: yes, B: off, C: true}}\n    init: yes\n    privileged: yes\n"
    recipe = imported(tmp_path, text)[0]
    assert recipe.env == {"A": "yes", "B": "off", "C": "true"}
    assert recipe.container.init and recipe.container.privileged


def test_a_commented_step_is_the_step_itself(tmp_path: Path) -> None:
    form = read_form(LINE, tmp_path / "given", {}, owner=None)
    assert form
    result = import_forms([form], (), Place(Path("/srv/two  blanks")))
    assert all(f". {step}\n" in result.text for step in result.steps)


def test_a_start_with_thousands_of_options_is_refused(tmp_path: Path) -> None:
    options = " ".join(f"-v /a/{number}:/b/{number}" for number in range(1001))
    with pytest.raises(ConfigError, match="line 1: has more than 1000 options"):
        imported(tmp_path, f"docker run {options} {IMAGE} --model org/m\n")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".env", f"A=x{' ' * 100_000}y"),
        ("unit", f"{UNIT}ExecStartPre={'docker ' * 50_000}\nExecStart={LINE}\n"),
        ("assigned", f"{'A=1 ' * 125_000}\n{LINE}\n"),
        ("env", f"{'env ' * 125_000}\n{LINE}\n"),
        ("marks", f"model: o/m\ncontainer: r/i:1\ncommand: vllm serve o/m {chr(0xFDD0) * 45_000}\n"),
        ("nested", f"X={'${A:-$(' * 30_000}{')}' * 30_000}\n{LINE}\n"),
        ("script", f"docker run {' '.join(f'${{A{n}[@]}}' for n in range(20_000))} {IMAGE} --model org/m\n"),
    ],
)
def test_a_large_file_takes_seconds(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    if name == ".env":
        (tmp_path / "given").write_text(COMPOSE)
    started = time.process_time()
    assert main.main(["recipe", "import", str(tmp_path / ("given" if name == ".env" else name))]) in (0, 10, 78)
    assert time.process_time() - started < 2.5  # many times as long, where each place is read to the end


def test_a_file_of_many_services_is_refused(tmp_path: Path) -> None:
    text = "services:\n" + "".join(f"  s{number}: {{image: a}}\n" for number in range(201))
    with pytest.raises(ConfigError, match="line 1: services: more than 200"):
        imported(tmp_path, text)


def test_a_comment_between_options_is_nothing_and_an_unknown_image_is_named(tmp_path: Path) -> None:
    text = f"docker run `# all of it` --gpus all {IMAGE} --model org/m\n"
    assert imported(tmp_path, text)[0].image.ref == IMAGE
    with pytest.raises(ConfigError, match=r"line 2: image: what \$OPTIONS stands for .* -o OPTIONS=VALUE"):
        imported(tmp_path, f"\ndocker run $OPTIONS {IMAGE} --model org/m\n")


SOURCED = {
    "0/a.env": "export P=8001\nT=hf_abcdefghijklmnopqrstuvwxyz\n",
    "0/lib/b.sh": "f() { Q=1; }\nS=$((P * 2))\n",
    "0/lib/env.sh": 'ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"\n. "$ROOT/a.env"\n',
    "0/guarded.env": '[ -n "$DONE" ] && return\nDONE=1\n. ./guarded.env\nP=8001\n',
    "0/open.env": "P=1\n(\n",
    "0/latin.env": "P=1 # \xe4\n",
    "0/large.env": f"P=1 #{'x' * (1 << 16)}\n",
    "0/faulty.env": "P=1\nexport P\nvllm serve org/n\nPASSWORD=abc`SECRETREST\n",
    "0/others.env": "P=1\n",
    "0/bin/activate": "P=1\n. ./none\n",
    "c.env": "P=3\n",
}


@pytest.mark.parametrize(
    ("before", "port", "noted"),
    [
        ("source a.env", 8001, 0),
        ('if [[ -f $D/a.env ]]; then\n  set -a; . "$D/a.env"\n  set +a\nfi', 8001, 0),
        ("[ -f ./a.env ] && . ./a.env", 8001, 0),
        ('if [ -f "a.env" ]; then source a.env; fi', 8001, 0),
        ("f() { . ./a.env; }", None, 1),
        ('[ -f a.env ]\nif [ "$1" = x ]; then . a.env; fi', None, 0),
        ("q && . ./a.env", None, 0),
        (". ./a.env | q", None, 1),
        (". $D/../c.env", None, 1),
        (". $D/lib/none.sh", None, 1),
        ("cd lib && . ./b.sh\nP=$S", None, 0),
        ("P=4; . lib/b.sh; P=$S", 8, 0),
        (". $D/link.env", None, 1),
        (". linked/a.env", None, 1),
        (". lib/env.sh", 8001, 0),
        ('. lib/b.sh; . "$(dirname "${BASH_SOURCE[0]}")/a.env"', 8001, 0),
        (". ./guarded.env", 8001, 1),
        ("P=4; . ./faulty.env", 4, 1),
        ("P=4; . ./open.env", 4, 1),
        ("P=4; . ./latin.env", 4, 1),
        ("P=4; . ./large.env", 4, 1),
        pytest.param("P=4; . ./others.env", 4, 1, marks=pytest.mark.skipif(os.geteuid() != 0, reason="gives a file")),
        pytest.param(f"P=4; . ./{'a' * 256}", 4, 1, id="long name"),
        pytest.param(f"{'. ./a.env; ' * 16}P=4; . ./a.env", 4, 1, id="17 files"),
        ("P=4; . bin/activate", 4, 0),
        ("if [ ! -f a.env ]; then . ./a.env; fi", None, 0),
        ("if [ -f a.env ]; then echo; fi; if q; then . ./a.env; fi", None, 0),
        ("[ -f a.env ] || . ./a.env", None, 0),
        ("if [ -f a.env ] && q; then . ./a.env; fi", None, 0),
        ("if [ -f a.env ]; then echo x; set -o allexport; . ./a.env; fi", 8001, 0),
        ("if [ -f a.env ]; then echo x; else\n . ./a.env; fi", None, 0),
        ("[ -f a.env ] && echo x\nq && . ./a.env", None, 0),
        ("q && [ -f a.env ] && . ./a.env", None, 0),
        ("[ -f a.env ] && (q) && . ./a.env", None, 0),
        ("[ -f a.env ] && set -a || . ./a.env", None, 0),
        ("test -f a.env && set -a && . ./a.env", 8001, 0),
    ],
)
def test_a_file_that_a_script_sources_is_read_if_it_lies_beside_it(
    tmp_path: Path, before: str, port: int | None, noted: int
) -> None:
    for name, text in SOURCED.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text, "latin-1")
    if os.geteuid() == 0:
        os.chown(tmp_path / "0/others.env", 1, 1)
    (tmp_path / "0/link.env").symlink_to("a.env")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/a.env").write_text("P=9\n")
    (tmp_path / "0/linked").symlink_to("../other")
    recipe, notes, text = imported(tmp_path, f'D="$(cd "$(dirname "$0")" && pwd)"\n{before}\n{RUN} --seed $T')
    assert recipe.args.get("port") == port
    assert len([note for note in notes if "not read: give what it sets" in note]) == noted
    assert "hf_abc" not in text
    assert "SECRETREST" not in str(notes)


def test_what_a_sourced_file_starts_has_the_line_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0/a.env").write_text(f"if x; then\n{LINE}\nfi\n")
    assert imported(tmp_path, "docker ps\n\n. ./a.env")[1] == [
        "line 3: what begins in line 3 decides whether it runs: taken as if it does"
    ]


def test_files_that_source_each_other_are_read_16_times_in_all() -> None:
    paths: list[str] = []
    text = "".join(f". /{name}\n" for name in "abcdefgh") + "(\n"

    def read(path: str) -> str:
        paths.append(path)
        return text

    launches = read_script(text, Variables({}), read)
    assert (len(paths), len(launches)) == (16, 8)


def test_a_file_is_not_read_where_a_folder_on_its_way_has_become_a_link(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/a.env").write_text("P=9\n")
    (tmp_path / "given").mkdir()
    (tmp_path / "given/lib").symlink_to("../other")
    with pytest.raises(ConfigError, match="is no regular file"):
        read_owned_file(tmp_path / "given/lib/a.env", str(tmp_path / "given"))
    assert read_owned_file(tmp_path / "other/a.env", str(tmp_path / "other")) == ("P=9\n", os.getuid())


def test_commands_of_compose_beside_an_engine_are_none_of_it(tmp_path: Path) -> None:
    for more in ("logs -f vllm serve", "exec web vllm serve org/n", "run --rm web vllm serve org/n", "up vllm serve"):
        assert imported(tmp_path, f"{LINE}\ndocker compose {more}\n")[0].model.repo == "org/m"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            f"case $1 in\na) {LINE};;\nb)\n{LINE};;\nesac",
            "line 2: vLLM is started by 2 commands, in lines 2, 4: keep one",
        ),
        ("cd x\ndocker compose -f a.yaml --env-file e up -d", "line 2: .*, but runs a.yaml: import that file"),
        ("sudo docker compose run --rm vllm vllm serve m", "line 1: .*, but runs its compose file: import that file"),
    ],
)
def test_what_stays_refused_is_named_with_its_line(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        imported(tmp_path, text)


def test_what_runs_the_module_of_the_server_stays_before_it(tmp_path: Path) -> None:
    module = "python3 -u -m vllm.entrypoints.openai.api_server --model org/m"
    for before, entrypoint in (
        ("taskset -c 5-9 ", ("taskset", "-c", "5-9", "vllm", "serve")),
        ("A=1 ", ("vllm", "serve")),
    ):
        recipe = imported(tmp_path, f"docker run --entrypoint bash {IMAGE} -c '{before}{module}'")[0]
        assert recipe.image.entrypoint == entrypoint


def test_no_tool_builds_an_image_that_a_compose_file_builds_itself(tmp_path: Path) -> None:
    text = COMPOSE.replace(IMAGE, "vllm-node-tf5-mine") + "    build: .\n"
    recipe, notes, _ = imported(tmp_path, text)
    assert recipe.image.build == ""
    assert any("vllm-node-tf5-mine: no registry has it, nor is a build known" in note for note in notes)
