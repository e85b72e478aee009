"""Whether the ports that a node needs are free: each test is a machine, and the verdict on it."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level, Verdict
from sparkd.agent.preflight.checks.ports import HeldPort, Ports, PortsFacts, WantedPort
from sparkd.agent.preflight.fixes import EndProcess
from sparkd.agent.preflight.port_uses import PortUse
from sparkd.base.host import Host
from sparkd.base.host.docker import ContainerFacts, DockerFacts

ID = "0123456789abcdef" * 4
CGROUP = f"0::/system.slice/docker-{ID}.scope"
API = WantedPort(8000, "", "the API", "args.port")
RENDEZVOUS = WantedPort(29501, "", "the rendezvous", "cluster.master_port")
REPORT = WantedPort(29510, "10.0.0.1", "the node's report", "cluster.report_port", is_agent_port=True)
OBSERVE = WantedPort(29511, "127.0.0.1", "the observers", "observe.listen", is_agent_port=True, vital=False)
CHECK = Ports((API, RENDEZVOUS, REPORT, OBSERVE))
AGENT = 40


def held(wanted: WantedPort, pid: int | None = 50, *, strays: bool = False) -> PortsFacts:
    use = PortUse(wanted.port, "0.0.0.0", pid, "nginx", "root")
    return PortsFacts((HeldPort(wanted, use, "", strays),), AGENT)


@pytest.mark.parametrize(
    ("facts", "level", "says"),
    [
        (PortsFacts((), None), Level.OK, "8000, 29501, 29510, 29511 free"),
        (held(API), Level.BLOCK, "port 8000 of the API is held on 0.0.0.0 by pid 50 (nginx) of root"),
        (held(RENDEZVOUS, None), Level.BLOCK, "port 29501 of the rendezvous is held on 0.0.0.0 by an unknown process"),
        (held(REPORT), Level.BLOCK, "port 29510"),
        (held(REPORT, AGENT), Level.OK, "the agent's own, pid 40"),
        (held(OBSERVE), Level.WARN, "port 29511"),
        (held(OBSERVE, AGENT), Level.OK, "the agent's own, pid 40"),
        (held(OBSERVE, None), Level.OK, "the agent's own, pid 40"),
        (replace(held(REPORT, None), owner_pid=None), Level.BLOCK, "an unknown process"),
        (held(API, AGENT), Level.BLOCK, "pid 40"),
        (held(RENDEZVOUS, strays=True), Level.OK, "port 29501: an engine's, see stray-workers"),
    ],
)
def test_a_port_that_is_needed_and_held_blocks(facts: PortsFacts, level: Level, says: str) -> None:
    expect(CHECK.judge(facts), level, says)


FIX = "sudo sparkd preflight --fix 50"


@pytest.mark.parametrize(
    ("address", "level"),
    [
        *(("10.0.0.1", Level.OK), ("10.0.0.99", Level.BLOCK), ("fd00::9", Level.BLOCK)),
        *((address, Level.OK) for address in ("", "0.0.0.0", "::", "127.0.0.9", "::1", "spark1.lan")),
    ],
)
def test_an_api_on_an_address_that_the_node_lacks_is_not_started_and_awaits_it(
    tree: Tree, address: str, level: Level
) -> None:
    """As of DHCP, at a boot or after a change: vLLM's error would count against the plan until that is given up."""
    tree.listening((22, 5))
    tree.file("/proc/net/fib_trie", "     |-- 10.0.0.1\n        /32 host LOCAL\n")
    verdict = Ports((replace(API, address=address), replace(REPORT, address="10.0.0.98"))).run(Host(tree.root))[1]
    awaits = f"the address {address}" if level is Level.BLOCK else ""
    expect(verdict, level, f"{address}, which this node does not have" if awaits else "free", awaits=awaits)
    for version in (4, 6):
        tree.file(f"/proc/sys/net/ipv{version}/ip_nonlocal_bind", "1\n")
    assert Ports((replace(API, address=address),)).run(Host(tree.root))[1].level is Level.OK, "vLLM can bind any"


def test_nobody_is_ended_for_a_port() -> None:
    expect(CHECK.judge(held(API)), fixes=(), clears=False, hint=f"stop it if it may go: {FIX}; or change args.port")


def test_what_only_warns_is_stopped_by_what_works_while_the_agent_serves() -> None:
    """Beside an agent that is not blocked `preflight --fix` is refused. Without one it ends the holder."""
    facts, offers = held(OBSERVE), ((EndProcess(50, 0, "nginx"),),)
    hint = "stop it if it may go: sudo kill 50; or change observe.listen"
    expect(CHECK.judge(facts), Level.WARN, hint=hint, offers=offers)
    (port,) = facts.held
    facts = replace(
        facts, held=(replace(port, use=replace(port.use, service_stop="sudo systemctl stop cron.service")),)
    )
    hint = "sudo systemctl stop cron.service; if it outlives that: sudo kill 50; or change observe.listen"
    expect(CHECK.judge(facts), Level.WARN, hint=f"stop it if it may go: {hint}", offers=offers)


def judged(tree: Tree, docker: DockerFacts | None = None) -> Verdict:
    if not (tree.root / "proc/1").exists():
        tree.process(1, "systemd", parent=0)
    facts = docker or DockerFacts(True, ())
    return CHECK.run(Host(tree.root, docker=lambda: facts))[1]


def listen_on(tree: Tree, address: str, port: int, inode: int) -> None:
    """Somebody listens on one IPv4 address."""
    words = "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
    rest = f"00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0"
    tree.file("/proc/net/tcp", f"head\n   0: {words}:{port:04X} {rest}\n")


def test_a_container_that_shares_the_nodes_network_is_named(tree: Tree) -> None:
    tree.process(50, "python3", opened=("socket:[5]",), cgroup=CGROUP)
    tree.listening((8000, 5))
    theirs = DockerFacts(True, (ContainerFacts(ID, "open-webui", (), True, 50, "sha256:1", "always"),))
    words = "pid 50 (python3) of uid 0 in container open-webui stop it if it may go: sudo docker stop open-webui"
    expect(judged(tree, theirs), Level.BLOCK, text=words)


def test_a_container_of_others_than_docker_is_ended_by_its_process(tree: Tree) -> None:
    tree.process(50, "python3", opened=("socket:[5]",), cgroup=CGROUP)
    tree.listening((8000, 5))
    expect(judged(tree), Level.BLOCK, hint=f"stop it if it may go: {FIX}; or change args.port")
    hint = f"stop it if it may go: sudo docker stop {ID[:12]}; or change args.port"
    expect(judged(tree, DockerFacts(True, (), error="no answer")), Level.BLOCK, hint=hint)


@pytest.mark.parametrize(
    ("pid", "comm", "cgroup", "words"),
    [
        (50, "docker-proxy", "/system.slice/docker.service", "sudo docker ps --filter publish=8000"),
        (50, "dockerd", "/system.slice/docker.service", "sudo docker ps --filter publish=8000"),
        (1, "systemd", "/init.scope", "systemctl list-sockets"),
    ],
)
def test_a_process_that_holds_a_port_for_another_one_is_not_to_be_killed(
    tree: Tree, pid: int, comm: str, cgroup: str, words: str
) -> None:
    """docker's proxy of a published port is in docker's own cgroup, and without userland-proxy dockerd has the port; a
    socket unit's port is open in systemd itself."""
    tree.process(pid, comm, parent=0, opened=("socket:[5]",), cgroup=f"0::{cgroup}")
    tree.listening((8000, 5))
    verdict = judged(tree)
    expect(verdict, Level.BLOCK, text=words, offers=())
    assert "kill" not in verdict.hint
    assert ("if that shows none, it is docker's own: change the port" in verdict.hint) is (comm == "dockerd")


def test_of_processes_that_share_a_socket_the_oldest_is_named(tree: Tree) -> None:
    tree.process(60, "nginx", start_time=300, opened=("socket:[5]",))
    tree.process(70, "master", start_time=200, opened=("socket:[5]",))
    tree.listening((8000, 5))
    assert "pid 70 (master)" in judged(tree).reason


def test_a_holder_that_stray_workers_names_is_left_to_it(tree: Tree) -> None:
    tree.process(10, "VLLM::Worker_TP", group=9, opened=("socket:[5]",))
    tree.listening((29501, 5))
    assert judged(tree).level is Level.OK
    host = Host(tree.root, docker=lambda: DockerFacts(True, ()))
    warns = replace(CHECK, strays_only_warn=True, allowed_fixes=("end-process",))
    assert warns.run(host)[1].level is Level.OK, "it ends strays also where it only warns"
    assert replace(warns, allowed_fixes=()).run(host)[1].level is Level.BLOCK
    tree.process(30, "vllm", argv=("vllm", "serve"))
    assert warns.run(host)[1].level is Level.BLOCK, "beside a living engine no fix is applied"
    (tree.root / "proc/30/cmdline").unlink()
    reason = "port 29501 of the rendezvous is held on 0.0.0.0 by pid 10 (VLLM::Worker_TP) of uid 0"
    assert replace(CHECK, stray_check=None).run(host)[1].reason == reason


def test_what_stray_workers_would_not_end_holds_its_port_where_that_only_warns(tree: Tree) -> None:
    tree.process(9, "python3")
    tree.process(10, "VLLM::EngineCor", parent=9, group=9, opened=("socket:[5]",))
    tree.listening((29501, 5))
    host = Host(tree.root, docker=lambda: DockerFacts(True, ()))
    assert CHECK.run(host)[1].level is Level.OK
    expect(replace(CHECK, strays_only_warn=True).run(host)[1], Level.BLOCK, "port 29501 of the rendezvous is held")


def test_a_port_of_sparkds_container_is_left_to_stray_workers(tree: Tree) -> None:
    tree.process(50, "python3", opened=("socket:[5]",), cgroup=CGROUP)
    tree.listening((8000, 5))
    labels = (("io.sparkd.role", "head"),)
    ours = DockerFacts(True, (ContainerFacts(ID, "sparkd-rank0", labels, True, 50, "sha256:1", "no"),))
    assert judged(tree, ours).level is Level.OK


def test_the_agents_own_ports_are_no_trouble_of_its_own(tree: Tree) -> None:
    tree.owner(AGENT)
    tree.process(AGENT, "sparkd", opened=("socket:[5]", "socket:[6]"))
    tree.listening((29510, 5), (29511, 6))
    expect(judged(tree), Level.OK, "the node's report, port 29510: the agent's own, pid 40")


@pytest.mark.parametrize(
    ("address", "port", "level"),
    [
        ("10.0.0.1", 29510, Level.BLOCK),
        ("0.0.0.0", 29510, Level.BLOCK),
        ("127.0.0.1", 29510, Level.OK),
        ("127.0.0.1", 29501, Level.BLOCK),
        ("10.0.0.1", 29511, Level.OK),
        ("127.0.0.1", 22, Level.OK),
    ],
)
def test_a_program_that_listens_on_another_address_is_not_in_the_way(
    tree: Tree, address: str, port: int, level: Level
) -> None:
    tree.process(50, "other", opened=("socket:[5]",))
    listen_on(tree, address, port, 5)
    assert judged(tree).level is level


@pytest.mark.parametrize(
    ("words", "level"),
    [
        pytest.param("0" * 32, Level.BLOCK, id="::"),
        pytest.param("0000000000000000FFFF00000100000A", Level.BLOCK, id="::ffff:10.0.0.1"),
        pytest.param("00000000000000000000000001000000", Level.OK, id="::1"),
    ],
)
def test_ipv6_is_in_the_way_where_it_is_the_same_address(tree: Tree, words: str, level: Level) -> None:
    tree.process(50, "other", opened=("socket:[5]",))
    tree.listening()
    rest = f"{'0' * 32}:0000 0A 00000000:00000000 00:00000000 00000000     0        0 5 1 0"
    tree.file("/proc/net/tcp6", f"head\n   0: {words}:{29510:04X} {rest}\n")
    assert judged(tree).level is level


@pytest.mark.parametrize(
    ("wanted", "listening", "level"),
    [
        ("0.0.0.0", "127.0.0.1", Level.BLOCK),
        ("0.0.0.0", "0.0.0.0", Level.BLOCK),
        ("::", "0.0.0.0", Level.BLOCK),
        ("", "127.0.0.1", Level.BLOCK),
        ("fd00::a", "0.0.0.0", Level.OK),
        ("localhost", "127.0.0.1", Level.BLOCK),
    ],
)
def test_a_listener_is_in_the_way_of_addresses_of_its_family_alone(
    tree: Tree, wanted: str, listening: str, level: Level
) -> None:
    listen_on(tree, listening, 8000, 5)
    check = Ports((WantedPort(8000, wanted, "the API", "args.port", is_agent_port=True),))
    assert check.run(Host(tree.root))[1].level is level


def test_no_process_is_looked_at_where_all_ports_are_free(tree: Tree) -> None:
    tree.listening((22, 5))
    (tree.root / "proc/1").write_text("no folder, and no process")
    assert CHECK.run(Host(tree.root))[1].level is Level.OK
