"""The node's lock on a real kernel: who holds it, and who can't."""

from tests.integration.preflight_world import run

WHO = "the process that holds /run/sparkd/hands.lock, which /run/sparkd/owner.json does not name"


def test_the_owner_is_known_by_its_account() -> None:
    printed = run("""
        from sparkd.agent.actions.owner_lock import acquire_lock
        from sparkd.base.host.owner import OWNER_LOCK, NodeOwner

        host = Host()
        before = host.owner()
        acquire_lock(host, NodeOwner(os.getpid(), "sparkd run --role head", "f" * 32))
        owner = host.owner()
        print(json.dumps({
            "before": before,
            "pid": owner.pid, "command": owner.command, "invocation": owner.invocation,
            "mode": os.stat(OWNER_LOCK).st_mode,
        }))
    """)
    assert printed == {
        "before": None,
        "pid": 1,
        "command": "sparkd run --role head",
        "invocation": "f" * 32,
        "mode": 0o100600,
    }


def test_a_holder_without_an_account_is_found_by_the_lock_which_is_not_kept() -> None:
    printed = run("""
        from msgspec import to_builtins
        from sparkd.agent.actions.owner_lock import acquire_lock
        from sparkd.base.host.owner import OWNER_FILE, OWNER_LOCK, NodeOwner

        host, me = Host(), NodeOwner(os.getpid(), "sparkd run --role head", "f" * 32)
        lock = acquire_lock(host, me)
        os.unlink(OWNER_FILE)
        # It waits for the lock, and does not hold it. It has it for an instant once the holder lets go.
        waiter = subprocess.Popen(["flock", OWNER_LOCK, "true"])
        time.sleep(0.3)
        unnamed = host.owner()
        os.close(lock)
        waiter.wait()
        after = host.owner()
        # Raises where `host.owner()` has kept the lock.
        os.close(acquire_lock(host, me))
        print(json.dumps({"unnamed": to_builtins(unnamed), "after": after}))
    """)
    assert printed == {"unnamed": {"pid": 0, "command": "", "invocation": "", "start_time": 0}, "after": None}


def test_the_node_has_one_owner_and_the_next_learns_its_name() -> None:
    printed = run("""
        from sparkd.agent.actions.owner_lock import acquire_lock
        from sparkd.base.host.owner import NodeOwner
        from sparkd.base.lib.errors import BlockedError

        first = acquire_lock(Host(), NodeOwner(os.getpid(), "sparkd run --role head", "a" * 32))
        try:
            acquire_lock(Host(), NodeOwner(2, "sparkd preflight", "b" * 32))
        except BlockedError as error:
            print(json.dumps({"code": int(error.code), "reason": error.reason}))
        os.close(first)
        os.close(acquire_lock(Host(), NodeOwner(os.getpid(), "sparkd preflight", "b" * 32)))
    """)
    assert printed == {"code": 10, "reason": "this node is owned by pid 1 (sparkd run --role head)"}


WITH_AN_OPEN_LOCK = """
from sparkd.agent.actions.owner_lock import acquire_lock
from sparkd.base.host.owner import OWNER_LOCK, NodeOwner
from sparkd.base.lib.errors import BlockedError

def lock_as_nobody():
    return subprocess.Popen(
        ["setpriv", "--reuid=65534", "--clear-groups", "flock", "--no-fork", "-n", OWNER_LOCK, "sleep", "600"],
        stderr=subprocess.DEVNULL,
    )

me = NodeOwner(os.getpid(), "sparkd run --role head", "a" * 32)
os.makedirs("/run/sparkd")
open(OWNER_LOCK, "w").close()
os.chmod(OWNER_LOCK, 0o644)
"""
"""As earlier versions of sparkd left the file of the lock: every user could open it."""


def test_a_user_without_rights_who_holds_a_lock_that_was_open_to_all_is_reported_with_the_way_to_find_them() -> None:
    printed = run(
        WITH_AN_OPEN_LOCK,
        """
        intruder = lock_as_nobody()
        time.sleep(0.5)
        try:
            acquire_lock(Host(), me)
        except BlockedError as error:
            print(json.dumps({"reason": error.reason, "hint": error.hint}))
        intruder.kill()
    """,
    )
    assert printed == {
        "reason": f"this node is owned by {WHO}",
        "hint": "see which it is: sudo fuser -v /run/sparkd/hands.lock",
    }


def test_once_root_has_tried_the_lock_no_user_without_rights_can_hold_it() -> None:
    """Even where the try was refused, since such a user had the lock."""
    printed = run(
        WITH_AN_OPEN_LOCK,
        """
        intruder = lock_as_nobody()
        time.sleep(0.5)
        try:
            acquire_lock(Host(), me)
        except BlockedError:
            intruder.kill()
            intruder.wait()
        print(json.dumps({"exit_code": lock_as_nobody().wait(10)}))
        os.close(acquire_lock(Host(), me))
    """,
    )
    assert isinstance(printed, dict)
    assert printed["exit_code"] != 0
