"""The node itself: its name, memory, configuration, unit, model and processes, as a DGX Spark has them."""

import json

from tests.machines.fault import Fault
from tests.tree import Tree

from sparkd.agent.preflight.check import Level

MODEL = "/srv/models/DeepSeek-V4-Flash"
LAUNCHES = "/var/lib/sparkd/launch-history.json"
RECIPE = "deepseek-v4-flash-balanced"
TOML = '[cluster]\nnodes = ["10.0.0.1", "10.0.0.2"]\n'


def configured(recipe: str = RECIPE, more: str = "") -> str:
    """`more`: further keys of `engine`, then other sections."""
    return f'{TOML}[engine]\nrecipe = "{recipe}"\n{more}\n'


ROLES = ("head", "worker")
IDLE = {
    "Buffers": 0.1, "Cached": 1.6, "Shmem": 0.1, "AnonPages": 2.2,
    "SReclaimable": 0.4, "SUnreclaim": 1.1, "VmallocUsed": 0.4, "PageTables": 0.1,
}  # fmt: skip


def healthy(tree: Tree, rank: int) -> None:
    tree.file("/proc/sys/kernel/hostname", f"spark{rank + 1}\n")
    tree.file("/proc/uptime", "10000.00 1.00\n")
    tree.file("/etc/sparkd/sparkd.toml", configured())
    for role in ROLES:
        exec_start = f"/usr/bin/sparkd run --role {role}"
        tree.file(f"/usr/lib/systemd/system/sparkd-{role}.service", f"[Service]\nExecStart={exec_start}\n")
    tree.file("/usr/bin/sparkd", "#!/usr/bin/python3\n", mode=0o755)
    tree.file(f"{MODEL}/config.json", "{}")
    tree.process(1, "systemd", parent=0)
    tree.listening()
    # gb10-services: a sample of a DGX Spark has 127,535,224 kB in all; 110 to 117 GiB are available when idle.
    memory(tree, free=112.5, available=113.0)


def memory(tree: Tree, *, free: float, available: float, **gib: float) -> None:
    """An idle machine's memory with these changes."""
    tree.meminfo(**{"MemTotal": 121.63, "MemFree": free, "MemAvailable": available, **IDLE, **gib})


def launches(tree: Tree, **fields: object) -> None:
    """The launch history with these fields, and others as they are."""
    file = tree.root / LAUNCHES.lstrip("/")
    before = json.loads(file.read_text()) if file.exists() else {"schema": 1}
    tree.file(LAUNCHES, json.dumps(before | fields))


def _page_cache_in_the_way(tree: Tree) -> None:
    memory(tree, free=11.0, available=113.0, Cached=102.5)


def _memory_held_by_the_driver(tree: Tree) -> None:
    memory(tree, free=12.0, available=13.0)


def _script_gone(tree: Tree) -> None:
    tree.file("/etc/sparkd/sparkd.toml", configured(more='script = "/root/serve.sh"'))


def _orphans(tree: Tree) -> None:
    tree.process(4848, "VLLM::EngineCor", group=4140, argv=("VLLM::EngineCore",))
    tree.process(5334, "VLLM::Worker_TP", parent=4848, group=4140, argv=("VLLM::Worker_TP0",))


FAULTS = (
    Fault("page-cache-in-the-way", _page_cache_in_the_way, Level.WARN, "page-cache", also=("unified-memory",)),
    Fault(
        "memory-held-by-the-driver", _memory_held_by_the_driver, Level.BLOCK, "unified-memory", also=("memory-held",)
    ),
    Fault("script-gone", _script_gone, Level.BLOCK, "script-paths", says="/root/serve.sh", also=("model-memory",)),
    Fault("orphaned-engine", _orphans, Level.BLOCK, "stray-workers", says="an orphaned engine"),
)
