"""Processes on a real kernel, and the segments that they use."""

from tests.integration.preflight_world import run


def test_a_zombie_is_dead() -> None:
    printed = run("""
        zombie = subprocess.Popen(["true"])
        living = subprocess.Popen(["sleep", "60"])
        time.sleep(0.5)
        processes = Host().processes()
        print(json.dumps({"zombie": processes.get(zombie.pid).dead, "living": processes.get(living.pid).dead}))
        living.kill()
    """)
    assert printed == {"zombie": True, "living": False}


def test_a_segment_that_is_mapped_or_open_is_in_use_whatever_the_kernel_calls_it() -> None:
    printed = run("""
        import mmap

        with open("/dev/shm/psm_mapped", "wb+") as mapped:
            mapped.truncate(4096)
            area = mmap.mmap(mapped.fileno(), 4096)
        for name in ("psm_opened", "psm_unused"):
            open(f"/dev/shm/{name}", "w").close()
        # Opened by another path, which is the one that /proc shows.
        os.mkdir("/run/elsewhere")
        subprocess.run(["mount", "--bind", "/dev/shm", "/run/elsewhere"], check=True)
        opened = open("/run/elsewhere/psm_opened")
        host = Host()
        segments = host.segments()
        uses = host.segment_uses(host.processes(), segments)
        print(json.dumps({
            "pids": {segment.name: uses.pids(segment) for segment in segments},
            "unreadable": uses.unreadable_pids,
        }))
    """)
    assert printed == {"pids": {"psm_mapped": [1], "psm_opened": [1], "psm_unused": []}, "unreadable": []}
