"""The fabric as a real kernel shows it: a bond of two cables, RDMA on it, and what is reported when they are cut."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from tests.bed.processes import wait_for
from tests.bed.qemu.machine import Machine
from tests.bed.qemu.pair import BOND, MTU, UNIT, Pair

from sparkd.agent.preflight.runner import IDS
from sparkd.base.host.infiniband import CONNECTX

pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800)]

HCA = "rxe0"
INDEX = "NCCL_IB_GID_INDEX"


@pytest.fixture(scope="module")
def rdma(pair: Pair) -> Iterator[Pair]:
    """RDMA made in software on the head's bond."""
    pair.head.run("rdma", "link", "add", HCA, "type", "rxe", "netdev", BOND)
    yield pair
    pair.head.run("rdma", "link", "delete", HCA)


@pytest.fixture
def bonded(rdma: Pair) -> Iterator[Pair]:
    wait_for(rdma.pings, 60, "the bonds to meet", pause=1)
    yield rdma
    for port in (0, 1):
        rdma.cable(port, True)


def test_a_bond_carries_the_address_and_whole_frames_and_rdma(bonded: Pair) -> None:
    checks = bonded.preflight()
    assert (checks["fabric-address"].level, checks["fabric-address"].reason) == ("ok", "10.0.0.1 on bond0, up")
    link = checks["fabric-link"]
    assert (link.level, link.reason) == ("ok", f"bond0 up, MTU {MTU}, frames of {MTU} arrive at 1 of 1")
    assert {one["name"]: one["speed_mbps"] for one in link.facts["links"]}["eth0"] == 200_000
    assert (checks["rdma"].level, checks["rdma"].reason) == ("ok", f"{HCA} ({BOND}): ACTIVE")
    assert checks["gid"].level == "ok"


def test_rdma_between_the_nodes_is_measured(bonded: Pair) -> None:
    """In software, on emulated cores: far below the 200 Gb/s that the cables claim."""
    head, worker = bonded.both
    worker.run("rdma", "link", "add", HCA, "type", "rxe", "netdev", BOND)
    try:
        worker.sh("setsid sparkd fabric test --json >/root/fabric.json 2>/root/fabric.log &")
        done = head.run("sparkd", "fabric", "test", "--json", check=False, timeout=400)
        wait_for(lambda: not worker.sh("pgrep -f '[s]parkd fabric' || true").stdout, 60, "the worker's end", pause=1)
        for node in (head, worker):
            assert not node.sh("pgrep -f '[i]perf3 -B|[i]b_write_bw' || true").stdout, "iperf3.service runs all along"
    finally:
        worker.run("rdma", "link", "delete", HCA)
    print(done.stdout, done.stderr)
    found = json.loads(done.stdout)
    assert json.loads(worker.sh("cat /root/fabric.json").stdout) == found
    (pair,), (verdict,) = found["pairs"], found["verdicts"]
    assert [pair[side]["hca"] for side in ("own", "other")] == [HCA, HCA]
    assert not pair["trouble"]
    assert min(pair["rdma_gbps"], pair["measured"]["sent_gbps"], pair["measured"]["received_gbps"]) > 0
    assert (verdict["outcome"], "by RDMA" in verdict["reason"], done.returncode) == ("slow", True, 10)


def test_one_leg_cut_is_named_and_the_other_still_carries_whole_frames(bonded: Pair) -> None:
    bonded.cable(0, False)
    wait_for(bonded.pings, 60, "the other leg to carry", pause=1)
    checks = bonded.preflight()
    link = checks["fabric-link"]
    assert (link.level, link.reason) == ("warn", "eth0 has no carrier (down)")
    assert [one["fits"] for one in link.facts["paths"]] == [True]
    assert checks["fabric-address"].level == "ok"
    assert checks["rdma"].reason == f"{HCA} ({BOND}): ACTIVE"


def test_both_legs_cut_leave_no_carrier_and_rdma_down_and_nothing_is_waited_out(bonded: Pair) -> None:
    for port in (0, 1):
        bonded.cable(port, False)
    checks = bonded.preflight()
    link = checks["fabric-link"]
    assert link.level == "warn"
    for name in (BOND, "eth0", "eth1"):
        assert f"{name} has no carrier (down)" in link.reason
    assert link.facts["paths"] == [], "no peer is probed over an interface without carrier"
    assert checks["fabric-address"].level == "ok", "the address stays: the agent awaits the other node"
    rdma = checks["rdma"]
    assert rdma.level == "warn"
    assert rdma.reason.startswith("no RDMA device is up, so NCCL goes by TCP")
    assert rdma.reason.endswith(f"{HCA} ({BOND}): port 1 is DOWN; {BOND} has no carrier")


def test_a_bond_that_takes_no_large_frames_is_warned_of_and_no_peer_is_probed_with_them(bonded: Pair) -> None:
    bonded.head.run("ip", "link", "set", BOND, "mtu", "1500")
    try:
        link = bonded.preflight()["fabric-link"]
    finally:
        bonded.head.run("ip", "link", "set", BOND, "mtu", str(MTU))
    assert (link.level, link.reason) == ("warn", f"{BOND} has an MTU of 1500, fabric.mtu is {MTU}")
    assert link.facts["paths"] == []


def place(pair: Pair, part: str) -> int | None:
    """The index of the GID with this part, as the kernel has it: a carrier that comes and goes moves it."""
    listed = pair.head.sh(f"cd /sys/class/infiniband/{HCA}/ports/1/gids && grep -v '^[0:]*$' *").stdout.split()
    found = [int(line.partition(":")[0]) for line in listed if part in line]
    return found[0] if found else None


HEADS, OTHER = ":ffff:0a00:0001", ":fd00:"
UNUSED = 200
"""An index that no address comes to; the table has 1024."""


def test_a_pinned_gid_index_is_right_or_blocks_and_the_right_one_is_named(bonded: Pair) -> None:
    right = place(bonded, HEADS)
    good = bonded.preflight(f'{INDEX} = "{right}"')["gid"]
    assert (good.level, good.reason) == ("ok", f"index {right} is right on {HCA}")
    bad = bonded.preflight(f'{INDEX} = "{UNUSED}"')["gid"]
    assert bad.level == "block"
    assert bad.reason == f"{INDEX}={UNUSED}: on {HCA} that is unused; the right index is {right}"


def test_an_index_that_moved_when_an_address_came_and_went_blocks(bonded: Pair) -> None:
    head, before = bonded.head, place(bonded, HEADS)
    head.sh(f"ip address del 10.0.0.1/24 dev {BOND} && ip address add fd00::1/64 dev {BOND}")
    wait_for(lambda: place(bonded, OTHER) == before, 60, "another address to take its place", pause=1)
    bonded.give_address(head)
    try:
        wait_for(lambda: place(bonded, HEADS) is not None, 60, "the address to have a place again", pause=1)
        now = place(bonded, HEADS)
        moved = bonded.preflight(f'{INDEX} = "{before}"')["gid"]
    finally:
        head.sh(f"ip address del fd00::1/64 dev {BOND}")
    assert moved.level == "block"
    assert moved.reason == f"{INDEX}={before}: on {HCA} that is RoCE v2 fd00::1; the right index is {now}"


def test_the_agent_waits_for_an_address_that_comes_late_to_the_bond(bonded: Pair) -> None:
    head = bonded.head
    head.run("ip", "address", "flush", "dev", BOND)
    status = ("systemctl", "show", "--value", "--property", "StatusText", UNIT)
    report = ("cat", "/run/sparkd/report.json")
    head.run("systemctl", "start", "--no-block", UNIT)
    try:
        wait_for(lambda: "10.0.0.1" in head.run(*status).stdout, 240, "the agent to wait for its address", pause=1)
        assert head.run("systemctl", "is-active", UNIT, check=False).stdout.strip() == "activating"
        bonded.give_address(head)
        found = "10.0.0.1 on bond0, up"
        wait_for(lambda: found in head.run(*report, check=False).stdout, 300, "it to find the bond", pause=2)
    finally:
        head.run("systemctl", "stop", UNIT, timeout=240)


ONLY = ("fabric-address", "fabric-link", "rdma")
LATE = """\
[engine.env]
NCCL_IB_HCA = "{{node.hcas}}"
{env}
[preflight]
skip = {skip}
wait_seconds = {seconds}
[memory]
settle_seconds = 0
"""
VENDOR = "$(readlink -f /sys/class/net/eth0/device/..)/vendor"
"""Of a cable's card."""


@dataclass(frozen=True)
class Start:
    """Of the head's agent, while its bond has no RDMA device."""

    head: Machine
    since: str

    def add_device(self) -> None:
        self.head.run("rdma", "link", "add", HCA, "type", "rxe", "netdev", BOND)

    @property
    def journal(self) -> str:
        only = ("--unit", UNIT, "--since", f"@{self.since}")
        return self.head.run("journalctl", *only, "--output", "cat", "--no-pager").stdout

    @property
    def status(self) -> str:
        return self.head.run("systemctl", "show", "--value", "--property", "StatusText", UNIT).stdout

    @property
    def judged(self) -> list[str]:
        return re.findall(r"preflight\.check\.judged check=rdma verdict=(\w+)", self.journal)


@contextmanager
def without_device(pair: Pair, env: str, wait_seconds: int) -> Iterator[Start]:
    skip = json.dumps([one for one in IDS if one not in ONLY])
    head, conf = pair.head, "/etc/sparkd/conf.d/50-test.toml"
    head.run("rdma", "link", "delete", HCA)
    head.sh(f"echo {CONNECTX} >/run/vendor; mount --bind /run/vendor {VENDOR}")  # else nothing is waited for
    head.write(conf, LATE.format(env=env, skip=skip, seconds=wait_seconds))
    start = Start(head, head.run("date", "+%s").stdout.strip())
    head.run("systemctl", "start", "--no-block", UNIT)
    try:
        yield start
    finally:
        head.run("systemctl", "stop", UNIT, timeout=240)
        head.run("systemctl", "reset-failed", UNIT, check=False)
        head.write(conf, "")
        head.sh(f"umount {VENDOR}")
        if HCA not in head.run("rdma", "link").stdout:
            start.add_device()


def test_a_device_that_comes_late_is_awaited_with_one_line_and_used(bonded: Pair) -> None:
    with without_device(bonded, "", wait_seconds=600) as start:
        wait_for(lambda: "waiting for RDMA devices since" in start.status, 240, "the agent to wait", pause=2)
        assert start.journal.count("preflight.wait.started") == 1
        start.add_device()
        wait_for(lambda: start.judged == ["warn", "ok"], 120, "it to find the device", pause=2)


def test_without_a_device_it_continues_by_tcp_and_names_the_cost(bonded: Pair) -> None:
    with without_device(bonded, "", wait_seconds=10) as start:
        wait_for(lambda: "preflight.gate.passed" in start.journal, 300, "the agent to continue by TCP", pause=2)
        assert start.judged == ["warn"]
        assert "so NCCL goes by TCP, slower than the 98 Gb/s" in start.journal
        assert "code=78" not in start.journal


def test_a_node_that_insists_on_rdma_is_blocked_and_notices_the_device_by_itself(bonded: Pair) -> None:
    with without_device(bonded, 'NCCL_NET = "IB"', wait_seconds=0) as start:
        wait_for(lambda: "NCCL_NET=IB insists on one" in start.status, 300, "it to be blocked", pause=2)
        assert start.head.run("systemctl", "is-active", UNIT, check=False).stdout.strip() == "activating"
        start.add_device()
        wait_for(lambda: start.judged[:2] == ["block", "ok"], 240, "it to find the device", pause=2)
