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
"""Of each tool's recipes."""
FABRIC, RDMA = "eth1", "mlx5_0"
MODELS = str(Settings().engine.models_dir)
"""Which the plan mounts."""
OF_SPARKD = {
    "HF_HUB_OFFLINE": "sparkd mounts the model and passes its folder",
    "TRANSFORMERS_OFFLINE": "as HF_HUB_OFFLINE",
    "RAY_memory_monitor_refresh_ms": "Ray's, and the ranks meet without it",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "as the one before",
    "NCCL_CUMEM_ENABLE": "without meaning on one node, and of sparkrun's other runtimes",
    foreign.SECRET: "a secret: the import leaves it out and says so",
}
"""Variables that may differ, each with its reason."""


ON_EACH_NODE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""Of both launchers."""


def on_several_nodes(rank: int) -> dict[str, str]:
    """What both launchers set of the network between the nodes."""
    interfaces = dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), FABRIC)
    # Both leave the `=` out, which makes it a whole name.
    return {"VLLM_HOST_IP": f"10.0.0.{rank + 1}", "NCCL_IB_HCA": RDMA, "NCCL_SOCKET_IFNAME": f"={FABRIC}", **interfaces}


def plans(folder: Path, made: foreign.Made) -> list[LaunchPlan]:
    """Of every rank of the imported recipe."""
    path = folder / "given.yaml"
    path.write_text(made.text)
    written = folder / "written.yaml"
    written.write_text(convert.import_file(path, made.overrides).text)
    # sparkrun_tool renders one command a node, as without Ray.
    recipe = load_recipe(str(written), []).recipe.model_copy(update={"executor": "mp"})
    size = recipe.nodes.min
    nodes = [Node(rank, f"10.0.0.{rank + 1}", "10.0.0.1", size, FABRIC, (RDMA,)) for rank in range(size)]
    return [make_plan(recipe, Settings(), node) for node in nodes]


def differences(
    made: foreign.Made, found: Sequence[LaunchPlan], commands: Sequence[str], env: Mapping[str, str]
) -> list[str]:
    """Of what each rank runs. `commands`: one for each node of the tool."""
    if len(found) != len(commands):
        return [f"{len(found)} nodes instead of {len(commands)}"]
    differing = []
    for rank, (plan, command) in enumerate(zip(found, commands, strict=True)):
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
        given, wanted = dict(plan.env), {**ON_EACH_NODE, **(on_several_nodes(rank) if commands[1:] else {}), **env}
        differing += [
            f"rank {rank}: {name}={given.get(name)} instead of {value}"
            for name, value in wanted.items()
            if name not in OF_SPARKD and given.get(name) != value
        ]
    return differing


def rights(executor: Mapping[str, object], ranks: int) -> dict[str, object]:
    """What sparkrun gives the container, less the device of the fabric on one node."""
    devices = [re.sub(":.*", "", str(one)) for one in as_list(executor["devices"])]
    limits = dict(str(one).split("=") for one in as_list(executor["ulimit"]))
    gibibytes = re.fullmatch(r"(\d+)gb?", str(executor["shm_size"]))
    assert gibibytes
    return {
        "privileged": executor["privileged"],
        "no_new_privileges": "no-new-privileges" in as_list(executor["security_opt"]),
        "ipc": executor["ipc"],
        "shm_bytes": int(gibibytes[1]) << 30,
        "devices": tuple(devices) if ranks > 1 or devices != ["/dev/infiniband"] else (),
        "ulimits": {name: (int(text.split(":")[0]), int(text.split(":")[-1])) for name, text in limits.items()},
        "volumes": [volume(str(one)) for one in as_list(executor["volumes"])],
    }


def volume(text: str) -> tuple[str, str, bool]:
    source, target, mode, *_ = [*text.split(":"), "", ""]
    return source, target or source, mode == "ro"


def as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def given_rights(container: Container) -> dict[str, object]:
    return {
        **{name: getattr(container, name) for name in ("privileged", "ipc", "shm_bytes", "devices")},
        "no_new_privileges": container.keeps_rights,
        "ulimits": {name: (one.soft, one.hard) for name, one in container.ulimits.items() if one},
        "volumes": [(one.source, one.target, one.read_only) for one in container.volumes if one.source != MODELS],
    }


def test_sparkruns_recipes_run_as_sparkrun_runs_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = [foreign.sparkrun(seed) for seed in range(COUNT)]
    options = [[f"{name}={value}" for name, value in one.overrides.items()] for one in made]
    answers = sparkrun_tool.render([(one.text, given) for one, given in zip(made, options, strict=True)])
    found = {seed: compare_with_sparkrun(tmp_path, *pair) for seed, pair in enumerate(zip(made, answers, strict=True))}
    report(capsys, "sparkrun 0.4.2", found)


def compare_with_sparkrun(folder: Path, made: foreign.Made, answer: Answer) -> list[str]:
    if "error" in answer:
        return [f"sparkrun refuses it: {answer['error']}"]
    ranks = plans(folder, made)
    differing = differences(made, ranks, answer["commands"], answer["env"])
    ours, theirs = given_rights(ranks[0].container), rights(answer["executor"], len(ranks))
    if ours != theirs:
        differing.append(f"container {ours} instead of {theirs}")
    return differing + [f"image {plan.image}" for plan in ranks if plan.image != answer["image"]]


def test_eugrs_recipes_run_as_his_rules_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {seed: compare_with_eugr(tmp_path, foreign.eugr(seed)) for seed in range(COUNT)}
    report(capsys, "eugr's rules", found)


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


def report(capsys: pytest.CaptureFixture[str], tool: str, found: Mapping[int, list[str]]) -> None:
    differing = {seed: reasons for seed, reasons in found.items() if reasons}
    with capsys.disabled():
        print(
            f"\n{tool}: {len(found) - len(differing)} of {len(found)} recipes run the same words, variables and rights"
        )
    assert differing == {}
