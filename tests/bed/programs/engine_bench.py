"""The same load by sparkd, by `vllm bench serve` in a container of the engine's image, and by sparkd again.

engine_bench.py RUNS PROMPT_TOKENS ANSWER_TOKENS: requests one after the other, RUNS of them each time. Prints one line
of JSON: sparkd's figure and that of vLLM, by name.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from itertools import chain
from shlex import join

sys.path[:0] = ["/usr/lib/sparkd/app", "/usr/lib/sparkd/vendor"]
from sparkd.agent.actions.container_bodies import program_body  # noqa: E402  # only here can it be found
from sparkd.agent.actions.dockerd import Containers  # noqa: E402
from sparkd.tools.measure.bench import Prompts, send  # noqa: E402
from sparkd.tools.measure.figures import Reply, summarise  # noqa: E402
from sparkd.tools.node.served import Served, open_endpoint  # noqa: E402

RESULT = "/tmp/result.json"
SECONDS = 200


async def measure(served: Served, runs: int, prompt_tokens: int, answer_tokens: int) -> list[Reply]:
    """Requests kept running until all are answered, as `vllm bench serve` does."""
    prompts = Prompts(time.time_ns())
    await prompts.calibrate(served.endpoint)
    await send(served.endpoint, [prompts.make(prompt_tokens)], 4, 1, 0)
    texts = [prompts.make(prompt_tokens) for _ in range(runs)]
    return await send(served.endpoint, texts, answer_tokens, 1, 0)


def run_vllm(served: Served, runs: int, prompt_tokens: int, answer_tokens: int) -> dict[str, float]:
    """The program's result file."""
    plan = served.node.plan
    options = {
        "--backend": "openai",
        "--base-url": f"http://{plan.api_host}:{plan.api_port}",
        "--endpoint": "/v1/completions",
        "--model": plan.argv[len(plan.entrypoint)],
        "--served-model-name": plan.served_name,
        "--dataset-name": "random",
        "--random-input-len": str(prompt_tokens),
        "--random-output-len": str(answer_tokens),
        "--num-prompts": str(runs),
        "--max-concurrency": "1",
        "--num-warmups": "1",
        "--temperature": "0",
        "--seed": str(time.time_ns() % (1 << 31)),
        "--percentile-metrics": "ttft,tpot,e2el",
        "--result-dir": "/tmp",
        "--result-filename": RESULT.rpartition("/")[2],
    }
    words = ["vllm", "bench", "serve", "--ignore-eos", "--save-result", *chain.from_iterable(options.items())]
    program = "\n".join(["set -e", "exec 2>&1", "cd /tmp", join(words), f"echo; cat {RESULT}"])
    body = program_body(served.rank.image_id, program, {})
    mounts = [
        {"Type": "bind", "Source": volume.source, "Target": volume.target, "ReadOnly": True}
        for volume in plan.container.volumes
    ]
    limits = body["HostConfig"]
    assert isinstance(limits, dict)
    network = {"NetworkDisabled": False, "HostConfig": {**limits, "NetworkMode": "host", "Mounts": mounts}}
    code, log = Containers().run_program({**body, **network}, "engine-bench", SECONDS)
    if code:
        raise SystemExit(log)
    result: dict[str, float] = json.loads(log.strip().splitlines()[-1])
    return result


def main() -> None:
    runs, prompt_tokens, answer_tokens = map(int, sys.argv[1:])
    load = (runs, prompt_tokens, answer_tokens)
    with open_endpoint(1) as served, asyncio.Runner() as runner:
        before = runner.run(measure(served, *load))
        vllm = run_vllm(served, *load)
        # sparkd's batches before and after: a drift counts in neither direction.
        own = summarise(1, "static", (before, runner.run(measure(served, *load))))
    assert own.output_tokens_per_second, own
    assert own.request_seconds, own
    figures = {
        "output_tokens_per_second": (own.output_tokens_per_second.median, vllm["output_throughput"]),
        "request_seconds": (own.request_seconds.median, vllm["median_e2el_ms"] / 1000),
    }
    print(json.dumps(figures))


main()
