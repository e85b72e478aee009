"""Strays and their segments on a real kernel: found by preflight, ended by its fixes, left alone by a dry run."""

import pytest
from tests.integration.preflight_world import PORT, run


def test_an_engine_whose_main_process_was_killed_is_a_stray_and_its_segments_are_its_own() -> None:
    printed = run("""
        from sparkd.agent.preflight.checks.shared_memory import SharedMemory
        from sparkd.agent.preflight.checks.stray_workers import StrayWorkers

        orphan_engine()
        age_segments()
        print(json.dumps({"strays": describe(StrayWorkers()), "segments": describe(SharedMemory())}))
    """)
    assert isinstance(printed, dict)
    strays, segments = printed["strays"], printed["segments"]
    assert (strays["level"], strays["clears"]) == ("block", True)
    assert strays["fixes"] == ["VLLM::EngineCor", "VLLM::Worker_TP"]
    assert f"port {PORT}" in strays["reason"]
    assert segments["reason"] == "no orphaned segments, 2 in use"


def test_a_living_engine_is_named_with_its_port_and_left_alone() -> None:
    printed = run("""
        from sparkd.agent.preflight.checks.stray_workers import StrayWorkers

        process = start_engine()
        # Its own main process is known by its arguments, which only a real `vllm serve` has.
        print(json.dumps(describe(StrayWorkers())))
        process.kill()
    """)
    assert isinstance(printed, dict)
    assert (printed["level"], printed["clears"], printed["fixes"]) == ("block", False, [])
    assert printed["reason"].startswith("a living engine")
    assert f"port {PORT}" in printed["reason"]


@pytest.mark.parametrize(
    ("words", "is_killed"), [((), False), (("stubborn",), True)], ids=["ends on SIGTERM", "needs SIGKILL"]
)
def test_the_gate_ends_strays_unlinks_their_segments_and_passes(words: tuple[str, ...], is_killed: bool) -> None:
    printed = run(f"""
        from sparkd.agent.actions import Actions
        from sparkd.agent.preflight.checks.shared_memory import SharedMemory
        from sparkd.agent.preflight.checks.stray_workers import StrayWorkers
        from sparkd.agent.preflight.gate import Gate, GateIO
        from sparkd.base.config.settings import Preflight
        from sparkd.base.host.owner import NodeOwner
        from sparkd.base.lib.log import events
        from sparkd.base.lib.main_loop import MainLoop
        from sparkd.base.lib.redaction import Redaction
        from sparkd.base.lib.systemd import Notifier

        orphan_engine(*{words!r})
        age_segments()
        lines = []
        loop, host = MainLoop(Notifier(), {{}}), Host()
        actions = Actions.acquire(host, loop, NodeOwner(os.getpid(), "a test", "0" * 32))
        reporter = events(lambda _, line: lines.append(line), Redaction())
        io = GateIO(actions.apply, tuple, wait=lambda *_: None, loop=loop, events=reporter, show=lambda _: None)
        policy = Preflight(allow_fixes=("end-process", "unlink-segment"), wait_seconds=0)
        # PID 1 reaps, as init does: a zombie is no stray, but it would be named.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        admission = Gate(lambda _, tried: (StrayWorkers(tried), SharedMemory()), host, policy, io).admit()
        print(json.dumps({{
            "fixes": [{{"kind": applied.fix.kind, "state": applied.state}} for applied in admission.fixes],
            "notes": [applied.note for applied in admission.fixes],
            "levels": [finding.verdict.level.value for finding in admission.findings],
            "segments_left": [segment.name for segment in host.segments()],
            "events": [line.split()[0] for line in lines],
        }}))
    """)
    assert isinstance(printed, dict)
    assert printed["levels"] == ["ok", "ok"], printed
    assert printed["segments_left"] == []
    assert printed["fixes"] == [
        {"kind": "end-process", "state": "applied"},
        {"kind": "end-process", "state": "applied"},
        {"kind": "unlink-segment", "state": "applied"},
        {"kind": "unlink-segment", "state": "applied"},
    ]
    assert any("SIGKILL" in note for note in printed["notes"]) is is_killed
    assert printed["events"][-1] == "preflight.gate.passed"


def test_orphaned_segments_are_found_by_age_and_use() -> None:
    printed = run("""
        from sparkd.agent.preflight.checks.shared_memory import SharedMemory

        orphan_engine()
        age_segments()
        for process in Host().processes():
            if process.comm.startswith("VLLM::"):
                os.kill(process.pid, signal.SIGKILL)
                os.waitpid(process.pid, 0)
        old = describe(SharedMemory())
        age_segments(30)
        print(json.dumps({"old": old, "young": describe(SharedMemory())}))
    """)
    assert isinstance(printed, dict)
    old, young = printed["old"], printed["young"]
    assert old["level"] == "warn"
    assert sorted(old["fixes"]) == ["/dev/shm/psm_0123abcd", "/dev/shm/sem.mp-a8x_0lk2"]
    assert (young["level"], young["fixes"]) == ("ok", [])


def test_a_dry_run_beside_strays_leaves_every_process_segment_and_lock_as_it_was() -> None:
    printed = run("""
        orphan_engine()
        age_segments()

        def machine():
            host = Host()
            processes = [(p.pid, p.comm, p.start_time) for p in host.processes() if p.pid != os.getpid()]
            return [processes, [(s.name, s.inode) for s in host.segments()], sorted(os.listdir("/run"))]

        before = machine()
        done = subprocess.run(
            [sys.executable, "-B", "-m", "tests.unit.audited", "/proc/self/fd/2", "preflight", "--dry-run", "--json"],
            env={**os.environ, "SPARKD_ENGINE__RECIPE": "tiny-cpu"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        checks = json.loads(done.stdout)["checks"]
        print(json.dumps({
            "same": machine() == before,
            "code": done.returncode,
            "offences": done.stderr.decode(),
            "kinds": sorted({fix["kind"] for check in checks for fix in check["fixes"]}),
        }))
    """)
    assert printed == {"same": True, "code": 10, "offences": "", "kinds": ["end-process"]}
