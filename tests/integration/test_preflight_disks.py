"""Disks on a real kernel: what statvfs and /proc/1/mounts say of one that is full, and of one that is read-only."""

import textwrap

from tests.integration import world


def test_a_full_disk_and_a_read_only_one_are_reported() -> None:
    printed = world.run(
        textwrap.dedent("""
            import json, subprocess
            from msgspec.structs import replace
            from sparkd.base.host import Host, disks
            from sparkd.agent.preflight.checks.disk import STATE, DiskFacts, DiskRoom, PlaceFacts

            def verdict():
                (room,) = disks.read_rooms(Host(), ["/mnt/not/yet/made"])
                verdict = DiskRoom().judge(DiskFacts((PlaceFacts(replace(STATE, path=room.path), room),)))
                return [room.mount, room.total_bytes, room.free_bytes, room.read_only, verdict.level.value]

            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "small", "/mnt"], check=True)
            empty = verdict()
            with open("/mnt/big", "wb") as file:
                file.write(bytes(250 << 20))
            full = verdict()
            subprocess.run(["mount", "-o", "remount,ro", "/mnt"], check=True)
            print(json.dumps([empty, full, verdict()]))
        """)
    )
    total, used = 300 << 20, 250 << 20
    assert printed == [
        ["/mnt", total, total, False, "ok"],
        ["/mnt", total, total - used, False, "block"],
        ["/mnt", total, total - used, True, "block"],
    ]
