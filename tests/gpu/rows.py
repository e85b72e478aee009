"""What is measured: each step adds its rows to the results. The steps stand in the order in which they build on each
other: a step finds the engine as the one before left it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from . import machine
from .results import Results
from .units import Agent, Guard
from .view import CLIENTS, QUIET_SECONDS, STREAMS, TOKENS, View, read_json

EATER = STREAMS.with_name("eater.py")
FLOOR_MOST_MIB = 65536
"""The largest that memory.floor_mib may be."""
LOAD_SECONDS, BACK_SECONDS = 300.0, 20.0
CONFIGURATION = "[supervise]\nstall_seconds = 40\n"


def wait_for(matches: Callable[[], bool], seconds: float, what: str, pause: float = 0.02) -> float:
    """Returns the seconds that it took. Raises TimeoutError."""
    began = time.monotonic()
    while not matches():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(pause)
    return time.monotonic() - began


class Unit(Protocol):
    """An `Agent`, here or in a node."""

    @property
    def pid(self) -> int: ...
    @property
    def over(self) -> bool: ...
    @property
    def result(self) -> str: ...
    @property
    def ready_at(self) -> float | None: ...
    @property
    def ended(self) -> list[tuple[float, str]]: ...
    def kill(self) -> float: ...
    def reload(self) -> subprocess.CompletedProcess[str]: ...
    def exhaust(self) -> object: ...
    def stop(self) -> float: ...


class Proof:
    """The agent under its stand-in for systemd, and the results. `clients`: where they are, if not beside it."""

    def __init__(self, results: Results, folder: Path, view: View, clients: View | None = None) -> None:
        self.results, self.folder, self.view = results, folder, view
        self.clients = clients or view
        self.agent: Unit | None = None

    def start(self, extra: str = CONFIGURATION, ranks: int = 1) -> Agent:
        """The unit of this machine."""
        machine.write_configuration(extra, ranks=ranks)
        if self.agent is None:
            Guard(self.folder / "guard.log")
        self.agent = agent = Agent(self.folder / "agent.log", os.environ)
        return agent

    @property
    def running(self) -> Unit:
        if self.agent is None or self.agent.over:
            raise RuntimeError(f"no agent runs: {self.agent and self.agent.ended}")
        return self.agent

    def await_ready(self, agent: Unit) -> float:
        """Seconds. Raises TimeoutError, RuntimeError."""

        def ready() -> bool:
            if agent.over:
                raise RuntimeError(f"the agent ended: {agent.ended}")
            return agent.ready_at is not None

        return wait_for(ready, LOAD_SECONDS, "READY")


# -- the start


def describe_load(proof: Proof) -> str:
    """The load alone: before it a start may wait after earlier failures."""
    loads = re.findall(r"engine\.readiness\.reached seconds=([\d.]+)", (proof.folder / "agent.log").read_text())
    return f"the load {float(loads[-1]):.1f} s" if loads else "no load"


def cold(proof: Proof) -> None:
    seconds = proof.await_ready(proof.start())
    proof.results.add(
        "READY, cold caches", f"{seconds:.1f} s, {describe_load(proof)}", proof.view.complete(), seconds=seconds
    )


def commands(proof: Proof) -> None:
    """What people type first, beside the engine."""
    for name in ("status", "endpoint", "preflight --dry-run --all", "history"):
        text = keep_output(proof, f"{name.split()[0]}.txt", "sparkd", *name.split()).stdout
        proof.results.add(f"`sparkd {name}`", " ".join(text.split())[:100], "Traceback" not in text)
    answers(proof, "--runs", "2", "--concurrency", "1" if machine.ON_CPU else "1,8,32", "--depth", "0")


def answers(proof: Proof, *options: str, limit_seconds: float = 180) -> None:
    """Whether they make sense, and how fast they come; `options`: those of `sparkd bench`."""
    began = time.monotonic()
    done = keep_output(proof, "smoke.txt", "sparkd", "smoke", limit_seconds=limit_seconds)
    bad = re.search(r"bad outputs: \d+", done.stdout)
    measured = f"{bad[0] if bad else done.stdout[-200:]} in {time.monotonic() - began:.1f} s"
    proof.results.add("`sparkd smoke`", measured, done.returncode == 0)
    done = keep_output(proof, "bench.txt", "sparkd", "bench", *options, limit_seconds=limit_seconds)
    proof.results.add("`sparkd bench`", " ".join(done.stdout.split())[:300], done.returncode == 0)


def keep_output(proof: Proof, name: str, *words: str, limit_seconds: float = 180) -> subprocess.CompletedProcess[str]:
    """The command, run to its end, with its output of both kinds, which is also kept under this name."""
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_seconds, check=False
    )
    (proof.folder / name).write_text(f"$ {' '.join(words)}\n{done.stdout}[{done.returncode}]\n")
    return done


def nvml(proof: Proof) -> None:
    """Idle and at full load."""
    compare_nvml(proof, "idle")
    load = [machine.torch_python(), str(machine.FILES / "busy-gpu"), "8"]
    with subprocess.Popen(load, stdout=subprocess.PIPE) as process:
        try:
            if process.stdout is not None:
                process.stdout.readline()
            time.sleep(4)
            compare_nvml(proof, "matrix products")
        finally:
            process.kill()


def compare_nvml(proof: Proof, load: str) -> None:
    read = json.loads(machine.run("/usr/bin/python3", "-IBS", machine.FILES / "nvml-beside"))
    (proof.folder / f"nvml-{load.split()[0]}.json").write_text(json.dumps(read, indent=1))
    smi, (before, after) = read["smi"], read["sparkd"]
    between = [
        min(one) - 0.05 * max(one) <= value <= 1.05 * max(one) for *one, value in zip(before, after, smi, strict=True)
    ]
    same = read["total_mib"] == read["smi_total_mib"] and read["processes"] == read["smi_processes"]
    texts = [f"{one[0]:g} MHz {one[1]:.1f} W {one[2]:g} % {one[3]:g} C" for one in (before, smi, after)]
    measured = f"{texts[0]}; nvidia-smi {texts[1]}; {texts[2]}"
    proof.results.add(f"NVML beside nvidia-smi, {load}", measured, same and all(between), seconds=read["seconds"])


# -- an engine outlives its agent


def adoption(proof: Proof) -> None:
    agent = proof.running
    outlive(proof, "kill -9 of the agent", kill_once)
    outlive(proof, "reload (exec in place)", reload, new_pid=False)
    outlive(proof, "kill -9 of the agent again", kill_once)
    core, ends, began = proof.view.engine(), len(agent.ended), agent.kill()
    wait_for(lambda: not Path(f"/proc/{core}").exists(), 60, "the end of the rank")
    gone = time.monotonic() - began
    wait_for(lambda: len(agent.ended) > ends, 10, "the agent's end")
    wait_for(lambda: agent.ready_at is not None and agent.ready_at > began + gone, LOAD_SECONDS, "READY again")
    seconds = time.monotonic() - began
    measured = (
        f"the rank ended after {gone:.1f} s, {describe_load(proof)}, READY with another {seconds:.1f} s after the kill"
    )
    proof.results.add("third crash within 10 min", measured, proof.view.complete(), ended_seconds=gone, seconds=seconds)


def twice(proof: Proof) -> None:
    """The second one while the next agent takes the rank over."""
    outlive(proof, "kill -9 twice, the second during the take-over", _kill_twice)


def kill_once(agent: Unit) -> None:
    agent.kill()


def reload(agent: Unit) -> None:
    done = agent.reload()
    if done.returncode:
        raise RuntimeError(f"reload ended with {done.returncode}: {done.stdout}{done.stderr}")


def _kill_twice(agent: Unit) -> None:
    old = agent.pid
    agent.kill()
    wait_for(
        lambda: read_json(View().owner).get("pid") not in (None, old), 20, "the next agent to have the lock", 0.005
    )
    agent.kill()


def outlive(proof: Proof, name: str, act: Callable[[Unit], object], new_pid: bool = True) -> None:
    agent, owner, status = proof.running, proof.view.owner, proof.view.report
    pid, core, rank = agent.pid, proof.view.engine("VLLM::"), proof.view.containers()
    owned = owner.stat().st_mtime_ns
    with proof.clients.streaming() as streams:
        began = time.monotonic()
        act(agent)

        def back() -> bool:
            report = read_json(status)
            again = owner.stat().st_mtime_ns != owned and status.stat().st_mtime_ns >= owner.stat().st_mtime_ns
            return (
                again and (agent.pid != pid) == new_pid and report["pid"] == agent.pid and report["phase"] == "serving"
            )

        try:
            wait_for(back, BACK_SECONDS, f"{name}: the agent to serve again", 0.01)
        except TimeoutError:
            print(f"owner {read_json(owner)}\nreport {str(read_json(status))[:500]}\nends {agent.ended}")
        seconds = time.monotonic() - began
        time.sleep(QUIET_SECONDS)
    same = Path(f"/proc/{core}").exists() and proof.view.containers() == rank
    measured = (
        f"{len(streams.wrong)} of {streams.requests} requests failed; taken over after {seconds:.1f} s"
        f"{'' if same else '; another engine'}{'; first: ' + streams.wrong[0] if streams.wrong else ''}"
    )
    good = same and not streams.wrong and streams.requests >= CLIENTS and seconds < BACK_SECONDS
    figures = {"requests": streams.requests, "failed": len(streams.wrong), "seconds": seconds}
    proof.results.add(f"{name}, {CLIENTS} streaming clients", measured, good, **figures)


# -- faults of the engine


def kill_core(proof: Proof) -> None:
    agent, ends, began = proof.running, len(proof.running.ended), time.monotonic()
    os.kill(proof.view.engine(), signal.SIGKILL)
    wait_for(lambda: len(agent.ended) > ends, 60, "the agent's end")
    ended, how = agent.ended[-1]
    _await_again(
        proof, "kill -9 of the engine's core", began, f"the agent ended after {ended - began:.1f} s ({how})", True
    )


def stop_core(proof: Proof) -> None:
    agent, ends, began = proof.running, len(proof.running.ended), time.monotonic()
    os.kill(proof.view.engine(), signal.SIGSTOP)
    body = '{"model": "tiny", "prompt": "hello", "max_tokens": 8}'
    words = ["curl", "-s", "-m", "100", "-H", "Content-Type: application/json", "-d", body]
    client = subprocess.Popen([*words, "http://127.0.0.1:8000/v1/completions"], stdout=subprocess.DEVNULL)
    wait_for(lambda: len(agent.ended) > ends, 120, "the agent's end")
    ended, how = agent.ended[-1]
    client.wait()
    kept = [path for path in Path("/var/lib/sparkd/stacks").glob("*") if path.stat().st_mtime > time.time() - 120]
    texts = [path.read_text(errors="replace") for path in kept]
    (proof.folder / "stacks.txt").write_text("\n".join(texts))
    python = any("MainThread" in text for text in texts)
    seconds = ended - began
    measured = f"the agent ended after {seconds:.1f} s ({how}), {len(kept)} file of stacks{', of Python too' * python}"
    _await_again(proof, "SIGSTOP of the engine's core, one request", began, measured, python and seconds < 60)


def _await_again(proof: Proof, name: str, began: float, measured: str, good: bool) -> None:
    agent = proof.running
    wait_for(lambda: agent.ready_at is not None and agent.ready_at > began, LOAD_SECONDS, "READY again")
    seconds, tokens = time.monotonic() - began, proof.view.complete()
    again = f"{describe_load(proof)}, READY {seconds:.1f} s after the fault, {'tokens' if tokens else 'NO tokens'}"
    measured = f"{measured}; {again}"
    proof.results.add(name, measured, good and tokens, seconds=seconds)


def stop(proof: Proof) -> None:
    agent = proof.running
    seconds = agent.stop()
    left = proof.view.containers()
    measured = f"{agent.result} in {seconds:.1f} s, {len(left)} containers left"
    proof.results.add("stop of the unit", measured, agent.result == "success" and not left, seconds=seconds)


def warm(proof: Proof) -> None:
    seconds = proof.await_ready(proof.start())
    proof.results.add(
        "READY, warm caches", f"{seconds:.1f} s, {describe_load(proof)}", proof.view.complete(), seconds=seconds
    )


def bare(proof: Proof) -> None:
    """The same container by docker alone, caches warm, and how fast both answer."""
    under = _measure_speed(proof)
    body = machine.keep_body()
    proof.running.stop()
    began = time.monotonic()
    machine.run_bare(body)
    try:
        seconds = wait_for(proof.view.complete, LOAD_SECONDS, "tokens of bare docker", 0.5)
        _measure_speed(proof)  # of kernels that sparkd compiles before READY
        alone = _measure_speed(proof)
    finally:
        machine.end_bare()
    print(f"bare: {time.monotonic() - began:.1f} s")
    proof.results.add("tokens by bare docker, warm caches", f"{seconds:.1f} s", True, seconds=seconds)
    measured = f"under sparkd {under:,.0f} tokens/s, by bare docker {alone:,.0f}"
    good = under > 0 and (machine.ON_CPU or under > 0.9 * alone)
    proof.results.add(f"{CLIENTS} streaming clients", measured, good, under=under, alone=alone)


def _measure_speed(proof: Proof) -> float:
    """Tokens a second, of all clients together; 0 where a request failed."""
    began = time.monotonic()
    with proof.clients.streaming() as streams:
        time.sleep(5)
    return 0.0 if streams.wrong else streams.requests * TOKENS / (time.monotonic() - began)


def oom(proof: Proof) -> None:
    outlive(proof, "OOM kill of the agent", lambda agent: agent.exhaust())
    result = proof.running.ended[-1][1]
    proof.results.add("the kernel's reason for that end", result, result.startswith("oom-kill"))


# -- memory of the machine


def hog(proof: Proof) -> None:
    """Another program takes memory until less is left than the guard's floor: the rank ends, and comes back."""
    if proof.agent is not None:
        proof.agent.stop()
    available = _available_mib()
    floor = min(FLOOR_MOST_MIB, available - 20_480) if not machine.ON_CPU else available - 6144
    agent = proof.start(f"{CONFIGURATION}[memory]\nfloor_mib = {floor}\n")
    proof.await_ready(agent)
    core, ends = proof.view.engine(), len(agent.ended)
    gib = (_available_mib() - floor) / 1024 + 1
    eater = subprocess.Popen([sys.executable, "-IBS", str(EATER), "2", f"{gib:.1f}"], stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: _available_mib() < floor or not Path(f"/proc/{core}").exists(), 120, "the shortage", 0.005)
        began = time.monotonic()
        wait_for(lambda: not Path(f"/proc/{core}").exists(), 60, "the end of the rank", 0.005)
        gone = time.monotonic() - began
        wait_for(lambda: len(agent.ended) > ends, 60, "the agent's end")
    finally:
        eater.kill()
        eater.wait()
    how = agent.ended[-1][1]
    measured = f"{gib:.0f} GiB taken, floor {floor} MiB: the core had ended {gone:.2f} s after the shortage ({how})"
    _await_again(proof, "memory hog against the guard", began, measured, gone < 5)


def _available_mib() -> int:
    return int(re.search(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())[1]) >> 10  # type: ignore[index]  # each kernel has it


def two(proof: Proof) -> None:
    """A rank on each of two GPUs of one node."""
    if machine.ON_CPU or len(machine.run("nvidia-smi", "-L").splitlines()) < 2:
        return
    if proof.agent is not None:
        proof.agent.stop()
    seconds = proof.await_ready(proof.start(ranks=2))
    measured = f"{seconds:.1f} s, {describe_load(proof)}, {len(proof.view.processes('VLLM::Worker'))} ranks"
    proof.results.add("READY, two GPUs in one node", measured, proof.view.complete(), seconds=seconds)


STEPS: dict[str, Callable[[Proof], None]] = {
    "nvml": nvml, "cold": cold, "commands": commands, "adoption": adoption, "twice": twice, "kill-core": kill_core,
    "stop-core": stop_core, "stop": stop, "warm": warm, "oom": oom, "bare": bare, "hog": hog, "two": two,
}  # fmt: skip
