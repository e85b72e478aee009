"""Memory and limits as a real kernel writes them."""

import textwrap

from tests.integration import world

COMMON = """
    import json, mmap, os, resource, subprocess, time
    from sparkd.base.host import Host, consumers, meminfo, processes
    from sparkd.agent.preflight.checks.limits import ShmSize

    def near(sizes, expected):
        return all(abs(size - wanted) < resource.getpagesize() for size, wanted in zip(sizes, expected))

    def shm(size):
        subprocess.run(["mount", "-o", f"remount,size={size}", "/dev/shm"], check=True)
"""


def run(code: str) -> object:
    return world.run(textwrap.dedent(COMMON) + textwrap.dedent(code))


def test_a_shared_memory_that_somebody_mounted_tiny_is_seen_with_what_fills_it() -> None:
    printed = run("""
        from tests.unit.plans import HEAD, plan
        check = ShmSize(plan(HEAD), host_ipc=True)
        readings = []
        def look():
            facts = check.probe(Host())
            kernels = os.statvfs("/dev/shm")
            expected = (kernels.f_blocks * kernels.f_frsize, kernels.f_bavail * kernels.f_frsize)
            readings.append([check.judge(facts).level.value, near(expected, (facts.total_bytes, facts.free_bytes))])
        look()
        shm("64m")
        look()
        shm("2g")
        with open("/dev/shm/psm_01234567", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 1900 << 20)
            look()
        os.unlink("/dev/shm/psm_01234567")
        shm("1g")
        look()
        print(json.dumps(readings))
    """)
    assert printed == [["ok", True], ["block", True], ["warn", True], ["ok", True]]


def test_a_process_holds_its_own_memory_and_what_it_shares() -> None:
    printed = run("""
        shared = mmap.mmap(-1, 64 << 20)
        shared.write(b"x" * (64 << 20))
        readers = []
        for _ in range(2):
            pid = os.fork()
            if not pid:
                own = bytearray(b"y" * (48 << 20))
                shared.seek(0)
                shared.read(64 << 20)
                time.sleep(60)
                os._exit(0)
            readers.append(pid)
        host = Host()
        deadline = time.monotonic() + 30
        while True:
            chosen = [process for process in host.processes() if process.pid in readers]
            held = {}
            for process in chosen:
                users = consumers.read_consumers(host.files, [process], {})
                held |= {process.pid: user.bytes >> 20 for user in users}
            if (len(held) == 2 and min(held.values()) >= 112) or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        print(json.dumps({"held": sorted(held.values())}))
        for pid in readers:
            os.kill(pid, 9)
    """)
    assert isinstance(printed, dict)
    # The interpreter's own is some 20 MiB beside 48 of each and the 64 that they share; copying doubles the 48 at most.
    assert len(printed["held"]) == 2
    assert all(112 <= held < 64 + 2 * 48 + 40 for held in printed["held"]), printed


def test_the_kernels_table_of_swap_is_understood() -> None:
    printed = run("""
        with open("/proc/swaps") as table:
            kernels = [int(line.split()[2]) * 1024 for line in table if not line.startswith("Filename")]
        print(json.dumps([[swap.bytes for swap in meminfo.read_swaps(Host().files)], kernels]))
    """)
    assert isinstance(printed, list)
    assert printed[0] == printed[1]
