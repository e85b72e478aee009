"""Launches for the rules of lint: flags that are known to serve well, scripts, and what the rules find in them."""

from msgspec.structs import replace

from sparkd.base.vllm.command import first_values, parse_command
from sparkd.base.vllm.flag import SHIPPED, FlagTable
from sparkd.base.vllm.lint import rules
from sparkd.base.vllm.lint.launch import Launch
from sparkd.base.vllm.lint.model import ModelLimits

GOOD: dict[str, str | None] = {
    "gpu-memory-utilization": "0.90",
    "max-model-len": "131072",
    "max-num-seqs": "8",
    "max-num-batched-tokens": "16384",
    "compilation-config": '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}',
    "speculative-config": '{"method":"deepseek_mtp","num_speculative_tokens":2}',
}
LAUNCH = Launch(GOOD, pool_tokens=612_341, model=ModelLimits("deepseek_v4", 1_048_576))
HEAD, WORKER = (0, 2, "10.0.0.1", 29501), (1, 2, "10.0.0.1", 29501)
SERVE = "vllm serve /m -tp 2 --nnodes 2 --master-addr 10.0.0.1 --master-port 29501 --node-rank"
BY_ROLE = f"if [ $RANK = 0 ]; then exec {SERVE} 0\nelse exec {SERVE} 1 --headless; fi"


def launch_without_gpu(words: str, *extra: str, table: FlagTable = SHIPPED) -> Launch:
    """The launch of `vllm serve` with these words. `extra`: flags of a fork, as the recipe names them."""
    argv = words.split()
    given = parse_command(("vllm", "serve", "/m", *argv))
    return Launch(first_values(argv), gpu=False, given=given, extra=extra, vllm=table)


def with_flags(launch: Launch, flags: dict[str, str | None]) -> Launch:
    return replace(launch, flags={**launch.flags, **flags})


def judge(launch: Launch) -> list[str]:
    """Each issue by its rule and its effect: `json blocks`, `eager warns`."""
    return [f"{issue.rule} {'blocks' if issue.blocks else 'warns'}" for issue in rules.find_issues(launch)]
