"""Machines with engines on them, and the verdict of stray-workers."""

from tests.tree import Tree

from sparkd.agent.preflight.check import Verdict
from sparkd.agent.preflight.checks.stray_workers import StrayWorkers
from sparkd.agent.preflight.fixes import EndProcess, Identity
from sparkd.base.host import Host
from sparkd.base.host.docker import ContainerFacts, DockerFacts
from sparkd.base.host.gpu import GpuFacts

ID = "0123456789abcdef" * 4
CGROUP = f"0::/system.slice/docker-{ID}.scope"
SERVE = ("/usr/bin/python3", "/usr/local/bin/vllm", "serve", "/models/tiny")
SESSION = "0::/user.slice/user-1000.slice/session-3.scope"
STARTED = 100
"""Start time of a process, in ticks."""
NO_CONTAINERS = DockerFacts(running=True, containers=())


def docker_with_container(invocation: str = "dead", *, ours: bool = True, running: bool = True) -> DockerFacts:
    """The rank's container of this agent, or a container of somebody else's."""
    labels = (("io.sparkd.invocation", invocation), ("io.sparkd.role", "head")) if ours else ()
    name = "sparkd-rank0" if ours else "vllm_ds4"
    return DockerFacts(True, (ContainerFacts(ID, name, labels, running, 10 if running else 0, "sha256:1", "no"),))


def verdict_of(
    tree: Tree,
    docker: DockerFacts = NO_CONTAINERS,
    gpu: GpuFacts | None = None,
    tried: frozenset[Identity] = frozenset(),
    host_type: type[Host] = Host,
) -> Verdict:
    tree.file("/proc/uptime", "10000.00 1.00\n")
    if not (tree.root / "proc/net/tcp").exists():
        tree.listening()
    if not (tree.root / "proc/1").exists():
        tree.process(1, "systemd", parent=0)
    host = host_type(tree.root, docker=lambda: docker, gpu=(lambda: gpu) if gpu else None)
    return StrayWorkers(tried=tried, rendezvous=29501).run(host)[1]


def owned(tree: Tree, pid: int = 40) -> None:
    """The agent `alive` owns the node."""
    tree.process(pid, "python3")
    tree.owner(pid, "alive")


def engine_in_container(tree: Tree) -> None:
    tree.process(10, "vllm", argv=SERVE, cgroup=CGROUP, namespace_pid=1)


def pids_to_end(verdict: Verdict) -> list[int]:
    return sorted(fix.pid for fix in verdict.fixes if isinstance(fix, EndProcess))
