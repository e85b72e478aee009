"""`sparkd tune` on a real kernel: settings of a network namespace of the test's own."""

import textwrap

from tests.integration import world

COMMON = """
    import json, os, subprocess, sys
    from pathlib import Path

    # The settings of this namespace alone are there; /etc and /var are the test's own.
    for folder in ("/etc", "/var"):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "own", folder], check=True)
    for folder in ("/etc/sysctl.d", "/etc/sparkd/recipes", "/var/lib"):
        os.makedirs(folder)

    def recipe(sysctls):
        text = {"schema": 1, "name": "own", "model": {"path": "m"}, "image": {"ref": "i"}, "host": {"sysctls": sysctls}}
        Path("/etc/sparkd/recipes/own.yaml").write_text(json.dumps(text))
        Path("/etc/sparkd/sparkd.toml").write_text('[engine]\\nrecipe = "own"\\n')

    def tune(action):
        words = [sys.executable, "-m", "sparkd.tools.cli.main", "tune", action]
        done = subprocess.run(words, capture_output=True, text=True)
        return {"code": done.returncode, "lines": done.stdout.splitlines(), "error": done.stderr}

    def now(name):
        return Path("/proc/sys/" + name.replace(".", "/")).read_text().split()
"""


def run(code: str) -> dict[str, object]:
    printed = world.run(textwrap.dedent(COMMON) + textwrap.dedent(code))
    assert isinstance(printed, dict)
    return printed


def test_settings_are_applied_and_exactly_taken_back() -> None:
    printed = run("""
        names = ("net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_rmem", "net.ipv4.tcp_keepalive_time")
        recipe({"net.ipv4.tcp_fin_timeout": 33, "net.ipv4.tcp_rmem": "4096 131072 5000000"})
        before = [now(name) for name in names]
        shown, applied, second = tune("show"), tune("apply"), tune("apply")
        between = [now(name) for name in names]
        at_boot = Path("/etc/sysctl.d/60-sparkd.conf").read_text()
        Path("/proc/sys/net/ipv4/tcp_keepalive_time").write_text("1234")
        reverted = tune("revert")
        after = [now(name) for name in names]
        print(json.dumps({
            "before": before, "between": between, "after": after, "applied": applied["lines"],
            "second": second["lines"],
            "codes": [command["code"] for command in (shown, applied, second, reverted)],
            "errors": [command["error"] for command in (shown, applied, second, reverted)], "at_boot": at_boot,
            "left": [*os.listdir("/etc/sysctl.d"), *os.listdir("/var/lib/sparkd")],
        }))
    """)
    assert printed["codes"] == [0, 0, 0, 0], printed["errors"]
    before, between, after = printed["before"], printed["between"], printed["after"]
    assert isinstance(before, list)
    assert between == [["33"], ["4096", "131072", "5000000"], before[2]]
    assert after == [before[0], before[1], ["1234"]], "what somebody else has set stays"
    assert printed["left"] == []
    assert "net.ipv4.tcp_fin_timeout = 33" in str(printed["at_boot"])
    assert isinstance(printed["applied"], list)
    assert isinstance(printed["second"], list)
    assert f"net.ipv4.tcp_fin_timeout: {before[0][0]} -> 33" in printed["applied"]
    assert len(printed["second"]) == 1, "the second apply changes nothing"


def test_the_preflight_check_sees_what_tune_would_set() -> None:
    printed = run("""
        from sparkd.base.host import Host
        from msgspec.structs import replace
        from sparkd.agent.preflight.checks.kernel import KernelSettings
        from tests.unit.plans import plan
        recipe({"net.ipv4.tcp_fin_timeout": 33})
        check = KernelSettings(replace(plan(), sysctls=(("net.ipv4.tcp_fin_timeout", "33"),)))
        levels = []
        for action in ("show", "apply", "revert"):
            assert tune(action)["code"] == 0
            levels.append(check.judge(check.probe(Host())).level.value)
        print(json.dumps({"levels": levels}))
    """)
    assert printed["levels"] == ["warn", "ok", "warn"]


def test_a_value_that_the_kernel_refuses_is_named_and_the_others_can_be_reverted() -> None:
    printed = run("""
        recipe({"net.ipv4.ip_default_ttl": 9999, "net.ipv4.tcp_fin_timeout": 33})
        before = now("net.ipv4.ip_default_ttl")
        applied = tune("apply")
        reverted = tune("revert")
        print(json.dumps({"applied": applied, "reverted": reverted["code"], "before": before,
                          "after": now("net.ipv4.ip_default_ttl"), "left": os.listdir("/etc/sysctl.d")}))
    """)
    assert isinstance(printed["applied"], dict)
    assert printed["applied"]["code"] == 78
    assert "net.ipv4.ip_default_ttl can't be set to 9999: Invalid argument" in printed["applied"]["error"]
    assert (printed["reverted"], printed["after"], printed["left"]) == (0, printed["before"], [])
