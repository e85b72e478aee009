"""Settings of the kernel that a recipe may name."""

import pytest
from pydantic import ValidationError
from tests.unit.plans import recipe


def test_a_recipe_says_numbers_as_it_likes() -> None:
    given = {"vm.swappiness": 10, "net.ipv4.tcp_rmem": "4096 131072 6291456", "kernel.pid_max": "65536"}
    assert recipe(host={"sysctls": given}).host.sysctls == {**given, "vm.swappiness": "10"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kernel.core_pattern", "|/tmp/x"),
        ("kernel.core_pattern", 1),
        *((name, 1) for name in ("kernel.modprobe", "fs.suid_dumpable", "vm", "vm/swappiness", "vm..swappiness")),
        ("vm.../../kernel/core_pattern", 1),
        *(("vm.swappiness", value) for value in (True, "10\nkernel.core_pattern = |/tmp/x", 0.5, None, "")),
        ("net.ipv4.tcp_fastopen_key", 1),  # what is set would be in report.json, which everybody reads
        ("net.ipv6.conf.eth0.stable_secret", 1),
    ],
)
def test_a_recipe_may_set_nothing_that_could_run_a_program_nor_have_a_secret_shown(name: str, value: object) -> None:
    with pytest.raises(ValidationError):
        recipe(host={"sysctls": {name: value}})
