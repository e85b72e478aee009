"""`sparkd preflight --fix`: what it ends, and what it refuses. The processes are real, the machine is made of files."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.tree import Tree
from tests.unit.commands import sparkd
from tests.unit.node_reports import HEAD_REPORT
from tests.unit.plans import configured

from sparkd.agent.actions.owner_lock import acquire_lock
from sparkd.agent.preflight.checks.ports import Ports, WantedPort
from sparkd.agent.preflight.checks.stray_workers import StrayWorkers
from sparkd.agent.preflight.runner import examine
from sparkd.base.cluster.membership import resolve_context
from sparkd.base.host import Host
from sparkd.base.host.owner import NodeOwner
from sparkd.base.host.processes import read_process
from sparkd.base.lib.errors import BlockedError, ExitCode, UsageError
from sparkd.base.status.model import Phase, dump
from sparkd.tools.node.fixing import end_named, fix_node
from sparkd.tools.node.next_start import NextStart
from sparkd.tools.node.render import Owner, PreflightReport

SERVE = ("/usr/bin/python3", "/usr/local/bin/vllm", "serve", "/models/tiny")
SESSION = "0::/user.slice/user-1000.slice/session-3.scope"
CHECKS = (StrayWorkers(rendezvous=29501), Ports((WantedPort(8000, "", "the API", "args.port"),)))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may use --fix")


@pytest.fixture
def sleeper(tree: Tree) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a process that sleeps; on the machine it is what the arguments say."""
    started: list[subprocess.Popen[bytes]] = []
    tree.file("/proc/uptime", "10000.00 1.00\n")
    tree.process(1, "systemd", parent=0)
    tree.listening()

    def start(comm: str, **facts: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        started.append(process)
        real = read_process(Host().files, process.pid)
        assert real is not None
        tree.process(process.pid, comm, start_time=real.start_time, cgroup=SESSION, **facts)  # type: ignore[arg-type]  # by name
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def fix(tree: Tree, pid: int, phase: Phase | None = None) -> PreflightReport:
    """What `--fix` reports. `phase`: that of an agent which owns the node, if one does."""
    owner = Owner(40, "sparkd run --role head", phase.value, "", ()) if phase else None

    def look() -> PreflightReport:
        findings = examine(CHECKS, NextStart(Host(tree.root)))
        return PreflightReport("spark1", "head", True, findings, (), owner=owner)

    return end_named(pid, look, Host(tree.root))


@contextmanager
def owned(tree: Tree) -> Iterator[None]:
    """An agent holds the node's lock."""
    fd = acquire_lock(Host(tree.root), NodeOwner(40, "sparkd run --role head", "x"))
    tree.process(40, "sparkd")
    tree.owner(40)
    try:
        yield
    finally:
        os.close(fd)


@needs_root
def test_what_a_finding_names_is_ended_with_its_children(
    tree: Tree, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    main = sleeper("vllm", argv=SERVE)
    child = sleeper("VLLM::EngineCor", parent=main.pid, group=main.pid)
    report = fix(tree, main.pid)
    assert [fix.state for fix in report.fixes] == ["applied", "applied"]
    assert main.wait(5) == child.wait(5) == -15


@needs_root
def test_a_ports_holder_is_ended_with_those_that_share_its_socket(
    tree: Tree, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    main = sleeper("uvicorn", opened=("socket:[5]",))
    workers = [sleeper("uvicorn", parent=main.pid, opened=("socket:[5]",)) for _ in range(2)]
    tree.listening((8000, 5))
    fix(tree, main.pid)
    assert {process.wait(5) for process in (main, *workers)} == {-15}


@needs_root
def test_a_child_of_what_is_named_is_refused_and_nothing_is_ended(
    tree: Tree, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    main = sleeper("vllm", argv=SERVE)
    child = sleeper("VLLM::EngineCor", parent=main.pid, group=main.pid)
    with pytest.raises(UsageError, match=f"no finding offers to end pid {child.pid}") as refused:
        fix(tree, child.pid)
    assert refused.value.code is ExitCode.USAGE
    assert main.poll() is child.poll() is None


@needs_root
def test_a_command_that_would_end_itself_is_refused(
    tree: Tree, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """In a terminal of a notebook, whose server holds the port."""
    server = sleeper("jupyter", opened=("socket:[5]",))
    tree.process(os.getpid(), "sparkd", parent=server.pid)
    tree.listening((8000, 5))
    with pytest.raises(UsageError, match="would end itself"):
        fix(tree, server.pid)
    assert server.poll() is None


@needs_root
@pytest.mark.parametrize("phase", [Phase.SERVING, Phase.LOADING, None])
def test_beside_an_agent_that_is_not_blocked_nothing_is_ended(
    tree: Tree, sleeper: Callable[..., subprocess.Popen[bytes]], phase: Phase | None
) -> None:
    main = sleeper("vllm", argv=SERVE)
    child = sleeper("VLLM::EngineCor", parent=main.pid, group=main.pid)
    with owned(tree), pytest.raises(UsageError, match="no finding offers to end pid 40"):
        fix(tree, 40, phase)
    with owned(tree), pytest.raises(BlockedError) as refused:
        fix(tree, main.pid, phase)
    assert refused.value.code is ExitCode.BLOCKED
    beside, stop = (
        f"beside it: sudo kill {main.pid} {child.pid}",
        "stop that first: sudo systemctl stop sparkd-head sparkd-worker",
    )
    assert refused.value.hint == (beside if phase else stop), "an endpoint that serves is not stopped for it"
    assert main.poll() is None


@needs_root
@pytest.mark.parametrize(("runs", "hint"), [(True, "to look only: sudo "), (False, "stop that first: sudo ")])
def test_fixes_beside_an_agent_that_runs_advise_no_stop_of_it(tree: Tree, runs: bool, hint: str) -> None:
    if runs:
        tree.process(HEAD_REPORT.pid, "sparkd", start_time=HEAD_REPORT.start_time)
        tree.file("/run/sparkd/report.json", dump(HEAD_REPORT))
    config, host = configured(engine={"recipe": "tiny-cpu"}), Host(tree.root)
    with owned(tree), pytest.raises(BlockedError) as refused:
        fix_node(resolve_context(config, None, host), config, host)
    assert refused.value.hint.startswith(hint)
    assert runs != ("stop" in refused.value.hint)


@needs_root
def test_beside_a_blocked_agent_it_is_ended(tree: Tree, sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    main = sleeper("vllm", argv=SERVE)
    with owned(tree):
        fix(tree, main.pid, Phase.BLOCKED)
    assert main.wait(5) == -15


@contextmanager
def as_nobody() -> Iterator[None]:
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_only_root_may_also_on_a_node_without_a_configuration() -> None:
    """The whole command: it looks at this machine, and is refused before it takes the lock."""
    assert sparkd("preflight", "--dry-run").returncode == 78, "and all modules are loaded, which nobody may not read"
    with as_nobody():
        done = sparkd("preflight", "--fix", "1")
    assert done.returncode == 2
    assert "only root may change this node\nhint: sudo sparkd preflight --fix 1, or only look" in done.stderr
