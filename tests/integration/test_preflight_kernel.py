"""Preflight on a real kernel: real orphans, real segments, real sockets, real locks."""

import textwrap

import pytest
from tests.integration import world

COMMON = """
    import json, os, signal, subprocess, sys, time
    from msgspec import to_builtins
    from sparkd.base.host import Host
    from sparkd.agent.preflight.checks.stray_workers import StrayWorkers
    from sparkd.agent.preflight.checks.shared_memory import SharedMemory
    from tests.integration.engine_alike import SEGMENT, SEMAPHORE

    def engine(*more):
        process = subprocess.Popen([sys.executable, "-m", "tests.integration.engine_alike", "29501", *more],
                                   stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"up\\n"
        return process

    def age(seconds=3600):
        for path in (SEGMENT, SEMAPHORE):
            os.utime(path, (time.time() - seconds, time.time() - seconds))

    def verdict_of(check, host=None):
        verdict = check.judge(check.probe(host or Host()))
        return {"level": verdict.level.value, "reason": verdict.reason, "clears": verdict.clears,
                "fixes": [fix.target.partition(" (")[2].rstrip(")") or fix.target for fix in verdict.fixes]}

    def orphaned(*more):
        process = engine(*more)
        process.kill()
        process.wait()
"""


def run(code: str) -> object:
    return world.run(textwrap.dedent(COMMON) + textwrap.dedent(code))


def test_an_engine_whose_main_process_was_killed_is_a_stray_and_its_segments_are_its_own() -> None:
    printed = run("""
        orphaned()
        age()
        strays, shm = StrayWorkers(), SharedMemory()
        print(json.dumps([verdict_of(strays), verdict_of(shm)]))
    """)
    assert isinstance(printed, list)
    strays, shm = printed
    assert (strays["level"], strays["clears"]) == ("block", True)
    assert strays["fixes"] == ["VLLM::EngineCor", "VLLM::Worker_TP"]
    assert "port 29501" in strays["reason"]
    assert shm["reason"] == "no orphaned segments, 2 in use"


def test_a_living_engine_is_named_with_its_port_and_left_alone() -> None:
    printed = run("""
        process = engine()
        # Its own main process is known by its arguments, which only a real `vllm serve` has.
        print(json.dumps(verdict_of(StrayWorkers())))
        process.kill()
    """)
    assert isinstance(printed, dict)
    assert (printed["level"], printed["clears"], printed["fixes"]) == ("block", False, [])
    assert printed["reason"].startswith("a living engine")
    assert "port 29501" in printed["reason"]


def test_a_port_of_another_process_is_named_with_its_holder_and_one_of_the_nodes_owner_is_good() -> None:
    printed = run("""
        import socket
        from sparkd.agent.actions.owner_lock import acquire_lock
        from sparkd.base.host.owner import NodeOwner
        from sparkd.agent.preflight.checks.ports import Ports, WantedPort

        v4 = socket.create_server(("127.0.0.1", 29511))
        v6 = socket.create_server(("::", 29510), family=socket.AF_INET6, dualstack_ipv6=True)
        report = WantedPort(29510, "127.0.0.1", "the node's report", "cluster.report_port", is_agent_port=True)
        observers = WantedPort(29511, "127.0.0.1", "the observers", "observe.listen", is_agent_port=True, vital=False)
        elsewhere = WantedPort(29511, "10.0.0.1", "the API", "args.port")
        answers = [verdict_of(Ports((port,))) for port in (report, observers, elsewhere)]
        lock = acquire_lock(Host(), NodeOwner(os.getpid(), "a test", "0" * 32))
        print(json.dumps([*answers, verdict_of(Ports((report, observers)))]))
    """)
    assert isinstance(printed, list)
    assert [verdict["level"] for verdict in printed] == ["block", "warn", "ok", "ok"]
    assert "is held on :: by pid 1 (python" in printed[0]["reason"]
    assert "the observers, port 29511: the agent's own, pid 1" in printed[3]["reason"]


@pytest.mark.parametrize("manner", ["", "'stubborn'"])
def test_the_gate_ends_strays_unlinks_their_segments_and_passes(manner: str) -> None:
    printed = run(f"""
        from sparkd.agent.preflight.gate import Gate, GateIO
        from sparkd.base.config.settings import Preflight
        from sparkd.agent.actions import Actions
        from sparkd.base.host.owner import NodeOwner
        from sparkd.base.lib.log import events
        from sparkd.base.lib.redaction import Redaction
        from sparkd.base.lib.main_loop import MainLoop
        from sparkd.base.lib.systemd import Notifier

        orphaned({manner})
        age()
        lines = []
        loop, host = MainLoop(Notifier(), {{}}), Host()
        actions = Actions.acquire(host, loop, NodeOwner(os.getpid(), "a test", "0" * 32))
        reporter = events(lambda _, line: lines.append(line), Redaction())
        io = GateIO(actions.apply, tuple, wait=lambda *_: None, loop=loop, events=reporter, show=lambda _: None)
        policy = Preflight(allow_fixes=("end-process", "unlink-segment"), wait_seconds=0)
        # PID 1 reaps, as init does: a zombie is no stray, but it would be named.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        admission = Gate(lambda earlier: (StrayWorkers(), SharedMemory()), host, policy, io).admit()
        print(json.dumps({{
            "states": [(applied.fix.kind, applied.state, applied.note) for applied in admission.fixes],
            "levels": [finding.verdict.level.value for finding in admission.findings],
            "left": [segment.name for segment in host.segments()],
            "events": [line.split()[0] for line in lines],
        }}))
    """)
    assert isinstance(printed, dict)
    assert printed["levels"] == ["ok", "ok"], printed
    assert printed["left"] == []
    assert [state[:2] for state in printed["states"]] == [
        ["end-process", "applied"],
        ["end-process", "applied"],
        ["unlink-segment", "applied"],
        ["unlink-segment", "applied"],
    ]
    if manner:
        assert any("SIGKILL" in note for _kind, _state, note in printed["states"])
    assert printed["events"][-1] == "preflight.gate.passed"


def test_orphaned_segments_are_found_by_age_and_use() -> None:
    printed = run("""
        orphaned()
        age()
        host = Host()
        for process in host.processes():
            if process.comm.startswith("VLLM::"):
                os.kill(process.pid, signal.SIGKILL)
                os.waitpid(process.pid, 0)
        orphans = verdict_of(SharedMemory())
        age(30)
        young = verdict_of(SharedMemory())
        print(json.dumps([orphans, young]))
    """)
    assert isinstance(printed, list)
    orphans, young = printed
    assert (orphans["level"], sorted(orphans["fixes"])) == (
        "warn",
        ["/dev/shm/psm_0123abcd", "/dev/shm/sem.mp-a8x_0lk2"],
    )
    assert (young["level"], young["fixes"]) == ("ok", [])


def test_a_segment_that_is_mapped_or_open_is_in_use_whatever_the_kernel_calls_it() -> None:
    printed = run("""
        import mmap
        host = Host()
        with open("/dev/shm/psm_00000001", "wb+") as mapped, open("/dev/shm/psm_00000002", "wb+") as opened:
            mapped.truncate(4096)
            area = mmap.mmap(mapped.fileno(), 4096)
            mapped.close()
            os.mkdir("/run/elsewhere")
            subprocess.run(["mount", "--bind", "/dev/shm", "/run/elsewhere"], check=True)
            other = open("/run/elsewhere/psm_00000002")
            open("/dev/shm/psm_00000003", "w").close()
            segments = host.segments()
            uses = host.segment_uses(host.processes(), segments)
            print(json.dumps([[segment.name, uses.pids(segment)] for segment in segments] + [uses.unreadable_pids]))
    """)
    assert printed == [["psm_00000001", [1]], ["psm_00000002", [1]], ["psm_00000003", []], []]


def test_the_holder_of_the_lock_is_found_without_keeping_it() -> None:
    printed = run("""
        from sparkd.agent.actions.owner_lock import acquire_lock
        from sparkd.base.host.owner import OWNER_LOCK, NodeOwner

        host = Host()
        before = host.owner()
        fd = acquire_lock(Host(), NodeOwner(os.getpid(), "sparkd run --role head", "f" * 32))
        waits = subprocess.Popen(["flock", OWNER_LOCK, "true"])
        time.sleep(0.3)
        held = host.owner()
        mode = os.stat(OWNER_LOCK).st_mode
        os.unlink("/run/sparkd/owner.json")
        unnamed = host.owner()
        os.close(fd)
        waits.wait()
        print(json.dumps([before, held.pid, held.command, held.invocation, mode, to_builtins(unnamed), host.owner()]))
    """)
    owner = [1, "sparkd run --role head", "f" * 32]
    assert printed == [None, *owner, 0o100600, {"pid": 0, "command": "", "invocation": "", "start_time": 0}, None]


def test_the_node_has_one_owner_and_the_next_learns_its_name() -> None:
    printed = run("""
        from sparkd.agent.actions.owner_lock import acquire_lock
        from sparkd.base.host.owner import NodeOwner
        from sparkd.base.lib.errors import BlockedError

        first = acquire_lock(Host(), NodeOwner(os.getpid(), "sparkd run --role head", "a" * 32))
        try:
            acquire_lock(Host(), NodeOwner(2, "sparkd preflight", "b" * 32))
        except BlockedError as error:
            print(json.dumps([int(error.code), error.reason]))
        os.close(first)
        os.close(acquire_lock(Host(), NodeOwner(os.getpid(), "sparkd preflight", "b" * 32)))
    """)
    assert printed == [10, "this node is owned by pid 1 (sparkd run --role head)"]


def test_a_user_without_rights_cannot_hold_the_lock_and_is_named_where_its_file_was_open() -> None:
    printed = run("""
        from sparkd.agent.actions.owner_lock import acquire_lock
        from sparkd.base.host.owner import OWNER_LOCK, NodeOwner
        from sparkd.base.lib.errors import BlockedError

        def try_as_nobody():
            return subprocess.Popen(
                ["setpriv", "--reuid=65534", "--clear-groups", "flock", "--no-fork", "-n", OWNER_LOCK, "sleep", "600"],
                stderr=subprocess.DEVNULL,
            )

        me = NodeOwner(os.getpid(), "sparkd run --role head", "a" * 32)
        os.makedirs("/run/sparkd")
        open(OWNER_LOCK, "w").close()
        os.chmod(OWNER_LOCK, 0o644)
        intruder = try_as_nobody()
        time.sleep(0.5)
        try:
            acquire_lock(Host(), me)
        except BlockedError as error:
            named = [error.reason, error.hint]
        intruder.kill()
        intruder.wait()
        second = try_as_nobody()
        refused = second.wait(10) != 0
        os.close(acquire_lock(Host(), me))
        print(json.dumps([*named, refused]))
    """)
    who = "the process that holds /run/sparkd/hands.lock, which /run/sparkd/owner.json does not name"
    assert printed == [f"this node is owned by {who}", "see which it is: sudo fuser -v /run/sparkd/hands.lock", True]


def test_listeners_and_their_holders_of_both_families() -> None:
    printed = run("""
        import socket
        four = socket.create_server(("127.0.0.1", 8000))
        six = socket.create_server(("::", 8001), family=socket.AF_INET6)
        host = Host()
        holders = host.port_holders(host.processes(), host.listeners())
        print(json.dumps(sorted((holder.listener.address, holder.listener.port, holder.pid) for holder in holders)))
    """)
    assert printed == [["127.0.0.1", 8000, 1], ["::", 8001, 1]]


def test_a_socket_for_ipv6_alone_keeps_its_port_from_nobody_of_ipv4() -> None:
    """Each port is tried as well: what the check says is what bind(2) does."""
    printed = run("""
        import socket
        from sparkd.agent.preflight.checks.ports import Ports, WantedPort

        def serve(port, only):
            six = socket.socket(socket.AF_INET6)
            six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
            six.bind(("::", port))
            six.listen()
            return six

        def taken(family, address, port):
            with socket.socket(family) as sock:
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                try:
                    sock.bind((address, port))
                except OSError:
                    return True
            return False

        kept = [serve(8000, 0), serve(8001, 1)] + [serve(9000 + n, n % 2) for n in range(900)]
        answers = []
        for port in (8000, 8001):
            for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "")):
                check = Ports((WantedPort(port, address, "the API", "args.port"),))
                answers.append([check.run(host := Host())[1].level.value == "block", taken(family, address, port)])
        print(json.dumps([answers, sum(listener.only_ipv6 for listener in host.listeners())]))
    """)
    blocked = [[True, True]] * 3
    assert printed == [[*blocked, [False, False], [False, False], [True, True]], 451]


def test_own_addresses_are_those_of_the_interfaces() -> None:
    printed = run("""
        subprocess.run(["ip", "link", "add", "spark0", "type", "veth", "peer", "name", "spark1"], check=True)
        subprocess.run(["ip", "address", "add", "10.0.0.1/24", "dev", "spark0"], check=True)
        subprocess.run(["ip", "link", "set", "spark0", "up"], check=True)
        print(json.dumps(sorted(address for address in Host().addresses() if not address.startswith("fe80"))))
    """)
    assert printed == ["10.0.0.1", "127.0.0.1", "::1"]


def test_a_zombie_is_dead() -> None:
    printed = run("""
        zombie = subprocess.Popen(["true"])
        living = subprocess.Popen(["sleep", "60"])
        time.sleep(0.5)
        host = Host()
        table = host.processes()
        print(json.dumps([table.get(zombie.pid).dead, table.get(living.pid).dead]))
        living.kill()
    """)
    assert printed == [True, False]


def test_a_dry_run_beside_strays_leaves_every_process_segment_and_lock_as_it_was() -> None:
    printed = run("""
        orphaned()
        age()

        def machine():
            host = Host()
            processes = [(p.pid, p.comm, p.start_time) for p in host.processes() if p.pid != os.getpid()]
            return [processes, [(s.name, s.inode) for s in host.segments()], sorted(os.listdir("/run"))]

        before = machine()
        done = subprocess.run(
            [sys.executable, "-B", "-m", "tests.unit.audited", "/proc/self/fd/2", "preflight", "--dry-run", "--json"],
            env={**os.environ, "SPARKD_ENGINE__RECIPE": "tiny-cpu"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        printed = json.loads(done.stdout)
        print(json.dumps({
            "same": machine() == before,
            "code": done.returncode,
            "offences": done.stderr.decode(),
            "kinds": sorted({fix["kind"] for check in printed["checks"] for fix in check["fixes"]}),
        }))
    """)
    assert printed == {"same": True, "code": 10, "offences": "", "kinds": ["end-process"]}
