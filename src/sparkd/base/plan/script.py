"""The launch script that bash runs in the container. Its text contains no secret.

With `executor: ray`, vLLM runs on the head only. The head's container starts Ray's store (GCS) on cluster.master_port,
then the engine, which waits until every node offers its GPU. A worker's container runs Ray's node process (raylet), in
which the head's engine starts a rank.
"""

import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from shlex import quote

from sparkd.base.plan.image_asserts import ASSERT_FAILED, NOT_AS_NEEDED
from sparkd.base.plan.model import Node, Secret

SCRIPT_FILE = "/run/sparkd/private/launch.sh"
"""The file is in a folder of root's. Besides root only the container's user can read it, by the mount."""
SCRIPT_TARGET = "/run/sparkd-launch.sh"
USER_SCRIPT_TARGET = "/run/sparkd-user-script"
SECRETS_TARGET = "/run/sparkd-secrets"
HOSTS_FILE, HOSTS_TARGET = "hosts", "/etc/hosts"
RAY_TOKEN_FILE = "ray-token"  # noqa: S105  # beside the script, for root alone
OBJECT_STORE_BYTES = 256 << 20
"""Ray's shared memory. vLLM does not pass tensors through it, and Ray's default is 30 % of the memory."""
_HEAD = """\
#!/bin/bash
# {title}
# Made by sparkd at every start: changes here are lost.
set -euo pipefail

# One function, so that bash has read all of it before a variable below can change how bash reads.
launch() {{
"""
_HAS_RAY = (
    f'command -v ray >/dev/null || {{ echo "{NOT_AS_NEEDED}: executor: ray, and it has no ray" >&2; '
    f"exit {ASSERT_FAILED}; }}"
)
_CONTINUED = " \\\n    "
_CONFIG = '"${VLLM_CONFIG_ROOT:-${XDG_CONFIG_HOME:-${HOME:-/root}/.config}/vllm}"'


def render_script(
    title: str,
    commands: Iterable[str],
    env: Iterable[tuple[str, str]],
    secrets: Iterable[Secret],
) -> str:
    """A bash script that runs `commands` (lines of bash) with `env` and the secrets in its environment."""
    lines = [f"  export {name}={quote(value)}" for name, value in env]
    for secret in secrets:
        lines.append(f"  {secret.name}=$(<{quote(f'{SECRETS_TARGET}/{secret.name}')})")
        lines.append(f'  : "${{{secret.name}:?the file of this secret is empty}}"')
        lines.append(f"  export {secret.name}")
    lines += [f"  {line}" for line in commands]
    return _HEAD.format(title=" ".join(title.split())) + "\n".join(lines) + "\n}\n\nlaunch\n"


def exec_lines(argv: Iterable[str]) -> list[str]:
    """Bash lines that exec `argv`: quoted, one flag with its values per line."""
    text = "".join((_CONTINUED if word.startswith("--") else " ") + quote(word) for word in argv)
    return [f"exec -- {text.lstrip()}"]


def ray_token(cluster_key: bytes, epoch: str) -> str:
    """A token for one epoch: a node of an earlier epoch cannot join."""
    return hmac.new(cluster_key, f"sparkd ray token 1 {epoch}".encode(), "sha256").hexdigest()


def ray_lines(node: Node, gpus: int, port: int, env: Mapping[str, str], engine: Sequence[str]) -> list[str]:
    """Bash lines that start Ray and, on the head, `engine`. The values of `env` still contain placeholders."""
    address = f"[{node.head_address}]:{port}" if ":" in node.head_address else f"{node.head_address}:{port}"
    # One CPU, because Ray prestarts an idle 90 MB process for each.
    options = _CONTINUED + _CONTINUED.join(
        (
            f"--node-ip-address={node.address}",
            f"--num-gpus={gpus}",
            "--num-cpus=1",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
        )
    )
    if node.is_head:
        names = sorted(name for name, text in env.items() if "{node." in text)
        # vLLM copies the head's variables to all ranks, except those named in this file.
        names_file = f"{_CONFIG}/ray_non_carry_over_env_vars.json"
        write_names = [f"mkdir -p {_CONFIG}", f"echo {quote(json.dumps(names))} >{names_file}"] if names else []
        start = f"ray start --head --port={port} --include-dashboard=false{options}"
        return [_HAS_RAY, *write_names, start, f"export RAY_ADDRESS={address}", *engine]
    # The agent bounds this wait. The rank's output goes to the worker's log, not to the head's.
    return [
        _HAS_RAY,
        f"echo 'waiting for the Ray of {node.head_address} port {port}'",
        f"until (: </dev/tcp/{node.head_address}/{port}) 2>/dev/null; do sleep 1; done",
        "export RAY_LOG_TO_STDERR=1 RAY_BACKEND_LOG_LEVEL=warning",
        f"exec -- ray start --block --address={address}{options}",
    ]
