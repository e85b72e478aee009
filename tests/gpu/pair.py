"""Two nodes, a GPU in each, NCCL between them: steps as in `rows`, which find the pair as the one before left it."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from . import machine
from .node import FarAgent, Node, join
from .results import Results
from .rows import CONFIGURATION, LOAD_SECONDS, Proof, describe_load, kill_once, outlive, reload, wait_for
from .view import CLIENTS, QUIET_SECONDS

APART = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
"""As between machines."""
NCCL_LOG = "/tmp/nccl.log"  # of each container
TALKING = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": NCCL_LOG}
"""Into a file line by line: what NCCL prints lies in a buffer until its rank ends."""
EXPECTED = {"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "VLLM_HOST_IP"} | (
    set() if machine.ON_CPU else {"NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE"}
)
LEDGER = "var/lib/sparkd/launch-history.json"
END_SECONDS, CUT_SECONDS = 120.0, 90.0
FLAPS, FLAP_SECONDS, BETWEEN_SECONDS = 4, 1.0, 4.0
FREED_MIB = 100
"""Of a GPU that nobody uses, an H100 shows 1 to 4 MiB."""
SOAK = os.environ.get("GPU_SOAK", "5m")


class Pair:
    def __init__(self, results: Results, folder: Path) -> None:
        self.results = results
        self.nodes = [Node(index, folder) for index in range(2)]
        join(self.nodes)
        with ThreadPoolExecutor() as pool:
            for name in ("docker", "image"):
                print(name, *pool.map(partial(Node.call, name=name), self.nodes), flush=True)
        self.key = secrets.token_hex(32)
        views = [node.view for node in self.nodes]
        self.proofs = [
            Proof(results, node.folder, view, views[0]) for node, view in zip(self.nodes, views, strict=True)
        ]
        self.head, self.worker = self.proofs

    def configure(self, env: dict[str, str]) -> None:
        """What the next start of each rank has in its environment."""
        addresses = [node.address for node in self.nodes]
        for node in self.nodes:
            node.call("configure", addresses, self.key, CONFIGURATION, env)

    def start(self, env: dict[str, str] | None = None) -> float:
        """Seconds until READY of both."""
        self.configure(TALKING | (APART if env is None else env))
        began = time.monotonic()
        for node, proof in zip(self.nodes, self.proofs, strict=True):
            proof.agent = FarAgent(node)
        self.await_ready(began)
        return time.monotonic() - began

    def await_ready(self, since: float) -> None:
        for proof in self.proofs:
            wait_for(partial(_is_ready, proof, since), LOAD_SECONDS, "READY", 0.2)

    def stop(self) -> float:
        began = time.monotonic()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda proof: proof.running.stop(), self.proofs))
        return time.monotonic() - began

    def forget_failures(self) -> None:
        """What the tests break is not the plan's fault: no pause before the next start."""
        for node in self.nodes:
            (node.view.root / LEDGER).unlink(missing_ok=True)

    def end(self) -> None:
        for node in self.nodes:
            node.end()


def _is_ready(proof: Proof, since: float) -> bool:
    at = proof.running.ready_at
    return at is not None and at > since


def _has_ended(proof: Proof, before: int) -> bool:
    """Once more than `before`."""
    return len(proof.running.ended) > before


def gpu_use() -> tuple[int, int]:
    """Processes on all GPUs, and the most MiB that one has in use, by nvidia-smi."""
    if machine.ON_CPU:
        return 0, 0
    query = ("nvidia-smi", "--format=csv,noheader,nounits")
    processes = machine.run(*query, "--query-compute-apps=pid").split()
    return len(processes), max(map(int, machine.run(*query, "--query-gpu=memory.used").split()))


# -- the start


def cold(pair: Pair) -> None:
    _start(pair, "READY of both, cold caches")
    texts = [str(node.call("keep_body")) for node in pair.nodes]
    for node, text in zip(pair.nodes, texts, strict=True):
        (node.folder / "rank.sh").write_text(text)
    found = [dict(re.findall(r"^ *export (\w+)=(\S+)", text, re.MULTILINE)) for text in texts]
    set_by_plan = [{name: value for name, value in one.items() if name in EXPECTED} for one in found]
    good = all(set(one) == EXPECTED for one in set_by_plan)
    pair.results.add("set by the plan, worker", str(set_by_plan[1]), good)
    ways = find_ways(pair)
    pair.results.add("NCCL", "; ".join(ways)[:400], machine.ON_CPU or "via NET/Socket" in str(ways))


def find_ways(pair: Pair) -> list[str]:
    """By what the head's rank reaches the other, as NCCL says."""
    if machine.ON_CPU:
        return []
    log = Path(f"/proc/{pair.head.view.engine('VLLM::Worker')}/root{NCCL_LOG}").read_text()
    return sorted(set(re.findall(r"NCCL INFO .*?(via \S+|Using network \w+|NET/Socket : Using \S+)", log)))


def warm(pair: Pair) -> None:
    if pair.head.agent is not None:
        _stop(pair)
    _start(pair, "READY of both, warm caches")


def bare(pair: Pair) -> None:
    """The same two containers by docker alone, caches warm."""
    _stop(pair)
    began = time.monotonic()
    for node in pair.nodes:
        node.call("run_bare")
    try:
        seconds = wait_for(pair.head.view.complete, LOAD_SECONDS, "tokens of bare docker", 0.5)
        pair.results.add("tokens by bare docker, warm caches", f"{seconds:.1f} s", True, seconds=seconds)
    finally:
        for node in pair.nodes:
            node.call("end_bare")
    wait_for(lambda: gpu_use()[1] < FREED_MIB, 20, "the GPUs' memory to be free")
    print(f"bare: {time.monotonic() - began:.1f} s")
    _start(pair, "READY of both, warm caches, again")


def _start(pair: Pair, name: str, env: dict[str, str] | None = None) -> None:
    seconds = pair.start(env)
    began = time.monotonic()
    good = pair.head.view.complete()
    token = time.monotonic() - began
    measured = f"{seconds:.1f} s, {describe_load(pair.head)}, first token {token:.2f} s later"
    pair.results.add(name, measured, good, seconds=seconds)


def _stop(pair: Pair) -> None:
    seconds = pair.stop()
    left = [node.view.containers() for node in pair.nodes]
    processes, mib = gpu_use()
    measured = f"{seconds:.1f} s; containers left {len(left[0]) + len(left[1])}, GPU processes {processes}, {mib} MiB"
    good = not any(left) and not processes and mib < FREED_MIB
    pair.results.add("stop of both units", measured, good, seconds=seconds)


def near(pair: Pair) -> None:
    """P2P and shared memory as they come."""
    _stop(pair)
    _start(pair, "READY, P2P and shared memory as NCCL finds them", {})
    ways = find_ways(pair)
    pair.results.add("NCCL then", "; ".join(ways)[:400], machine.ON_CPU or bool(ways))


# -- while it serves


def commands(pair: Pair) -> None:
    for name, words in (
        ("status", ("status",)), ("smoke", ("smoke",)),
        ("bench", ("bench", "--runs", "2", "--concurrency", "1" if machine.ON_CPU else "1,8,32", "--depth", "0")),
    ):  # fmt: skip
        text = _say(pair, f"{name}.txt", "sparkd", *words)
        pair.results.add(f"`sparkd {name}`", " ".join(text.split())[-300:], "Traceback" not in text and text != "")


def _say(pair: Pair, file: str, *words: str, seconds: float = 180) -> str:
    """What the command prints on the head, kept."""
    command = [*pair.head.view.enter(), *words]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, check=False
    )
    (pair.nodes[0].folder / file).write_text(f"$ {' '.join(words)}\n{done.stdout}[{done.returncode}]\n")
    return done.stdout


def nvml(pair: Pair) -> None:
    """Of each node's own GPU alone, while a rank has it."""
    for node in pair.nodes:
        words = [*node.view.enter(), "/usr/bin/python3", "-IBS", machine.FILES / "nvml-beside"]
        read = json.loads(machine.run(*words))
        (node.folder / "nvml.json").write_text(json.dumps(read, indent=1))
        same = read["total_mib"] == read["smi_total_mib"]
        used, smi_used = sum(read["processes"].values()), sum(read["smi_processes"].values())
        measured = f"sparkd {used} MiB by {len(read['processes'])} processes, nvidia-smi {smi_used} MiB"
        pair.results.add(f"NVML beside nvidia-smi, spark{node.index + 1}", measured, same and used == smi_used)


def soak(pair: Pair) -> None:
    before, began = [gpu_use()], time.monotonic()
    text = _say(pair, "soak.txt", "sparkd", "bench", "--soak", SOAK, seconds=900)
    memory = f"GPU memory {before[0][1]} MiB before, {gpu_use()[1]} after"
    measured = f"{' '.join(text.split())[-300:]}; {memory}; {time.monotonic() - began:.0f} s"
    pair.results.add(f"`sparkd bench --soak {SOAK}`", measured, "Traceback" not in text)


def adoption(pair: Pair) -> None:
    outlive(pair.head, "kill -9 of the head's agent", kill_once)
    outlive(pair.worker, "kill -9 of the worker's agent", kill_once)
    outlive(pair.head, "reload of the head's agent", reload, new_pid=False)
    outlive(pair.worker, "reload of the worker's agent", reload, new_pid=False)
    outlive(pair.head, "kill -9 of both agents", lambda _: [proof.running.kill() for proof in pair.proofs])


# -- faults


def fault(
    pair: Pair, name: str, act: Callable[[], object], bound: float, heal: Callable[[], object] | None = None
) -> None:
    """Both ranks end within `bound` seconds, and the pair serves again by itself."""
    pair.forget_failures()
    ends = [len(proof.running.ended) for proof in pair.proofs]
    sizes = [(proof.folder / "agent.log").stat().st_size for proof in pair.proofs]
    with pair.head.view.streaming():
        time.sleep(QUIET_SECONDS)
        began = time.monotonic()
        act()
        for proof, before in zip(pair.proofs, ends, strict=True):
            wait_for(partial(_has_ended, proof, before), END_SECONDS, "the agent's end", 0.1)
    noticed = [proof.running.ended[before] for proof, before in zip(pair.proofs, ends, strict=True)]
    pair.forget_failures()
    if heal is not None:
        heal()
    healed = time.monotonic()
    pair.await_ready(began)
    seconds, tokens = time.monotonic() - began, pair.head.view.complete()
    processes, mib = gpu_use()
    whose = sum(len(node.view.containers()) for node in pair.nodes)
    ended = ", ".join(f"{at - began:.1f} s ({how})" for at, how in noticed)
    measured = f"head and worker ended after {ended}; READY {seconds:.1f} s after the fault"
    measured += f", {seconds - (healed - began):.1f} s after the repair" if heal else ""
    measured += f"; {processes} processes on the GPUs, at most {mib} MiB"
    for proof, size in zip(pair.proofs, sizes, strict=True):
        text = (proof.folder / "agent.log").read_bytes()[size:].decode(errors="replace")
        causes = [line for line in text.splitlines() if re.search(r"<[0-3]>\S+ .*(?:cause|reason)=", line)]
        print(f"   {proof.folder.name}: {causes[0][:500] if causes else 'no cause'}", flush=True)
    good = tokens and whose == 2 and all(at - began < bound for at, _ in noticed)
    pair.results.add(f"{name}, {CLIENTS} streaming clients", measured, good, seconds=seconds)


def ranks(pair: Pair) -> None:
    """From the second start on, NCCL writes what the plan has it write, where sparkd reads it."""
    pair.configure(APART)
    worker, head = pair.worker.view, pair.head.view
    fault(pair, "kill -9 of the worker's rank", lambda: os.kill(worker.engine("VLLM::Worker"), signal.SIGKILL), 30)
    fault(pair, "kill -9 of the head's core", lambda: os.kill(head.engine(), signal.SIGKILL), 30)


def hang(pair: Pair) -> None:
    """During an all-reduce, as requests run."""
    victim = pair.worker.view.engine("VLLM::Worker")
    fault(pair, "SIGSTOP of the worker's rank", lambda: os.kill(victim, signal.SIGSTOP), 50)


def cable(pair: Pair) -> None:
    worker = pair.nodes[1]
    fault(pair, "cable cut", lambda: worker.link("down"), CUT_SECONDS, lambda: worker.link("up"))


def flapping(pair: Pair) -> None:
    ends, core = [len(proof.running.ended) for proof in pair.proofs], pair.head.view.engine()
    with pair.head.view.streaming() as streams:
        for _ in range(FLAPS):
            pair.nodes[1].link("down")
            time.sleep(FLAP_SECONDS)
            pair.nodes[1].link("up")
            time.sleep(BETWEEN_SECONDS)
    same = ends == [len(proof.running.ended) for proof in pair.proofs] and core == pair.head.view.engine()
    measured = f"{len(streams.wrong)} of {streams.requests} requests failed{'' if same else '; a rank ended'}"
    name = f"cable down {FLAPS} times for {FLAP_SECONDS:g} s"
    pair.results.add(name, measured, same and not streams.wrong, requests=streams.requests, failed=len(streams.wrong))


def stop(pair: Pair) -> None:
    _stop(pair)


PAIR_STEPS: dict[str, Callable[[Pair], None]] = {
    "cold": cold, "nvml": nvml, "commands": commands, "adoption": adoption, "ranks": ranks, "hang": hang,
    "cable": cable, "flapping": flapping, "warm": warm, "bare": bare, "soak": soak, "near": near, "stop": stop,
}  # fmt: skip
