"""The plug is pulled: what the kernel had not brought to the disk is lost, as in life."""

import pytest
from tests.bed.qemu.pair import LAUNCH, UNIT, Pair

pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800)]


def test_a_launch_that_was_cut_short_is_known_at_the_next_boot(pair: Pair) -> None:
    head = pair.head
    head.run("mkdir", "-p", "/var/lib/sparkd")
    head.run("sync")
    head.run("python3", "-IB", "-c", LAUNCH)
    head.powercut()
    head.boot()
    pair.join(head)
    lost = head.run("cat", "/var/lib/sparkd/unsynced", check=False).stdout
    found = pair.preflight()["last-boot"]
    assert found.level == "warn"
    assert found.reason == "the last boot with a launch ended without a shutdown while the engine was loading"
    assert lost != "x", "the disk forgets nothing: this shows nothing"
    # Nor has the first boot of this image enabled a unit, whatever Debian's presets say of others.
    assert head.run("systemctl", "is-enabled", UNIT, check=False).stdout.strip() == "disabled"
