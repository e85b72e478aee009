"""Imported recipes beside the tools that they are written for: sparkrun's beside sparkrun itself, which fills them in
as for a DGX Spark, and eugr's beside Python's own `str.format` and bash, by the rules of his run-recipe.py."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.bed import sparkrun_tool
from tests.bed.sparkrun_tool import Answer
from tests.unit import foreign_recipes as foreign

from sparkd.base.config import Settings
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import LaunchPlan, Node
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.schema import Container
from sparkd.tools.importers import convert

COUNT = 150
"""Recipes of each tool."""
FABRIC, RDMA = "eth1", "mlx5_0"
MODELS = str(Settings().engine.models_dir)
"""The folder that the plan mounts."""
LEFT_OUT = {
    "HF_HUB_OFFLINE": "sparkd mounts the model and passes its folder",
    "TRANSFORMERS_OFFLINE": "as HF_HUB_OFFLINE",
    "RAY_memory_monitor_refresh_ms": "Ray's, and the ranks meet without it",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "as the one before",
    foreign.SECRET: "a secret: the import leaves it out and says so",
}
"""Variables that the import leaves out, each with its reason."""
ADDED = {
    **foreign.ADDED,
    "NCCL_CUMEM_ENABLE": "sparkrun's on several nodes without Ray, as here; on one it changes nothing",
}


ON_EACH_NODE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""Variables that both launchers set on every node."""


def on_several_nodes(rank: int) -> dict[str, str]:
    """Variables that both launchers set for the network between the nodes."""
    interfaces = dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), FABRIC)
    # Both leave the `=` out, which makes it a whole name.
    return {"VLLM_HOST_IP": f"10.0.0.{rank + 1}", "NCCL_IB_HCA": RDMA, "NCCL_SOCKET_IFNAME": f"={FABRIC}", **interfaces}


def plans(folder: Path, made: foreign.Made) -> list[LaunchPlan]:
    """The plan of each rank of the imported recipe."""
    foreign_file = folder / "given.yaml"
    foreign_file.write_text(made.text)
    imported_file = folder / "written.yaml"
    imported_file.write_text(convert.import_file(foreign_file, made.overrides).text)
    # sparkrun_tool renders one command a node, as without Ray.
    recipe = load_recipe(str(imported_file), []).recipe.model_copy(update={"executor": "mp"})
    size = recipe.nodes.min
    nodes = [Node(rank, f"10.0.0.{rank + 1}", "10.0.0.1", size, FABRIC, (RDMA,)) for rank in range(size)]
    return [make_plan(recipe, Settings(), node) for node in nodes]


def differences(
    made: foreign.Made, ranks: Sequence[LaunchPlan], commands: Sequence[str], env: Mapping[str, str]
) -> list[str]:
    """Differences between what each rank runs and the tool's `commands`, one for each node, and `env`."""
    if len(ranks) != len(commands):
        return [f"{len(ranks)} nodes instead of {len(commands)}"]
    differing = []
    for rank, (plan, command) in enumerate(zip(ranks, commands, strict=True)):
        _, model, *words = foreign.words_by_bash(command)
        ours, theirs = foreign.meaning(list(plan.argv[3:])), foreign.meaning(words)
        theirs.setdefault("served-model-name", [made.model])
        if model != made.model or plan.argv[:2] != ("vllm", "serve") or Path(plan.argv[2]).name != Path(model).name:
            differing.append(f"rank {rank}: serves {plan.argv[:3]}, not {model}")
        differing += [
            f"rank {rank}: --{name} {ours.get(name)} instead of {theirs.get(name)}"
            for name in sorted({*ours, *theirs})
            if ours.get(name) != theirs.get(name)
        ]
        actual, expected = dict(plan.env), {**ON_EACH_NODE, **(on_several_nodes(rank) if commands[1:] else {}), **env}
        declared = (LEFT_OUT.keys() - actual) | (ADDED.keys() - expected)
        differing += [
            f"rank {rank}: {name}={actual.get(name)} instead of {expected.get(name)}"
            for name in sorted({*actual, *expected} - declared)
            if actual.get(name) != expected.get(name)
        ]
    return differing


def sparkrun_rights(executor: Mapping[str, object], ranks: int) -> dict[str, object]:
    """The rights that sparkrun gives the container, without the fabric's device where one node serves."""
    devices = [re.sub(":.*", "", str(device)) for device in as_list(executor["devices"])]
    limits = dict(str(limit).split("=") for limit in as_list(executor["ulimit"]))
    gibibytes = re.fullmatch(r"(\d+)gb?", str(executor["shm_size"]))
    assert gibibytes
    return {
        "privileged": executor["privileged"],
        "no_new_privileges": "no-new-privileges" in as_list(executor["security_opt"]),
        "ipc": executor["ipc"],
        "shm_bytes": int(gibibytes[1]) << 30,
        "devices": tuple(devices) if ranks > 1 or devices != ["/dev/infiniband"] else (),
        "ulimits": {name: (int(text.split(":")[0]), int(text.split(":")[-1])) for name, text in limits.items()},
        "volumes": [volume(str(text)) for text in as_list(executor["volumes"])],
    }


def volume(text: str) -> tuple[str, str, bool]:
    source, target, mode, *_ = [*text.split(":"), "", ""]
    return source, target or source, mode == "ro"


def as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def plan_rights(container: Container) -> dict[str, object]:
    """The rights that the plan gives the container."""
    return {
        **{name: getattr(container, name) for name in ("privileged", "ipc", "shm_bytes", "devices")},
        "no_new_privileges": container.keeps_rights,
        "ulimits": {name: (limit.soft, limit.hard) for name, limit in container.ulimits.items() if limit},
        "volumes": [
            (mount.source, mount.target, mount.read_only) for mount in container.volumes if mount.source != MODELS
        ],
    }


def test_sparkruns_recipes_run_as_sparkrun_runs_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = [foreign.sparkrun(seed) for seed in range(COUNT)]
    options = [[f"{name}={value}" for name, value in recipe.overrides.items()] for recipe in made]
    answers = sparkrun_tool.render([(recipe.text, words) for recipe, words in zip(made, options, strict=True)])
    pairs = enumerate(zip(made, answers, strict=True))
    report(capsys, "sparkrun 0.4.2", {seed: compare_with_sparkrun(tmp_path, *pair) for seed, pair in pairs})


def compare_with_sparkrun(folder: Path, made: foreign.Made, answer: Answer) -> list[str]:
    if "error" in answer:
        return [f"sparkrun refuses it: {answer['error']}"]
    ranks = plans(folder, made)
    differing = differences(made, ranks, answer["commands"], answer["env"])
    ours, theirs = plan_rights(ranks[0].container), sparkrun_rights(answer["executor"], len(ranks))
    if ours != theirs:
        differing.append(f"container {ours} instead of {theirs}")
    return differing + [f"image {plan.image}" for plan in ranks if plan.image != answer["image"]]


def test_eugrs_recipes_run_as_his_rules_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report(capsys, "eugr's rules", {seed: compare_with_eugr(tmp_path, foreign.eugr(seed)) for seed in range(COUNT)})


def compare_with_eugr(folder: Path, made: foreign.Made) -> list[str]:
    ranks = plans(folder, made)
    rendezvous = f"--nnodes {len(ranks)} --master-addr 10.0.0.1 --master-port 29501"
    command = made.command.rstrip().rstrip("\\")
    # A comment at the end takes the launcher's words with it; sparkd's own come all the same.
    commands = [f"{command} {rendezvous} --node-rank {rank}{' --headless' * (rank > 0)}" for rank in range(len(ranks))]
    differing = differences(made, ranks, commands, made.env)
    if not (ranks[0].container.privileged and ranks[0].container.ipc == "host"):
        differing.append("its launcher runs it privileged, with the host's ipc")
    return differing


def report(capsys: pytest.CaptureFixture[str], tool: str, reasons: Mapping[int, list[str]]) -> None:
    """Print how many recipes run the same, and fail with those that do not. `reasons`: by the recipe's seed."""
    differing = {seed: texts for seed, texts in reasons.items() if texts}
    same = len(reasons) - len(differing)
    with capsys.disabled():
        print(f"\n{tool}: {same} of {len(reasons)} recipes run the same words, variables and rights")
    assert differing == {}
