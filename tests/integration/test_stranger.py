"""The stranger of these tests has no rights, and leaves nothing behind."""

from pathlib import Path

from tests.integration.stranger import UID, Stranger

RIGHTS = """\
import os
caps = [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")]
print("rights", os.getresuid(), os.getresgid(), os.getgroups(), int(caps[0], 16), os.getsid(0) == os.getpid())
"""
FAMILY = """\
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for depth in range(3):
    if os.fork():
        if depth == 1:
            os._exit(0)
        time.sleep(600)
    os.setsid()
print("ready", os.getpid(), os.getppid(), flush=True)
time.sleep(600)
"""


def test_a_stranger_has_no_rights() -> None:
    with Stranger(RIGHTS) as stranger:
        ids = (UID, UID, UID)
        assert stranger.wait_for("rights") == f"rights {ids} {ids} [] 0 True"


def test_all_that_descends_from_a_stranger_ends_with_him() -> None:
    with Stranger(FAMILY) as stranger:
        family = [stranger.pid, *map(int, stranger.wait_for("ready").split()[1:])]
        assert all(Path(f"/proc/{pid}").exists() for pid in family)
    assert not any(Path(f"/proc/{pid}").exists() for pid in family)
