"""The forms in which people publish for a Spark what starts vLLM: lines, compose files, scripts, units, a container."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

IMAGE, NVIDIA = "sparkd-test/vllm-openai:v1", "sparkd-test/nvidia-vllm:26.01-py3"
"""With vLLM as the entrypoint, and with one that runs any command, as NVIDIA's."""
TOKEN = "a-token-of-the-tests"
SMALL = "--max-model-len 512 --enforce-eager --dtype float32 --gpu-memory-utilization 0.3"
"""For the tiny model on a CPU, where the published ones have figures of a large one."""


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
         notes=(LOCAL.format(8),)),
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
REAL = ("compose-with-env",)
"""What vLLM itself serves in every run."""
