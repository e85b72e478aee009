"""The compose file and scripts of field reports become the recipes that sparkd ships of them; what differs is declared.

field-reports has them as the reports print them: indentation and line breaks that a page lost are put back, and nothing
else. A third report, "Two-Node DGX Spark Cluster: Running DeepSeek V4 Flash at 16 TPS", prints no command, only a table
of flags: test_shipped_recipes.py holds it against the recipe that is shipped of it.
"""

from itertools import takewhile
from pathlib import Path

from tests.unit.plans import HEAD, WORKER, flags, shipped
from tests.unit.started_engines import imported

from sparkd.base.config import Settings
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import Node
from sparkd.base.recipes.schema import Recipe, Volume

REPORTS = Path(__file__).parent / "field-reports"
MODEL = "/home/milo/models/DeepSeek-V4-Flash"
NO_TAGS = {"reasoning_parser": "deepseek_v4", "reasoning_start_str": "", "reasoning_end_str": ""}
FORUM = {
    "--reasoning-config": (NO_TAGS, "the page took <think> and </think> as tags of its own: shipped with them"),
    "NCCL_IB_GID_INDEX": ("3", "the author's nodes' own, and it moves: not shipped"),
    "VLLM_NCCL_SO_PATH": ("/opt/env/lib/python3.12/.../libnccl.so.2", "the page cuts it short: not shipped"),
    "PYTORCH_CUDA_ALLOC_CONF": ("expandable_segments:True", "sparkd adds it; shipped as the report measured"),
}
"""What the import has otherwise than the shipped recipe, and why; None is what it lacks."""
BLOG = {
    "program": (["vllm", "serve", MODEL], "the report's own folder of the model; sparkd's is shipped"),
    "volumes": ((Volume(source=MODEL, target=MODEL, read_only=True),), "the same"),
    "privileged": (True, "shipped with RDMA's devices in its place"),
    "devices": ((), "a privileged container has them all"),
    "ulimits": ({}, "another report needed them: shipped"),
    "HF_HUB_OFFLINE": (None, "in the report's section The Recipe, and not in its scripts: shipped"),
    "TRANSFORMERS_OFFLINE": (None, "the same"),
    "PYTORCH_CUDA_ALLOC_CONF": ("expandable_segments:True", "sparkd adds it; shipped as the report measured"),
}


def read_launch(recipe: Recipe, node: Node) -> dict[str, object]:
    """What the node's engine is started with, by name."""
    plan = make_plan(recipe, Settings(), node)
    program = [*takewhile(lambda word: not word.startswith("--"), plan.argv)]
    given = {f"--{name}": value for name, value in flags(plan.argv).items()}
    more = {"program": program, "image": plan.image, "caches": plan.caches, "nodes": recipe.nodes}
    return {**given, **dict(plan.env), **dict(plan.container), **more}


def differences(recipe: Recipe, expected: Recipe) -> dict[str, object]:
    """What the recipe has otherwise on any rank."""
    pairs = [(read_launch(recipe, node), read_launch(expected, node)) for node in (HEAD, WORKER)]
    return {
        name: ours.get(name)
        for ours, theirs in pairs
        for name in ours.keys() | theirs.keys()
        if ours.get(name) != theirs.get(name)
    }


def left_out(notes: list[str]) -> list[str]:
    return [name for name, found, _ in (note.partition(": left out: ") for note in notes) if found]


def test_the_forums_compose_file_with_both_env_files_is_the_shipped_recipe(tmp_path: Path) -> None:
    compose = (REPORTS / "forum-compose.yaml").read_text()
    for number, role in enumerate(("head", "worker")):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / ".env").write_text((REPORTS / f"forum-{role}.env").read_text())
    conversion = imported(tmp_path, compose, compose)
    expected = shipped("deepseek-v4-flash-b12x-1m")
    assert differences(conversion.recipe, expected) == {name: value for name, (value, _) in FORUM.items()}
    assert conversion.recipe.model == expected.model
    assert conversion.missing == []
    assert left_out(conversion.notes) == [
        "line 15: --volume /home/user/.cache/huggingface:/cache/huggingface",
        "line 30: NCCL_IB_HCA",
        "line 31: NCCL_SOCKET_IFNAME",
        "line 37: NODE_RANK",
        "line 38: HEADLESS",
        "line 39: MASTER_ADDR",
    ]


def test_the_reports_docker_run_and_both_scripts_are_the_shipped_recipe(tmp_path: Path) -> None:
    commands, head = ((REPORTS / f"blog-{name}.sh").read_text() for name in ("commands", "head"))
    # The report prints what differs: "Identical to head, except two lines".
    worker = head.replace("192.168.1.11", "192.168.1.12").replace("--node-rank 0", "--node-rank 1").rstrip()
    conversion = imported(tmp_path, commands, head, f"{worker} \\\n--headless\n")
    expected = shipped("deepseek-v4-flash-latency")
    assert differences(conversion.recipe, expected) == {name: value for name, (value, _) in BLOG.items()}
    assert conversion.missing == [f"line 17: model: no repository is named: put it into {MODEL}"]
    assert left_out(conversion.notes) == [
        f"line 6: --volume {Path.home()}/.cache/vllm:/root/.cache/vllm",
        f"line 7: --volume {Path.home()}/.cache/flashinfer:/root/.cache/flashinfer",
        "line 17: VLLM_HOST_IP",
        "line 17: NCCL_SOCKET_IFNAME",
        "line 17: NCCL_IB_HCA",
        "line 17: GLOO_SOCKET_IFNAME",
    ]
