"""The package on booted nodes: it starts nothing, disturbs nothing that serves, and leaves nothing behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bed import Bed
from tests.bed.conftest import MakeNode
from tests.bed.node import Node
from tests.bed.processes import wait_for

from sparkd.tools.setup.sysctl import HEADER

LATE_MICROSECONDS = 3_000_000
UNITS = ("sparkd-head.service", "sparkd-worker.service")

# A service that is up at once and stays, in the place of the agent: this is about the package, not about serving.
STAND_IN = """\
[Service]
ExecStart=
ExecStart=/bin/sh -c 'test -e /root/loads && sleep 8; systemd-notify --ready; exec sleep infinity'
NotifyAccess=all
WatchdogSec=0
"""
ELSEWHERE = """\
[engine]
models_dir = "/data/models"
"""
CLEAR = "dpkg --purge sparkd; rm -rf /etc/systemd/system/sparkd-*.d; systemctl daemon-reload"
# Kept by others than the package, and changed by time alone.
PRUNED = "/proc /sys /dev /run /tmp /root /var/log /var/lib/docker /var/lib/containerd /var/lib/systemd/timers"


@pytest.fixture(scope="module", params=["trixie", pytest.param("bookworm", marks=pytest.mark.whole)])
def suite(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def bare(suite: str, make_node: MakeNode, package: Path) -> Node:
    """A booted node on which the package lies and is not installed."""
    node = make_node(suite)
    node.put(package, "/root/sparkd.deb")
    return node


@pytest.fixture(scope="module")
def unchanged(bare: Node) -> Node:
    """The same node once dpkg has installed it, for rows that change nothing and come after those of the bare one."""
    bare.sh(f"{CLEAR}; dpkg --install /root/sparkd.deb", timeout=120)
    return bare


@pytest.fixture
def installed(bed: Bed, suite: str, package: Path) -> Iterator[Node]:
    """A fresh node with the package."""
    node = bed.node("spark8", suite, package=package)
    assert node.boot() == "running"
    node.sh(f"ln -s {package.name} /root/sparkd.deb")
    yield node
    bed.remove(node)


def files(node: Node) -> set[str]:
    pruned = " -o ".join(f"-path {path}" for path in PRUNED.split())
    listed = node.sh(f"find / -xdev \\( {pruned} \\) -prune -o -print; find /run/sparkd 2>/dev/null || true")
    return set(listed.stdout.splitlines())


def main_pid(node: Node, unit: str) -> str:
    return node.run("systemctl", "show", "--value", "--property", "MainPID", unit).stdout.strip()


def state(node: Node, unit: str) -> tuple[str, str]:
    verbs = ("is-enabled", "is-active")
    enabled, active = (node.run("systemctl", verb, unit, check=False).stdout.strip() for verb in verbs)
    return enabled, active


def stand_in(node: Node) -> None:
    node.write("/etc/systemd/system/sparkd-head.service.d/stand-in.conf", STAND_IN)
    node.sh("systemctl daemon-reload && systemctl start sparkd-head", timeout=60)


def test_a_package_that_was_only_unpacked_goes_without_a_trace(bare: Node) -> None:
    bare.sh(CLEAR)
    before = files(bare)
    bare.sh("dpkg --unpack /root/sparkd.deb && sparkd --version && dpkg --purge sparkd", timeout=120)
    assert files(bare) ^ before == set()


def test_a_purge_leaves_nothing_but_what_is_the_administrators(bare: Node) -> None:
    bare.sh(CLEAR)
    before = files(bare)
    bare.sh("dpkg --install /root/sparkd.deb", timeout=120)
    bare.write("/etc/sparkd/sparkd.toml", ELSEWHERE)
    bare.sh("sparkd units install && systemctl enable sparkd-head && mkdir -p /var/lib/sparkd/cache/x")
    bare.write("/etc/sysctl.d/60-sparkd.conf", f"{HEADER}\n")
    stand_in(bare)
    bare.sh("dpkg --purge sparkd", timeout=120)
    assert files(bare) - before == {
        "/etc/systemd/system/sparkd-head.service.d",
        "/etc/systemd/system/sparkd-head.service.d/stand-in.conf",
    }
    assert before - files(bare) == set()


def test_installing_starts_and_enables_nothing(unchanged: Node) -> None:
    assert [state(unchanged, unit) for unit in UNITS] == [("disabled", "inactive")] * 2


def test_the_program_runs_and_its_units_are_clean(unchanged: Node) -> None:
    assert unchanged.run("sparkd", "--version").stdout.startswith("sparkd ")
    verified = unchanged.run("systemd-analyze", "verify", *UNITS)
    assert (verified.stdout, verified.stderr) == ("", "")
    unchanged.run("sparkd", "units", "check")


COMPILED = """
from importlib.util import cache_from_source
from pathlib import Path

sources = [path for path in Path("/usr/lib/sparkd").rglob("*.py")]
print(len(sources), [str(path) for path in sources if not Path(cache_from_source(str(path))).exists()])
"""


def test_installing_compiles_every_module(unchanged: Node) -> None:
    count, _, missing = unchanged.run("python3", "-c", COMPILED).stdout.strip().partition(" ")
    assert (int(count) > 1000, missing) == (True, "[]")


def test_dropins_follow_the_configuration_and_systemd_reads_them(installed: Node) -> None:
    installed.write("/etc/sparkd/sparkd.toml", ELSEWHERE)
    assert installed.run("sparkd", "units", "check", check=False).returncode == 78
    installed.run("sparkd", "units", "install")
    installed.run("sparkd", "units", "check")
    wanted = installed.run("systemctl", "show", "--value", "--property", "Wants", "sparkd-head").stdout.split()
    assert {"data.mount", "data-models.mount"} <= set(wanted)
    installed.run("sparkd", "units", "remove")
    wanted = installed.run("systemctl", "show", "--value", "--property", "Wants", "sparkd-head").stdout.split()
    assert "data.mount" not in wanted


def test_a_boot_finishes_while_an_enabled_unit_loads(installed: Node) -> None:
    stand_in(installed)
    installed.sh("touch /root/loads; systemctl enable sparkd-head")
    assert installed.reboot() == "running", "while it loads"
    wait_for(lambda: state(installed, UNITS[0]) == ("enabled", "activating"), 5, "it to be started")
    installed.sh("systemd-analyze time")  # fails where the boot has not finished
    assert "ordering cycle" not in installed.sh("journalctl --boot --no-pager").stdout
    reached, started = (
        int(installed.run("systemctl", "show", "--value", "--property", f"{edge}TimestampMonotonic", unit).stdout)
        for unit, edge in (("multi-user.target", "ActiveEnter"), ("sparkd-head", "InactiveExit"))
    )
    assert 0 < reached <= started <= reached + LATE_MICROSECONDS
    installed.run("systemctl", "start", "sparkd-head")  # joins the start that is under way
    assert state(installed, UNITS[0])[1] == "active"
    before = main_pid(installed, "sparkd-head")
    installed.run("systemctl", "isolate", "multi-user.target")
    assert main_pid(installed, "sparkd-head") == before
    installed.sh("rm /root/loads; systemctl disable sparkd-head")
    installed.reboot()
    assert [state(installed, unit) for unit in (*UNITS, "sparkd.target")] == [
        *[("disabled", "inactive")] * 2,
        ("static", "inactive"),
    ]


def test_an_upgrade_keeps_enabled_what_the_boot_itself_started(installed: Node) -> None:
    wants = "/etc/systemd/system/multi-user.target.wants/sparkd-worker.service"
    installed.sh(f"ln -s /usr/lib/systemd/system/sparkd-worker.service {wants}")
    installed.sh("dpkg --install /root/sparkd.deb", timeout=120)
    assert [state(installed, unit)[0] for unit in UNITS] == ["disabled", "enabled"]
    installed.sh(f"test ! -L {wants} && test -L /etc/systemd/system/sparkd.target.wants/sparkd-worker.service")


def test_an_upgrade_leaves_a_serving_unit_alone(installed: Node) -> None:
    stand_in(installed)
    before = main_pid(installed, "sparkd-head")
    assert before != "0"
    installed.sh("dpkg --install /root/sparkd.deb", timeout=120)
    assert main_pid(installed, "sparkd-head") == before


def test_an_upgrade_needs_no_input_and_keeps_the_configuration(installed: Node) -> None:
    installed.write("/etc/sparkd/sparkd.toml", ELSEWHERE)
    installed.write("/etc/sparkd/recipes/mine.yaml", "name: mine\n")
    installed.sh("dpkg --install /root/sparkd.deb </dev/null", timeout=120)
    assert installed.sh("cat /etc/sparkd/sparkd.toml").stdout == ELSEWHERE
    installed.sh("test -s /etc/sparkd/recipes/mine.yaml")


def test_an_upgrade_keeps_the_administrators_needrestart_file(installed: Node) -> None:
    theirs = "/etc/needrestart/conf.d/sparkd.conf"
    assert installed.sh(f"readlink {theirs}").stdout.strip() == "/usr/share/sparkd/needrestart.conf"
    installed.sh(f"rm {theirs}")
    installed.write(theirs, "1;\n")
    installed.sh("dpkg --install /root/sparkd.deb && dpkg --remove sparkd", timeout=180)
    assert installed.sh(f"cat {theirs}").stdout == "1;\n"


def test_an_upgrade_rewrites_a_dropin_of_an_older_template(installed: Node) -> None:
    installed.write("/etc/sparkd/sparkd.toml", ELSEWHERE)
    installed.sh("sparkd units install")
    dropin = "/etc/systemd/system/sparkd-head.service.d/50-sparkd.conf"
    installed.sh(f"echo TimeoutStopSec=1 >>{dropin}")
    assert installed.run("sparkd", "units", "check", check=False).returncode == 78
    installed.sh("dpkg --install /root/sparkd.deb", timeout=120)
    installed.run("sparkd", "units", "check")


def test_an_upgrade_writes_no_dropin_where_there_was_none(installed: Node) -> None:
    installed.write("/etc/sparkd/sparkd.toml", ELSEWHERE)
    installed.sh("dpkg --install /root/sparkd.deb", timeout=120)
    installed.sh("test ! -e /etc/systemd/system/sparkd-head.service.d")


def test_a_removal_continues_where_the_program_was_deleted_by_hand(installed: Node) -> None:
    installed.sh("rm -rf /usr/lib/sparkd")
    installed.sh("dpkg --remove sparkd", timeout=120)


def test_a_purge_keeps_what_the_administrator_mounted(installed: Node) -> None:
    installed.sh("mkdir -p /var/lib/sparkd/cache /var/lib/sparkd/mine/models /root/models && touch /root/models/theirs")
    installed.sh("mount -t tmpfs none /var/lib/sparkd/cache && mount --bind /root/models /var/lib/sparkd/mine/models")
    installed.sh("touch /var/lib/sparkd/cache/theirs && dpkg --purge sparkd", timeout=120)
    installed.sh("test -e /var/lib/sparkd/cache/theirs && test -e /root/models/theirs")


def test_a_removal_that_is_aborted_starts_again_what_ran(installed: Node) -> None:
    stand_in(installed)
    before = main_pid(installed, "sparkd-head")
    held = "/usr/lib/sparkd/app/__pycache__"  # the script can't remove a folder that is mounted, and fails
    installed.sh(f"mkdir -p {held} && mount -t tmpfs none {held}")
    assert installed.sh("dpkg --remove sparkd", timeout=120, check=False).returncode != 0
    installed.sh(f"umount {held}")
    wait_for(lambda: state(installed, UNITS[0])[1] == "active", 30, "it to be started again")
    assert main_pid(installed, "sparkd-head") not in ("0", before)
    assert state(installed, UNITS[1])[1] == "inactive"
    installed.sh("test ! -e /run/sparkd.stopped && sparkd --version")


def test_a_removal_stops_the_units_and_keeps_the_configuration(installed: Node) -> None:
    stand_in(installed)
    installed.write("/etc/sparkd/sparkd.toml", ELSEWHERE)
    serving = main_pid(installed, "sparkd-head")
    installed.sh("mkdir -p /var/lib/sparkd/cache")
    installed.sh("dpkg --remove sparkd", timeout=120)
    assert state(installed, "sparkd-head.service")[1] == "inactive"
    installed.sh(f"test {serving} -gt 1 && test ! -e /proc/{serving}")
    installed.sh("test -s /etc/sparkd/sparkd.toml && test -d /var/lib/sparkd/cache")
    installed.sh("test ! -e /usr/lib/sparkd && test ! -e /run/sparkd && test ! -e /usr/bin/sparkd")
