"""What processes do and wait for: from files, and from this kernel's own."""

import signal
import subprocess
import sys
import time

from tests.tree import Tree
from tests.unit.nodes import until

from sparkd.agent.engine.load_monitor import FAULTS_PER_SECOND
from sparkd.base.host import Host
from sparkd.base.host.activity import Activity, read_activity
from sparkd.base.host.processes import Process
from sparkd.base.host.waits import read_waits

IO = "rchar: 900\nwchar: 5\nread_bytes: {}\nwrite_bytes: 7\ncancelled_write_bytes: 0\n"
FILL = "import mmap\nwhile True:\n m = mmap.mmap(-1, 1 << 22)\n m[:] = bytes(1 << 22)\n m.close()"


def below(host: Host, pid: int) -> list[Process]:
    table = host.processes()
    return [*filter(None, (table.get(pid), *table.descendants(pid)))]


def thread(tree: Tree, pid: int, tid: int, state: str = "S", wchan: str = "0", stack: str = "") -> None:
    rest = " ".join(["1", "1", "1"] + ["0"] * 12 + ["1", "0", "77", "0"])
    tree.file(f"/proc/{pid}/task/{tid}/stat", f"{tid} (python3) {state} {rest}\n")
    tree.file(f"/proc/{pid}/task/{tid}/wchan", wchan)
    if stack:
        tree.file(f"/proc/{pid}/task/{tid}/stack", stack)


def test_the_sums_are_of_all_processes_and_their_ended_children(tree: Tree) -> None:
    for pid, read in ((10, 100), (11, 30)):
        tree.process(pid, "vllm")  # minflt 1, cminflt 2, majflt 3, cmajflt 4; utime 5, stime 6, cutime 7, cstime 8
        tree.file(f"/proc/{pid}/io", IO.format(read))
    tree.process(12, "vllm")  # a kernel without CONFIG_TASK_IO_ACCOUNTING
    host = Host(tree.root)
    gone = Process(13, "vllm", "S", 1, 1, 1, 1)
    assert read_activity(host.files, [*host.processes(), gone]) == Activity(130 + 2 * 7 + 3 * 7 * 4096, 3 * 0.26, 9)


def test_the_places_most_threads_wait_in_are_named_and_no_more_than_four(tree: Tree) -> None:
    tree.process(10, "VLLM::Worker_TP")
    for tid in range(20, 23):
        thread(tree, 10, tid, wchan="futex_wait_queue")
    for tid in range(30, 32):
        thread(tree, 10, tid, wchan="0", state="R")
    frames = "[<0>] do_poll.constprop.0+0x1/0x2\n[<0>] a+0x1/0x2\n[<0>] b+0x1/0x2\n[<0>] c+0x1/0x2\n"
    thread(tree, 10, 40, wchan="do_poll", stack=frames)
    for tid, name in enumerate(("x", "y"), start=50):
        thread(tree, 10, tid, wchan=name)
    host = Host(tree.root)
    waits = read_waits(host.files, below(host, 10))
    assert waits.text == (
        "3 of VLLM::Worker_TP in futex_wait_queue, 2 of VLLM::Worker_TP in state R, "
        "1 of VLLM::Worker_TP in do_poll.constprop.0 < a < b, 1 of VLLM::Worker_TP in x"
    )
    assert waits.halted_tids == frozenset()


def test_a_thread_that_waits_for_no_other_rank_is_halted(tree: Tree) -> None:
    for pid, (state, place) in enumerate((("D", "nv_wait"), ("T", "do_signal_stop"), ("S", "do_freezer_trap")), 10):
        tree.process(pid, "vllm")
        thread(tree, pid, 1, wchan="futex_wait_queue")
        assert not read_waits(Host(tree.root).files, below(Host(tree.root), pid)).halted_tids
        thread(tree, pid, 2, state, place)
        assert read_waits(Host(tree.root).files, below(Host(tree.root), pid)).halted_tids == {2}


def grown(program: str, seconds: float) -> Activity:
    """Activity of a Python process within so many seconds of CPU, without what it reads."""
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            time.sleep(0.3)
            first = now = read_activity(Host().files, below(Host(), process.pid))
            deadline = time.monotonic() + 20
            while now.cpu_seconds - first.cpu_seconds < seconds and time.monotonic() < deadline:
                time.sleep(0.05)
                now = read_activity(Host().files, below(Host(), process.pid))
            return Activity(0, now.cpu_seconds - first.cpu_seconds, now.faults - first.faults)
        finally:
            process.kill()


def test_on_this_kernel_a_process_that_spins_has_no_page_faults_and_one_that_fills_memory_has() -> None:
    spun = grown("while True: pass", 0.3)
    assert spun.faults < FAULTS_PER_SECOND * spun.cpu_seconds
    filled = grown(FILL, 0.3)
    assert filled.faults > FAULTS_PER_SECOND * filled.cpu_seconds


def test_on_this_kernel_the_threads_of_a_stopped_process_are_named() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            process.send_signal(signal.SIGSTOP)
            until(lambda: read_waits(Host().files, below(Host(), process.pid)).halted_tids)
            waits = read_waits(Host().files, below(Host(), process.pid))
            assert waits.text.startswith("1 of sleep in do_signal_stop")
        finally:
            process.kill()
