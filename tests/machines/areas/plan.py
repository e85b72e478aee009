"""The plan: flags, environment, a launch script of the user's own."""

from tests.machines.areas.base import MODEL, RECIPE, configured
from tests.machines.fault import Fault
from tests.tree import Tree

from sparkd.agent.preflight.check import Level

SCRIPT = "/root/serve.sh"
SERVE = """\
#!/bin/bash
export VLLM_HOST_IP=10.0.0.{address}
exec vllm serve /models/DeepSeek-V4-Flash --tensor-parallel-size 2 --gpu-memory-utilization 0.90 \\
    --nnodes 2 --node-rank {rank} --master-addr 10.0.0.1 --master-port 29501{more}
"""
OWN_RECIPE = """\
schema: 1
name: own
description: No cache for compiled kernels
extends: deepseek-v4-flash-balanced
caches:
  vllm: /root/elsewhere
"""

ALONE = """\
schema: 1
name: alone
description: On one node
extends: deepseek-v4-flash-balanced
nodes: {min: 1, max: 1}
args: {tensor-parallel-size: 1}
"""


def healthy(tree: Tree, rank: int) -> None:
    config(tree, longest=1_048_576)


def config(tree: Tree, longest: int) -> None:
    """config.json of a model with this longest context."""
    kind = '"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4"'
    tree.file(f"{MODEL}/config.json", f'{{{kind}, "max_position_embeddings": {longest}}}')


def _engine(tree: Tree, more: str, recipe: str = RECIPE) -> None:
    tree.file("/etc/sparkd/sparkd.toml", configured(recipe, more))


def _own_script(tree: Tree, rank: int, more: str = "") -> None:
    _engine(tree, f'script = "{SCRIPT}"')
    tree.file(SCRIPT, SERVE.format(rank=rank, address=2, more=more))


def _forked_workers(tree: Tree) -> None:
    _engine(tree, '[engine.env]\nVLLM_WORKER_MULTIPROC_METHOD = "fork"')


def _twenty_two_compilers(tree: Tree) -> None:
    """ninja's own number on a GB10 (flashinfer-ai/flashinfer issue 3634)."""
    _engine(tree, '[engine.env]\nMAX_JOBS = "22"')


def _json_cut_off(tree: Tree) -> None:
    _engine(tree, "[engine.args]\ncompilation-config = '{\"cudagraph_mode\": FULL'")


def _context_beyond_the_cache(tree: Tree) -> None:
    _engine(tree, "[engine.args]\nmax-model-len = 1048576\nmax-num-seqs = 1")


def _misprinted_flag(tree: Tree) -> None:
    _engine(tree, "[engine.args]\nprefix-caching = true")


def _three_drafts(tree: Tree) -> None:
    _engine(tree, '[engine.args]\nspeculative-config = {method = "deepseek_mtp", num_speculative_tokens = 3}')


def _compiled_at_each_start(tree: Tree) -> None:
    _engine(tree, "", "own")
    tree.file("/etc/sparkd/recipes/own.yaml", OWN_RECIPE)


def _on_one_node(tree: Tree) -> None:
    """ "149 GB model. 128 GB per node. Do the math." (Echo, 27 May 2026); healthy nodes are two that have it."""
    tree.file("/etc/sparkd/sparkd.toml", '[engine]\nrecipe = "alone"')
    tree.file("/etc/sparkd/recipes/alone.yaml", ALONE)


FAULTS = (
    Fault(
        "model-on-one-node",
        _on_one_node,
        Level.BLOCK,
        "model-memory",
        says="weights of 138.8 GiB on each node are 29.3 GiB more than the share of 109.5 GiB",
        also=("fabric-address",),
    ),
    Fault(
        "compilers-beyond-the-memory",
        _twenty_two_compilers,
        Level.WARN,
        "model-memory",
        says="on a cold cache 22 compilers at once (MAX_JOBS) take",
    ),
    Fault("forked-workers", _forked_workers, Level.WARN, "plan-lint", says="ShmRingBuffer"),
    Fault("json-cut-off", _json_cut_off, Level.BLOCK, "plan-lint", says="line 1 column 20"),
    Fault("context-beyond-the-cache", _context_beyond_the_cache, Level.WARN, "plan-lint", says="612341 tokens"),
    Fault(
        "context-beyond-the-model",
        lambda tree: config(tree, longest=65536),
        Level.WARN,
        "plan-lint",
        says="config.json allows 65536",
    ),
    Fault("misprinted-flag", _misprinted_flag, Level.WARN, "plan-lint", says="--enable-prefix-caching"),
    Fault("three-drafts", _three_drafts, Level.WARN, "plan-lint", says="more than 2"),
    Fault("compiled-at-each-start", _compiled_at_each_start, Level.WARN, "compile-cache", says="vllm not kept"),
    Fault(
        "worker-script-without-headless",
        lambda tree: _own_script(tree, rank=1),
        Level.BLOCK,
        "plan-lint",
        says="no --headless",
        rank=1,
        also=("model-memory",),
    ),
    Fault(
        "script-of-another-rank",
        lambda tree: _own_script(tree, rank=0, more=" --headless"),
        Level.BLOCK,
        "plan-lint",
        says="--node-rank 0, this node needs 1",
        rank=1,
        also=("model-memory",),
    ),
)
