"""What starts vLLM today, in the forms that people publish for a Spark: imported, and started by the commands shown."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet
from tests.bed import readme
from tests.bed.command import BedError
from tests.bed.conftest import MakeNode
from tests.bed.engine_image import NAME, SITE
from tests.bed.node import Node
from tests.bed.processes import wait_for
from tests.bed.space import REPOSITORY
from tests.bed.sparkd_node import SERVING_SECONDS as STEP_SECONDS
from tests.bed.sparkd_node import SparkdNode
from tests.bed.test_compilers import RUNTIME
from tests.unit import foreign_recipes as foreign

IMAGE, NVIDIA = "sparkd-test/vllm-openai:v1", "sparkd-test/nvidia-vllm:26.01-py3"
"""With vLLM as the entrypoint, and with one that runs any command, as NVIDIA's."""
FORMS, RECIPES = "/root/forms", "/etc/sparkd/recipes"
TOKEN = "a-token-of-the-tests"
SMALL = "--max-model-len 512 --enforce-eager --dtype float32 --gpu-memory-utilization 0.3"
"""For the tiny model on a CPU, where the published ones have figures of a large one."""
PROGRAM = r"^\S*python3\S* (?:-IS )?\S*/vllm serve "
ALIKE = (
    (Path(__file__).parent / "programs/vllm_alike.py", "/opt/vllm-env/bin/vllm"),
    (REPOSITORY / "tests/integration/programs/endpoint_alike.py", "/opt/alike/endpoint_alike.py"),
)
PREPARE = f"""\
set -e
chmod 755 /opt/vllm-env/bin/vllm
echo 'export VIRTUAL_ENV=/opt/vllm-env PATH=/opt/vllm-env/bin:$PATH' >/opt/vllm-env/bin/activate
printf '#!/bin/sh\\n' >/usr/bin/nvidia-container-runtime-hook
chmod 755 /usr/bin/nvidia-container-runtime-hook
python3 -c '{RUNTIME}'
systemctl restart docker
docker run --name made --entrypoint rm {NAME} -r /{SITE}/vllm
docker create --name whole {NAME}
docker commit --change 'ENV VLLM_CPU_KVCACHE_SPACE=1' whole {IMAGE}-real
docker commit --change 'ENV VLLM_CPU_KVCACHE_SPACE=1' --change 'ENTRYPOINT ["env"]' whole {NVIDIA}-real
docker cp /opt/vllm-env/bin/vllm made:/usr/local/bin/vllm
docker cp /opt/alike made:/opt/alike
docker commit --change 'ENTRYPOINT ["vllm","serve"]' --change 'CMD []' made {IMAGE}-alike
docker commit --change 'ENTRYPOINT ["env"]' --change 'CMD []' made {NVIDIA}-alike
docker rm made whole
"""
"""With the hook docker takes --gpus; there is no GPU to give."""
CONFIGURATION = """\
[memory]
contiguous_gib = 0
[preflight]
skip = ["gpu"]
[readiness]
warm = "never"
"""
OF_THE_SYSTEM = {
    "PATH", "HOME", "HOSTNAME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "PWD", "OLDPWD", "SHLVL", "_",
    "VIRTUAL_ENV", "INVOCATION_ID", "SYSTEMD_EXEC_PID", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE",
    "JOURNAL_STREAM", "NVIDIA_VISIBLE_DEVICES",
}  # fmt: skip
"""Variables that no form sets; docker has the last one from --gpus, and a Spark has one GPU."""


class Form(NamedTuple):
    name: str
    file: str
    """Empty: a container."""
    text: str
    served: str = "org/tiny"
    port: int = 8000
    by_hand: str = ""
    """Starts it without sparkd; where it is empty, bash does."""
    options: str = ""
    """Of the import."""
    beside: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    """How each loss begins."""


LOCAL = "line {}: model: no repository is named: it is read from /srv/models/tiny"
HUB = "-v ~/.cache/huggingface:/root/.cache/huggingface"
LINES = (
    Form(
        "line-of-nvidia", "run.txt",
        f"docker run -d --gpus all -p 8000:8000 --ipc=host --ulimit memlock=-1 --ulimit stack=67108864 {HUB} \\\n"
        f'  {NVIDIA} \\\n  vllm serve "org/tiny" -tp 1 --trust-remote-code {SMALL}\n',
        notes=("line 1: --volume /root/.cache/huggingface",),
    ),
    Form(
        "line-with-a-token", "run.txt",
        f"sudo docker run -d --runtime nvidia --gpus '\"device=0\"' --name tiny --restart unless-stopped \\\n"
        f"    --env \"HUGGING_FACE_HUB_TOKEN={TOKEN}\" -e VLLM_LOGGING_LEVEL=DEBUG -p 8356:8356 --shm-size=2g \\\n"
        f"    {HUB} {IMAGE} --model org/tiny --served-model-name tiny-chat --port 8356 {SMALL} \\\n"
        "    --override-generation-config '{\"temperature\": 0.2}'\n",
        served="tiny-chat", port=8356,
        notes=("line 2: HUGGING_FACE_HUB_TOKEN: its value is not taken", "line 3: --volume"),
    ),
    Form(
        "line-with-a-local-model", "run.txt",
        "# the whole machine for one model\n"
        f"docker run -d --privileged --network host --ipc host -e OMP_NUM_THREADS=1 -v /srv/models:/data/models:ro \\\n"
        f"  {IMAGE} --model=/data/models/tiny --host=0.0.0.0 --port=8010 --max_model_len=512 --enforce-eager \\\n"
        "  --dtype=float32 --gpu-memory-utilization=0.3\n",
        served="/data/models/tiny", port=8010,
        notes=("line 2: --privileged: kept", LOCAL.format(2)),
    ),
)  # fmt: skip
COMPOSE_LIST = f"""\
version: "3.8"
services:
  vllm:
    image: {IMAGE}
    container_name: vllm
    restart: unless-stopped
    ipc: host
    ulimits:
      memlock: -1
      stack: 67108864
    ports:
      - "8001:8000"
    volumes:
      - ~/.cache/huggingface:/root/.cache/huggingface
    environment:
      - VLLM_USE_FLASHINFER_MOE_FP4=0
      - TORCH_CUDA_ARCH_LIST=12.1a
    command:
      - --model
      - org/tiny
      - --max-model-len=512
      - --enforce-eager
      - --dtype=float32
      - --gpu-memory-utilization=0.3
      - --limit-mm-per-prompt
      - '{{"image": 0}}'
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: all
              capabilities: [gpu]
    healthcheck:
      test: ["CMD", "curl", "-f", "http://localhost:8000/health"]
      interval: 30s
"""
COMPOSE_ENV = f"""\
services:
  llm:
    image: ${{VLLM_IMAGE:-{NVIDIA}}}
    env_file: .env
    environment:
      HF_TOKEN: ${{HF_TOKEN:?put your token into .env}}
      VLLM_LOGGING_LEVEL: ${{LOG_LEVEL:-INFO}}
    ports: ["${{PORT:-8000}}:8000"]
    shm_size: "2gb"
    gpus: all
    command: >
      vllm serve ${{MODEL:?name a model}}
      --served-model-name ${{ALIAS:-chat}} --host 0.0.0.0 --port 8000
      --max-model-len ${{MAX_LEN:-4096}} --gpu-memory-utilization ${{SHARE}}
      --enforce-eager --dtype float32 ${{EXTRA:+--seed 7}}
"""
COMPOSE_TWO = f"""\
x-gpu: &gpu
  privileged: true
  network_mode: host
  ipc: host
services:
  vllm:
    <<: *gpu
    image: {IMAGE}
    init: true
    volumes: ["./templates:/templates:ro", "hub:/root/.cache/huggingface"]
    environment: {{OMP_NUM_THREADS: 1, NCCL_DEBUG: WARN}}
    entrypoint: ["/bin/bash", "-c"]
    command:
      - >-
        exec vllm serve org/tiny --port 8020 --host 0.0.0.0 --chat-template /templates/plain.jinja {SMALL}
  web:
    image: ghcr.io/open-webui/open-webui:main
    environment: {{OPENAI_API_BASE_URL: "http://localhost:8020/v1"}}
    depends_on: [vllm]
volumes:
  hub:
"""
COMPOSES = (
    Form(
        "compose-with-a-list", "docker-compose.yml", COMPOSE_LIST, port=8001,
        by_hand=f"docker run -d --ipc host --ulimit memlock=-1 --ulimit stack=67108864 "
        f"-e VLLM_USE_FLASHINFER_MOE_FP4=0 -e TORCH_CUDA_ARCH_LIST=12.1a --gpus all {IMAGE} --model org/tiny "
        "--max-model-len=512 --enforce-eager --dtype=float32 --gpu-memory-utilization=0.3 --limit-mm-per-prompt "
        "'{\"image\": 0}'",
        notes=("line 14: --volume",),
    ),
    Form(
        "compose-with-env", "compose.yaml", COMPOSE_ENV, served="tiny-env", port=8030,
        beside={".env": f"# of this node\nMODEL=org/tiny\nALIAS='tiny-env'\nPORT=8030  # free\nSHARE=\"0.3\"\n"
                        f"HF_TOKEN={TOKEN}\nMAX_LEN=512\nEXTRA=yes\n"},
        by_hand=f"docker run -d --shm-size 2g --gpus all -e MODEL=org/tiny -e ALIAS=tiny-env -e PORT=8030 -e SHARE=0.3 "
        f"-e HF_TOKEN={TOKEN} -e MAX_LEN=512 -e EXTRA=yes -e VLLM_LOGGING_LEVEL=INFO {NVIDIA} vllm serve org/tiny "
        "--served-model-name tiny-env --host 0.0.0.0 --port 8000 --max-model-len 512 --gpu-memory-utilization 0.3 "
        "--enforce-eager --dtype float32 --seed 7",
        notes=("line 6: HF_TOKEN: its value is not taken",),
    ),
    Form(
        "compose-of-two-services", "docker-compose.yaml", COMPOSE_TWO, port=8020,
        beside={"templates/plain.jinja": "{% for message in messages %}{{ message['content'] }}{% endfor %}"},
        by_hand="docker run -d --privileged --network host --ipc host --init -v ./templates:/templates:ro "
        f"-e OMP_NUM_THREADS=1 -e NCCL_DEBUG=WARN --entrypoint /bin/bash {IMAGE} -c "
        f"'exec vllm serve org/tiny --port 8020 --host 0.0.0.0 --chat-template /templates/plain.jinja {SMALL}'",
        notes=("line 2: --privileged: kept", "line 10: --volume hub:/root/.cache/huggingface: left out: sparkd"),
    ),
)  # fmt: skip
SCRIPT_LONG = f"""\
#!/usr/bin/env bash
# Serve a small model on this Spark. Usage: ./serve.sh [MODEL] [PORT]
set -euo pipefail

MODEL="${{1:-org/tiny}}"
PORT="${{2:-8040}}"
NAME=vllm-server
IMAGE=${{VLLM_IMAGE:-{IMAGE}}}
CACHE="$HOME/.cache/huggingface"
mkdir -p "$CACHE"

if docker ps -a --format '{{{{.Names}}}}' | grep -q "^${{NAME}}$"; then
  echo "removing the old container"
  docker rm -f "$NAME" >/dev/null
fi
sync; echo 3 | sudo tee /proc/sys/vm/drop_caches >/dev/null || true

DOCKER_ARGS=(--gpus all --ipc=host --ulimit memlock=-1
  -v "$CACHE:/root/.cache/huggingface"   # downloads stay
  -p "$PORT:8000")
VLLM_ARGS=(
  --max-model-len 512 --dtype float32
  --enforce-eager
  --gpu-memory-utilization 0.3
)
echo "serving $MODEL at http://$(hostname):$PORT"
docker run -d --name "$NAME" "${{DOCKER_ARGS[@]}}" \\
  -e "VLLM_LOGGING_LEVEL=${{LOG_LEVEL:-WARNING}}" \\
  ${{VLLM_API_KEY:+-e VLLM_API_KEY="$VLLM_API_KEY"}} \\
  "$IMAGE" --model "$MODEL" "${{VLLM_ARGS[@]}}"

for i in $(seq 1 3); do
  curl -sf "http://localhost:$PORT/health" && break
  sleep 1
done
"""
SCRIPT_EXEC = f"""\
#!/bin/bash
docker stop tiny 2>/dev/null; docker rm tiny 2>/dev/null
docker run -d --name tiny --gpus all --net host --ipc host \\
  -e HF_HUB_OFFLINE=1 -v /srv/models:/models \\
  {NVIDIA} sleep infinity
docker exec -d -e VLLM_LOGGING_LEVEL=INFO tiny bash -c "
  export OMP_NUM_THREADS=1
  cd /tmp
  vllm serve /models/tiny --served-model-name tiny --host 0.0.0.0 --port 8050 {SMALL} > /tmp/vllm.log 2>&1
"
"""
SCRIPT_BARE = f"""\
#!/bin/bash
set -e
cd "$(dirname "$0")"
source /opt/vllm-env/bin/activate
export CUDA_HOME=/usr/local/cuda
export TORCH_CUDA_ARCH_LIST="12.1a"
TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas \\
exec vllm serve /srv/models/tiny \\
  --served-model-name tiny tiny-too \\
  --port 8060 {SMALL} 2>&1
"""
SCRIPTS = (
    Form("script-with-lists", "serve.sh", SCRIPT_LONG, port=8040, notes=("line 27: --volume",)),
    Form("script-with-exec", "launch.sh", SCRIPT_EXEC, served="tiny", port=8050,
         notes=("line 6: not run: cd /tmp", LOCAL.format(6))),
    Form("script-without-docker", "start-vllm.sh", SCRIPT_BARE, served="tiny", port=8060, options=f"--image {IMAGE}",
         notes=("line 8: command: --served-model-name: further names left out: tiny-too", LOCAL.format(8))),
)  # fmt: skip
UNIT_DOCKER = f"""\
[Unit]
Description=vLLM in docker
After=docker.service network-online.target
Requires=docker.service

[Service]
Restart=always
RestartSec=10
TimeoutStartSec=0
Environment="MODEL=org/tiny" "PORT=8070"
ExecStartPre=-/usr/bin/docker stop vllm-unit
ExecStartPre=-/usr/bin/docker rm vllm-unit
ExecStart=/usr/bin/docker run --rm --name vllm-unit --gpus all --ipc=host -p ${{PORT}}:8000 \\
    -e VLLM_LOGGING_LEVEL=INFO \\
    {IMAGE} \\
    --model ${{MODEL}} {SMALL}
ExecStop=/usr/bin/docker stop vllm-unit

[Install]
WantedBy=multi-user.target
"""
UNIT_BARE = f"""\
[Unit]
Description=vLLM server
After=network.target

[Service]
Type=simple
User=root
WorkingDirectory=/srv
Environment="PATH=/opt/vllm-env/bin:/usr/bin:/bin"
Environment=HF_HUB_OFFLINE=1
Environment=OMP_NUM_THREADS=1
ExecStart=/opt/vllm-env/bin/vllm serve /srv/models/tiny --served-model-name tiny --host 0.0.0.0 --port 8080 {SMALL}
Restart=on-failure
LimitMEMLOCK=infinity

[Install]
WantedBy=multi-user.target
"""
START_UNIT = "cp {file} /etc/systemd/system/by-hand.service && systemctl daemon-reload && systemctl start by-hand"
UNITS = (
    Form("unit-with-docker", "vllm.service", UNIT_DOCKER, port=8070, by_hand=START_UNIT),
    Form("unit-without-docker", "vllm.service", UNIT_BARE, served="tiny", port=8080, by_hand=START_UNIT,
         options=f"--image {IMAGE}", notes=("line 12: PATH: left out: the image has its own", LOCAL.format(12))),
)  # fmt: skip
CONTAINER = Form(
    "running", "", "", port=9000,
    by_hand="docker run -d --name running --init --restart always --gpus all --ipc host -p 9000:8000 "
    f"--ulimit memlock=-1 -e VLLM_LOGGING_LEVEL=INFO {HUB} {IMAGE} --model org/tiny {SMALL}",
    notes=("line 1: --volume /root/.cache/huggingface",),
)  # fmt: skip
ALL = (*LINES, *COMPOSES, *SCRIPTS, *UNITS, CONTAINER)
REAL = ("line-of-nvidia", "compose-with-env")
"""Those that vLLM itself serves in every run."""


class Started(NamedTuple):
    flags: Mapping[str, list[str]]
    """And the model under an empty name."""
    env: Mapping[str, str]
    rights: Mapping[str, object]
    """Of its container, if it is in one, what the form sets: HostConfig, as docker has it."""


@pytest.fixture(scope="module")
def spark(make_node: MakeNode, package: Path) -> SparkdNode:
    spark = SparkdNode(make_node("trixie"))
    readme.prepare(spark.node, package)
    spark.install(package)
    spark.node.write("/etc/sparkd/sparkd.toml", CONFIGURATION)
    for source, target in ALIKE:
        spark.node.put(source, target)
    spark.node.sh(PREPARE, timeout=300)
    return spark


@pytest.fixture
def clean(spark: SparkdNode) -> Iterator[SparkdNode]:
    yield spark
    spark.node.sh(
        f"systemctl stop {spark.unit} by-hand; docker rm --force $(docker ps --all --quiet);"
        f"rm -rf {FORMS} {RECIPES}/* /etc/sparkd/conf.d /etc/systemd/system/by-hand.service",
        check=False,
    )
    spark.forget_failures()


def use_images(node: Node, kind: str) -> None:
    for image in (IMAGE, NVIDIA):
        node.run("docker", "tag", f"{image}-{kind}", image)


def look(node: Node) -> Started:
    """At the process that serves."""
    wait_for(lambda: bool(node.pids(PROGRAM)), 30, "the program vllm")
    pid = node.pids(PROGRAM)[0]
    words = node.read(f"/proc/{pid}/cmdline").split("\0")[:-1]
    words = words[words.index("serve") + 1 :]
    model = [] if words[0].startswith("-") else [words.pop(0)]
    flags = foreign.meaning(words)
    named = flags.pop("model", [])
    env = dict(line.partition("=")[::2] for line in node.read(f"/proc/{pid}/environ").split("\0") if "=" in line)
    return Started({**flags, "": model or named}, env, rights(node))


def rights(node: Node) -> dict[str, object]:
    listed = json.loads(node.sh("docker inspect $(docker ps --quiet)", check=False).stdout or "[]")
    host = listed[0]["HostConfig"] if listed else {"Ulimits": []}
    limits = {f"limit {one['Name']}": (one["Soft"], one["Hard"]) for one in host["Ulimits"] or ()}
    given = {name: host.get(name) for name in ("Privileged", "Memory", "IpcMode", "ShmSize")}
    by_default = {"Privileged": False, "Memory": 0, "IpcMode": "private", "ShmSize": 64 << 20}
    return {**limits, **{name: value for name, value in given.items() if value not in (None, by_default[name])}}


def start_by_hand(node: Node, form: Form, folder: str) -> Started:
    use_images(node, "alike")
    command = (form.by_hand or f"setsid bash {form.file} >/dev/null 2>&1 &").replace("{file}", form.file)
    node.sh(f"cd {folder} && {command}")
    return look(node)


def end_by_hand(node: Node) -> None:
    node.sh("systemctl stop by-hand; docker rm --force $(docker ps --all --quiet)", check=False)
    for pid in node.pids(PROGRAM):
        node.kill(pid, 9)
    wait_for(lambda: not node.pids(PROGRAM), 20, "the end of what was started by hand")


def differences(form: Form, ours: Started, theirs: Started) -> list[str]:
    wanted = {name: values for name, values in theirs.flags.items() if name not in ("", "host", "port")}
    wanted["served-model-name"] = [form.served]
    found = [
        f"--{name}: {ours.flags.get(name)} instead of {wanted.get(name)}"
        for name in sorted({*wanted, *ours.flags} - {"", "host", "port"})
        if ours.flags.get(name) != wanted.get(name)
    ]
    found += [
        f"{name}: {ours.env.get(name)} instead of {value}"
        for name, value in theirs.env.items()
        if name not in OF_THE_SYSTEM and ours.env.get(name) != value
    ]
    found += [
        f"{name}: {ours.rights.get(name)} instead of {value}"
        for name, value in theirs.rights.items()
        if ours.rights.get(name) != value
    ]
    return found


def serves(node: Node, form: Form) -> bool:
    request = {"model": form.served, "prompt": "hello", "max_tokens": 4}
    answer = node.post(form.port, "/v1/completions", request, 30)
    return answer.status == 200 and json.loads(answer.body)["usage"]["completion_tokens"] >= 1


def parameters() -> Iterator[ParameterSet]:
    for form in ALL:
        real = form.name in REAL
        yield pytest.param(form, "real" if real else "alike", id=form.name)
        if not real:
            yield pytest.param(form, "real", id=f"{form.name}-real", marks=pytest.mark.whole)


@pytest.mark.parametrize(("form", "engine"), list(parameters()))
def test_a_form_leads_to_an_endpoint(form: Form, engine: str, clean: SparkdNode) -> None:
    node, folder = clean.node, f"{FORMS}/{form.name}"
    node.sh(f"mkdir -p {folder}")
    for name, text in {**({form.file: form.text} if form.file else {}), **form.beside}.items():
        node.write(f"{folder}/{name}", text)
    theirs = start_by_hand(node, form, folder)
    if form.file:
        end_by_hand(node)
    use_images(node, engine)
    what = form.file or f"--container {form.name}"
    done = node.sh(f"cd {folder} && sudo sparkd recipe import {what} {form.options} --write {RECIPES}", check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    notes = [re.sub(r"^[^:]*: ", "", line) for line in done.stderr.splitlines()]
    assert [note[: len(start)] for note, start in zip_longest(notes, form.notes, fillvalue="")] == [*form.notes]
    assert "To an endpoint, in this order:" in done.stdout
    for step in re.findall(r"^  \d+\. (.*)$", done.stdout, re.MULTILINE):
        if not step.startswith(readme.NOT_RUN):
            began = time.monotonic()
            try:
                node.sh(f"cd /root && {step}", timeout=STEP_SECONDS, input=f"{TOKEN}\n")
            except BedError:
                print(node.journal(clean.unit), node.sh("docker logs sparkd-rank0", check=False))
                raise
            print(f"{time.monotonic() - began:5.1f} s  {step}")
    assert serves(node, form)
    ours = look(node)
    assert ours.flags[""] in (["/models/tiny"], ["/srv/models/tiny"])
    assert differences(form, ours, theirs) == []


TRAP = "touch /root/ran"
EVIL_OPTIONS = (
    f"--label 'x=$({TRAP})'", "--label \"$(printf 'e=\\033[2J')\"", f"--env 'A=$({TRAP})'",
    "--env \"$(printf 'B=1\\n2')\"",
    f"--env LD_PRELOAD=/root/forms/trap.so --env HF_TOKEN={TOKEN}", f"--volume \"{FORMS}/evil/\\$({TRAP}):/x\"",
    "--volume /etc:/e --volume /:/host", "--user 65534:65534", "--tmpfs /t:size=1m", f"--workdir '/$({TRAP})'",
    "--hostname evil --restart always --entrypoint sh",
)  # fmt: skip
EVIL_NAMES = (
    "../../images/json",
    "evil/../../info",
    "evil?size=1",
    "evil/archive?path=/",
    "$(touch /root/ran)",
    "\x1b[2J",
    "--all",
)
"""Of no container."""


def everything(node: Node) -> tuple[str, ...]:
    """Files, containers and processes of others than this look."""
    found = "find /etc /root /tmp /dev/shm /var/lib/sparkd /run/sparkd -xdev -printf '%p %i %s %T@ %m\\n' | sort"
    listed = "docker ps --all --format '{{.ID}} {{.State}}'; docker image ls --quiet | sort; docker volume ls | sort"
    return node.sh(found).stdout, node.sh(listed).stdout, " ".join(map(str, node.pids(".")))


def test_nothing_of_a_hostile_container_is_run_and_nothing_is_written(clean: SparkdNode) -> None:
    node = clean.node
    use_images(node, "alike")
    node.sh(f"mkdir -p {FORMS}/evil")
    command = f"{TRAP} & exec vllm serve org/tiny --served-model-name '$({TRAP})' --port 8090 {SMALL}"
    node.sh(f"cd {FORMS} && docker run -d --name evil {' '.join(EVIL_OPTIONS)} {IMAGE} -c {shlex.quote(command)}")
    look(node)
    before = everything(node)
    done = node.run("sparkd", "recipe", "import", "--container", "evil", check=False)
    refused = [node.run("sparkd", "recipe", "import", f"--container={name}", check=False) for name in EVIL_NAMES]
    after = everything(node)
    print(done.stdout, done.stderr)
    assert [one.returncode for one in refused] == [78] * len(refused)
    assert after == before
    for one in (done, *refused):
        assert (one.stdout + one.stderr).replace("\n", "").isprintable()
        assert TOKEN not in one.stdout + one.stderr
    assert done.returncode == 10
    for loss in (
        "--user 65534:65534",
        "--tmpfs /t:size=1m",
        "--volume /:/host",
        "--volume /etc:/e",
        "HF_TOKEN: its value",
    ):
        assert done.stderr.count(f"evil: line 1: {loss}") == 1
