"""A recipe whose engine takes so many seconds for each piece of a long prompt, as on a slow machine."""

from random import randrange

from .sparkd_node import SparkdNode

PIECES = """\
import time
from vllm.v1.core.sched.scheduler import Scheduler
class Slow(Scheduler):
    def schedule(self, *args, **kwargs):
        time.sleep({seconds} * any(one.num_prompt_tokens > 100 for one in self.requests.values()))
        return super().schedule(*args, **kwargs)
"""
RECIPE = """\
schema: 1
name: slow
extends: {extends}
args: {{max-num-batched-tokens: 32, max-num-seqs: 4, scheduler-cls: pieces.Slow, async-scheduling: false}}
env: {{PYTHONPATH: /pieces}}
container: {{volumes: ["/srv/pieces:/pieces:ro"]}}
"""


def prompt() -> list[int]:
    """Thirteen pieces of 32 tokens, one or two more beside other requests; at random, as vLLM keeps those it knows."""
    return [randrange(100, 190) for _ in range(400)]


def write(member: SparkdNode, extends: str, seconds: float) -> None:
    """The recipe `slow`, which is to be configured next."""
    member.node.write("/srv/pieces/pieces.py", PIECES.format(seconds=seconds))
    member.node.write("/etc/sparkd/recipes/slow.yaml", RECIPE.format(extends=extends))
