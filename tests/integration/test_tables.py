"""Tables of the kernel, grown by a user without rights: sparkd does without, or reads a part and names the user."""

import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from tests.integration import world
from tests.integration.stranger import UID, Stranger

from sparkd.base.host import Host
from sparkd.base.host.owner import OWNER_LOCK
from sparkd.base.host.shm import Segment

WAIT = "\nprint('grown', flush=True); time.sleep(60)\n"
LOCKS = """
import fcntl, os, time
for number in range(30):
    file = os.memfd_create("locks")
    for place in range(1000, 0, -1):
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * place)
"""
SOCKETS = """
import resource, socket, time
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
server = socket.create_server(("127.0.0.1", 0), backlog=4096)
made = []
for _ in range(min(most // 2, 7000) - 50):
    made += (socket.create_connection(server.getsockname()), server.accept()[0])
"""
MAPS = """
import ctypes, mmap, os, sys, time
os.chdir(sys.argv[1])
for _ in range(14):
    os.mkdir("x" * 250)
    os.chdir("x" * 250)
file = os.open("mapped", os.O_RDWR | os.O_CREAT)
os.truncate(file, 8192)
call = ctypes.CDLL(None).mmap
call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
for number in range(25_000):
    call(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, file, 4096 * (number % 2))
"""
SEGMENT = Segment("/dev/shm/psm_0", 1, 1, 1, 1, 0, 1, 1.0)


def shortest(work: Callable[[], object], times: int = 5) -> float:
    """Seconds: other work on the machine makes one of them longer."""

    def measure() -> float:
        began = time.monotonic()
        work()
        return time.monotonic() - began

    return min(measure() for _ in range(times))


@pytest.fixture
def lock() -> Iterator[None]:
    path, before = Path(OWNER_LOCK), Path(OWNER_LOCK).exists()
    path.parent.mkdir(exist_ok=True)
    path.touch(0o600)
    yield
    if not before:
        path.unlink()


def test_very_many_file_locks_hide_no_owner(lock: None) -> None:
    with Stranger(LOCKS + WAIT) as stranger:
        stranger.wait_for("grown")
        assert shortest(Host().owner) < 0.01
        assert Host().owner() is None


def test_connections_of_others_cost_a_look_at_a_port_nothing() -> None:
    with Stranger(SOCKETS + WAIT) as stranger:
        stranger.wait_for("grown")
        assert shortest(lambda: Host().listeners((8000,))) < 0.01


def test_the_mappings_of_a_process_that_has_too_many_are_not_read() -> None:
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o777)
    try:
        with Stranger(MAPS + WAIT, str(folder)) as stranger:
            stranger.wait_for("grown")
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            host = Host()
            own = host.processes().get(stranger.pid)
            assert own is not None
            assert host.segment_uses((own,), (SEGMENT,)).unreadable_pids == (stranger.pid,)
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 48 << 10
    finally:
        shutil.rmtree(folder)


def test_very_many_files_in_dev_shm_stop_neither_the_main_loop_nor_a_start() -> None:
    printed = world.run(
        dedent("""
        import json, os, time, types
        from pathlib import Path
        from tests.integration.stranger import Stranger
        from tests.unit.plans import plan
        from tests.unit.rank_records import rank_record
        from sparkd.agent.engine.rank import Running
        from sparkd.base.host import Host
        from sparkd.base.lib.main_loop import MainLoop
        from sparkd.base.lib.systemd import Notifier
        from sparkd.agent.preflight.checks.limits import ShmSize
        from sparkd.agent.preflight.checks.shared_memory import SharedMemory
        from sparkd.agent.preflight.runner import examine

        os.chmod("/dev/shm", 0o1777)
        grow = "import os, time; [os.close(os.open(f'/dev/shm/psm_{n:08x}', os.O_CREAT | os.O_WRONLY, 0o600)) "
        grow += "for n in range(60_000)]; print('grown', flush=True); time.sleep(60)"
        with Stranger(grow) as stranger:
            stranger.wait_for("grown")
            rank = types.SimpleNamespace(pid=os.getpid())
            running = Running(rank, None, rank_record(), repr, Host(), MainLoop(Notifier(), {}), None)
            began = time.monotonic()
            for _ in range(3):
                running.note_segments()
            seconds = time.monotonic() - began
            checks = SharedMemory(), ShmSize(plan(), host_ipc=True)
            verdicts = [[finding.verdict.level.value, finding.verdict.reason] for finding in examine(checks, Host())]
        print(json.dumps([seconds, *verdicts]))
    """)
    )
    assert isinstance(printed, list)
    seconds, segments, size = printed
    assert seconds < 0.8
    reason = f"could not look: more files in /dev/shm than are read, most of them of uid {UID}"
    assert segments == ["warn", reason]
    assert size[0] == "ok"


def test_whether_docker_listens_is_not_read_from_the_sockets_of_all() -> None:
    printed = world.run(
        dedent("""
        import ctypes, json, socket, time
        from tests.integration.stranger import Stranger
        from sparkd.base.host import Host, docker

        ctypes.CDLL(None).prctl(15, b"dockerd", 0, 0, 0)
        open("/run/docker.pid", "w").write("1")
        server = socket.socket(socket.AF_UNIX)
        server.bind("/run/docker.sock")
        answers = [docker.running(Host())]
        server.listen()
        grow = "import resource, socket, time; most = resource.getrlimit(7)[1]; resource.setrlimit(7, (most, most)); "
        grow += "made = [socket.socketpair() for _ in range(min(most // 2, 10_000) - 50)]; "
        grow += "print('grown', flush=True); time.sleep(60)"
        with Stranger(grow) as stranger:
            stranger.wait_for("grown")
            took = []
            for _ in range(10):
                began = time.monotonic()
                answers.append(docker.running(Host()))
                took.append(time.monotonic() - began)
        server.close()
        answers.append(docker.running(Host()))
        print(json.dumps([answers, min(took)]))
    """)
    )
    assert isinstance(printed, list)
    answers, seconds = printed
    assert answers == [False, *[True] * 10, False]
    assert seconds < 0.005
