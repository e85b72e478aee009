"""The operator's hooks: real programs, real processes."""

import os
import time
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.clock import unstalled

from sparkd.agent.daemon import hooks
from sparkd.agent.preflight.check import Finding, Level
from sparkd.agent.preflight.hooks import FOLDER, Hook, check_program, list_hooks
from sparkd.base.host.files import Files


class Stopped(BaseException):
    pass


def stop(seconds: float) -> None:
    """A stop is requested during a wait."""
    time.sleep(0.2)
    raise Stopped


def listed(tree: Tree) -> tuple[Hook, ...]:
    return list_hooks(Files(str(tree.root), os.getuid()))


def write_hook(tree: Tree, name: str, *lines: str, mode: int = 0o755) -> Path:
    return tree.file(f"{FOLDER}/{name}", "\n".join(("#!/bin/sh", *lines)) + "\n", mode)


def run_hook(tree: Tree, *lines: str, deadline_seconds: float = 10.0) -> Finding:
    path = write_hook(tree, "10-site", *lines)
    (finding,) = hooks.run_hooks(
        [Hook("10-site", str(path))], time.sleep, {"PATH": os.environ["PATH"]}, deadline_seconds
    )
    return finding


def test_without_a_folder_there_are_no_hooks(tree: Tree) -> None:
    assert listed(tree) == ()


def test_a_folder_that_is_a_link_to_nothing_is_no_hook_that_can_be_run(tree: Tree) -> None:
    tree.link(FOLDER, "/srv/late/preflight.d")
    assert [hook.problem for hook in listed(tree)] == [f"{FOLDER} can't be read: No such file or directory"]


def test_hooks_are_listed_by_name_without_what_editors_and_dpkg_leave(tree: Tree) -> None:
    for name in ("20-b", "10-a", ".hidden", "10-a~", "10-a.dpkg-old", "10-a.bak", ".10-a.swp"):
        write_hook(tree, name)
    assert [(hook.name, hook.problem) for hook in listed(tree)] == [("10-a", ""), ("20-b", "")]


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_hook_that_others_may_write_to_is_never_run(tree: Tree, mode: int) -> None:
    write_hook(tree, "10-a", mode=mode)
    (unsafe,) = listed(tree)
    assert "others than root may write" in unsafe.problem


def test_a_hook_that_another_user_owns_is_never_run(tree: Tree) -> None:
    write_hook(tree, "10-a")
    (unsafe,) = list_hooks(Files(str(tree.root), os.getuid() + 1))
    assert "others than root may write" in unsafe.problem


@pytest.mark.parametrize("folder", ["/etc/sparkd/preflight.d", "/etc/sparkd", "/etc"])
def test_no_hook_is_run_below_a_folder_that_others_may_write_to(tree: Tree, folder: str) -> None:
    write_hook(tree, "10-a")
    (tree.root / folder.lstrip("/")).chmod(0o777)
    assert [hook.problem for hook in listed(tree)] == [f"others than root may write to {folder}"]


def test_a_program_in_a_users_folder_is_to_be_moved(tree: Tree) -> None:
    """Its own owner and mode are good already."""
    tree.file("/home/milo/plug", "#!/bin/sh\n", 0o755)
    (tree.root / "home/milo").chmod(0o775)
    program = check_program(Files(str(tree.root), os.getuid()), "/home/milo/plug")
    assert program.problem == "others than root may write to /home/milo"
    assert program.hint == "move it to a folder that only root may write to, such as /etc/sparkd"


def test_a_file_among_the_hooks_that_can_not_be_executed_is_named(tree: Tree) -> None:
    write_hook(tree, "10-plain", mode=0o644)
    tree.folder(f"{FOLDER}/20-folder")
    write_hook(tree, "../real")
    tree.link(f"{FOLDER}/30-link", "../real")
    assert [hook.problem.rpartition(" is ")[2] for hook in listed(tree)] == [
        "not executable",
        "a folder, not a file",
        "a symlink",
    ]


def test_a_hook_with_a_problem_is_unknown_and_is_not_run(tree: Tree) -> None:
    proof = tree.root / "proof"
    write_hook(tree, "10-a", f"touch {proof}", mode=0o777)
    (finding,) = hooks.run_hooks(listed(tree), time.sleep, {})
    assert (finding.id, finding.verdict.level) == ("hook:10-a", Level.UNKNOWN)
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
    assert (verdict.level, verdict.reason) == (level, reason)


def test_a_hook_that_does_not_end_is_killed_with_all_that_it_started(tree: Tree) -> None:
    pids = tree.root / "pids"
    began = unstalled()
    verdict = run_hook(tree, f"sleep 60 & echo $! > {pids}; echo $$ >> {pids}; wait", deadline_seconds=0.5).verdict
    assert unstalled() - began < 5
    assert verdict.level is Level.UNKNOWN
    assert "did not end within 0.5 s" in verdict.reason
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
    path = write_hook(tree, "10-site", f"echo $$ > {pids}; sleep 60")
    with pytest.raises(Stopped):
        hooks.run_hooks([Hook("10-site", str(path))], stop, {"PATH": os.environ["PATH"]})
    assert has_ended(int(pids.read_text()))


def test_a_talkative_hook_neither_blocks_nor_fills_the_memory(tree: Tree) -> None:
    finding = run_hook(tree, "echo first; head -c 20000000 /dev/zero; exit 1")
    assert finding.verdict.reason == "first (exit code 1)"


def test_a_hook_without_an_interpreter_is_unknown(tree: Tree) -> None:
    path = tree.file(f"{FOLDER}/10-site", "#!/no/such/interpreter\n", mode=0o755)
    (finding,) = hooks.run_hooks([Hook("10-site", str(path))], time.sleep, {})
    assert finding.verdict.level is Level.UNKNOWN
    assert "can't be run" in finding.verdict.reason


def test_a_hook_gets_its_node_and_none_of_our_environment(tree: Tree) -> None:
    proof = tree.root / "proof"
    path = write_hook(tree, "10-site", f"/usr/bin/env > {proof}; pwd >> {proof}")
    hooks.run_hooks([Hook("10-site", str(path))], time.sleep, hooks.hook_environment("worker", 1))
    words = proof.read_text().split()
    assert {"NODE_ROLE=worker", "NODE_RANK=1", "LANG=C.UTF-8", "/"} < set(words)
    assert not any(word.startswith(("SPARKD_", "HOME=")) for word in words)


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
