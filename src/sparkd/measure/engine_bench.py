"""The engine's own measurement, `vllm bench serve`: the program that a container of its image runs, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import join, quote
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from sparkd.lib.text import GIB, sanitize, size
from sparkd.plan.script import SECRETS_TARGET
from sparkd.vllm.args import API_KEY
from sparkd.vllm.flag import first_values

if TYPE_CHECKING:
    from sparkd.measure.bench import Wanted
    from sparkd.plan.model import LaunchPlan

RESULT = "/tmp/result.json"  # noqa: S108 - the container's own
SECONDS = 1800
MEMORY_BYTES = 3 * GIB
"""At most: the program imports torch, and holds its prompts and their answers. It makes no tensor."""
TOKENIZER_FLAGS = ("tokenizer-mode", "trust-remote-code")
"""Of the engine: how it reads the model's tokenizer."""
FAULT_LIMIT = 300


class EngineFigures(Struct, frozen=True):
    """Of the program's result file; times are medians."""

    completed: int
    output_throughput: float
    median_ttft_ms: float
    median_tpot_ms: float
    median_e2el_ms: float


def render_program(plan: LaunchPlan, wanted: Wanted, concurrency: int) -> str:
    """Bash, whose last line of output is the result."""
    *start, last = plan.entrypoint or ("vllm", "serve")
    address = f"[{plan.api_host}]" if ":" in plan.api_host else plan.api_host
    options = {
        "--backend": "openai",
        "--base-url": f"http://{address}:{plan.api_port}",
        "--endpoint": "/v1/completions",
        "--model": plan.argv[len(plan.entrypoint) + (2 if plan.user_script else 0)],
        "--served-model-name": plan.served_name,
        "--dataset-name": "random",
        "--random-input-len": str(wanted.prompt_tokens),
        "--random-output-len": str(wanted.answer_tokens),
        "--num-prompts": str(concurrency * wanted.runs),
        "--max-concurrency": str(concurrency),
        "--num-warmups": str(concurrency),
        "--temperature": "0",
        "--seed": str(wanted.seed % (1 << 31)),
        "--percentile-metrics": "ttft,tpot,e2el",
        "--result-dir": "/tmp",  # noqa: S108 - as above
        "--result-filename": RESULT.rpartition("/")[2],
    }
    words = [*(start if last == "serve" and start else ["vllm"]), "bench", "serve", "--ignore-eos", "--save-result"]
    words += [word for pair in options.items() for word in pair]
    given = first_values(plan.argv)
    for flag in TOKENIZER_FLAGS:
        if flag in given:
            words += [f"--{flag}", *filter(None, [given[flag]])]
    lines = ["set -eo pipefail", "exec 2>&1", "cd /tmp"]  # one stream: docker keeps no order between two
    if any(one.name == API_KEY for one in plan.secrets):
        lines.append(f'OPENAI_API_KEY="$(cat {quote(f"{SECRETS_TARGET}/{API_KEY}")})"; export OPENAI_API_KEY')
    return "\n".join([*lines, join(words), f"echo; cat {RESULT}"])


def program_mounts(plan: LaunchPlan) -> Mapping[str, str]:
    """Of the node, by their place in the container: the volumes, one of which has the tokenizer, and the key's file."""
    volumes = {volume.target: volume.source for volume in plan.container.volumes}
    return volumes | {f"{SECRETS_TARGET}/{one.name}": one.file for one in plan.secrets if one.name == API_KEY}


def find_lack(available_bytes: int, floor_bytes: int) -> str:
    """Why the program must not run beside the engine, which the memory guard would end; empty where it may."""
    need_bytes = MEMORY_BYTES + 2 * floor_bytes  # the guard acts below twice its floor, where work is stalled
    if available_bytes >= need_bytes:
        return ""
    return f"{size(available_bytes)} of memory available, {size(need_bytes)} needed for `vllm bench serve`"


def parse_output(code: int, log: str) -> EngineFigures:
    """Raises ValueError with the reason where there is no result."""
    lines = [line for line in log.splitlines() if line.strip()] or [""]
    if code == 0:
        try:
            return msgspec.json.decode(lines[-1], type=EngineFigures)
        except (msgspec.MsgspecError, RecursionError):
            pass
    raise ValueError(f"vllm bench serve, exit code {code}: {sanitize(lines[-1], FAULT_LIMIT)}")
