"""All checks together over a machine of files: what ten times the processes, containers or shards cost."""

import json
import tempfile
import time
from pathlib import Path

from tests.machines.areas import healthy
from tests.machines.areas.base import MODEL
from tests.machines.areas.model import INDEX
from tests.tree import Tree

from .figures import Figure, Limit, Spread
from .machine import load

RUNS = 5
LIMIT = Limit(1.0)
"""For a healthy node; waits and datagrams aside, which a machine of files has none of."""
PROCESSES, CONTAINERS, SHARDS = 500, 10, 46
MORE = 10


def measure() -> tuple[Figure, ...]:
    """Each machine is ten times as large in one way."""
    usual = f"{PROCESSES} processes, {CONTAINERS} containers, {SHARDS} shards"
    return (
        _figure("healthy", usual, limit=LIMIT),
        _figure("processes", f"{MORE * PROCESSES:,} processes", process_count=MORE * PROCESSES),
        _figure("containers", f"{MORE * CONTAINERS} containers", container_count=MORE * CONTAINERS),
        _figure("shards", f"{MORE * SHARDS} shards", shard_count=MORE * SHARDS),
    )


def processes(tree: Tree, count: int) -> None:
    for pid in range(10_000, 10_000 + count):
        tree.process(pid, "python3", argv=("python3", "-m", "something"), opened=("/dev/null", f"socket:[{pid}]"))


def containers(tree: Tree, count: int) -> None:
    names = [(f"{number:064x}", f"other-{number}") for number in range(1, count + 1)]
    tree.docker("/containers/json", [{"Id": full_id} for full_id, _ in names])
    for full_id, name in names:
        described = {
            "Name": f"/{name}",
            "Image": f"sha256:{'5' * 64}",
            "Config": {"Labels": {}, "Image": "postgres:17", "Cmd": ["postgres"], "Entrypoint": None},
            "State": {"Running": False, "Pid": 0},
            "HostConfig": {"RestartPolicy": {"Name": "no"}},
        }
        tree.docker(f"/containers/{full_id}/json", described)


def shards(tree: Tree, count: int) -> None:
    names = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    for old in (tree.root / MODEL.lstrip("/")).glob("*.safetensors"):
        old.unlink()
    for name in names:
        tree.safetensors(f"{MODEL}/{name}", 1 << 20)
    weight_map = {f"layers.{number}.w": name for number, name in enumerate(names)}
    tree.file(INDEX, json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}))


def _figure(
    name: str,
    words: str,
    process_count: int = PROCESSES,
    container_count: int = CONTAINERS,
    shard_count: int = SHARDS,
    limit: Limit | None = None,
) -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder))
        tree.folder("/dev/shm")  # of the tree
        healthy(tree, rank=0)
        processes(tree, process_count)
        containers(tree, container_count)
        shards(tree, shard_count)
        seconds = Spread(tuple(_look(tree) for _ in range(RUNS + 1))[1:])
    return Figure(f"checks.{name}", f"all checks, {words}", "s", seconds, limit, load=load())


def _look(tree: Tree) -> float:
    from sparkd.agent.preflight.check import Level
    from sparkd.agent.preflight.runner import build_checks, examine
    from sparkd.base.cluster import membership
    from sparkd.base.config import load_settings
    from sparkd.base.host import Host

    host = Host(tree.root)
    node = membership.resolve_context(load_settings({}, tree.root), "head", host)
    began = time.perf_counter()
    findings = examine(build_checks(membership.check_inputs(node)), host)
    seconds = round(time.perf_counter() - began, 4)
    odd = [f"{one.id}: {one.verdict.reason}" for one in findings if one.verdict.level is not Level.OK]
    assert not odd, odd
    return seconds
