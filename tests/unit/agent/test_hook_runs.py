"""The operator's hooks at work: real programs, real processes."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.clock import unstalled
from tests.unit.verdicts import expect

from sparkd.agent.daemon import hooks
from sparkd.agent.preflight.check import Finding, Level, unknown
from sparkd.agent.preflight.hooks import Hook

ENV = {"PATH": os.environ["PATH"]}


def run_hook(
    tree: Tree,
    *lines: str,
    problem: str = "",
    wait: Callable[[float], None] = time.sleep,
    env: Mapping[str, str] = ENV,
    deadline_seconds: float = 10.0,
) -> Finding:
    path = tree.file("/10-site", "\n".join(("#!/bin/sh", *lines)) + "\n", mode=0o755)
    (finding,) = hooks.run_hooks([Hook("10-site", str(path), problem)], wait, env, deadline_seconds)
    return finding


def has_ended(pid: int) -> bool:
    """Ended, or a zombie that nobody has reaped: a killed grandchild waits for init."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_a_hook_with_a_problem_is_unknown_and_is_not_run(tree: Tree) -> None:
    proof = tree.root / "proof"
    finding = run_hook(tree, f"touch {proof}", problem="others may write to it")
    assert finding.id == "hook:10-site"
    assert finding.verdict == unknown("others may write to it")
    assert not proof.exists()


@pytest.mark.parametrize(
    ("lines", "level", "reason"),
    [
        (("echo all well",), Level.OK, "all well"),
        ((), Level.OK, "good"),
        (("echo no cable; echo more; exit 1",), Level.BLOCK, "no cable (exit code 1)"),
        (("echo who knows >&2; exit 2",), Level.UNKNOWN, "who knows (exit code 2)"),
        (("exit 1",), Level.BLOCK, "exit code 1"),
        (("exit 3",), Level.UNKNOWN, "exit code 3, which no hook should have"),
        (("kill -KILL $$",), Level.UNKNOWN, "killed by signal 9 (Killed)"),
        (("printf '\\n\\n  \\033[31mred\\a\\n'; exit 1",), Level.BLOCK, "\\x1b[31mred\\x07 (exit code 1)"),
        (("kill -40 $$",), Level.UNKNOWN, "killed by signal 40 (Real-time signal 6)"),
        (("printf '\\377'; exit 1",), Level.BLOCK, "\\xff (exit code 1)"),
    ],
)
def test_the_exit_code_is_the_verdict_and_the_first_line_the_reason(
    tree: Tree, lines: tuple[str, ...], level: Level, reason: str
) -> None:
    verdict = run_hook(tree, *lines).verdict
    assert verdict.level is level
    assert verdict.reason == reason


def test_a_hook_that_does_not_end_is_killed_with_all_that_it_started(tree: Tree) -> None:
    pids = tree.root / "pids"
    began = unstalled()
    verdict = run_hook(tree, f"sleep 60 & echo $! > {pids}; echo $$ >> {pids}; wait", deadline_seconds=0.5).verdict
    assert unstalled() - began < 5
    expect(verdict, Level.UNKNOWN, "did not end within 0.5 s")
    assert [has_ended(int(pid)) for pid in pids.read_text().split()] == [True, True]


def test_a_process_that_a_hook_leaves_running_is_killed_and_not_waited_for(tree: Tree) -> None:
    pids = tree.root / "pids"
    began = unstalled()
    verdict = run_hook(tree, f"sleep 60 & echo $! > {pids}; echo fine").verdict
    assert unstalled() - began < 5
    assert verdict.reason == "fine"
    assert has_ended(int(pids.read_text()))


def test_a_request_to_stop_ends_the_hook_too(tree: Tree) -> None:
    pids = tree.root / "pids"

    class Stopped(BaseException):
        pass

    def stop(_seconds: float) -> None:
        time.sleep(0.2)
        raise Stopped

    with pytest.raises(Stopped):
        run_hook(tree, f"echo $$ > {pids}; sleep 60", wait=stop)
    assert has_ended(int(pids.read_text()))


def test_a_talkative_hook_neither_blocks_nor_fills_the_memory(tree: Tree) -> None:
    finding = run_hook(tree, "echo first; head -c 20000000 /dev/zero; exit 1")
    assert finding.verdict.reason == "first (exit code 1)"


def test_a_hook_without_an_interpreter_is_unknown(tree: Tree) -> None:
    path = tree.file("/10-site", "#!/no/such/interpreter\n", mode=0o755)
    (finding,) = hooks.run_hooks([Hook("10-site", str(path))], time.sleep, ENV)
    expect(finding.verdict, Level.UNKNOWN, "can't be run")


def test_a_hook_gets_its_node_and_none_of_our_environment(tree: Tree) -> None:
    proof = tree.root / "proof"
    run_hook(tree, f"/usr/bin/env > {proof}; pwd >> {proof}", env=hooks.hook_environment("worker", 1))
    words = proof.read_text().split()
    assert {"NODE_ROLE=worker", "NODE_RANK=1", "LANG=C.UTF-8", "/"} < set(words)
    assert not any(word.startswith(("SPARKD_", "HOME=")) for word in words)
