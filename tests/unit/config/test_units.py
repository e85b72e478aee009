"""What systemd runs follows from the configuration, and how what is installed differs from it."""

import shlex
import subprocess
from pathlib import Path

import pytest
from tests.tree import Tree

from sparkd.agent.engine.memory_guard.guard import BOOT, UNIT_SOCKET
from sparkd.base.config import Engine, Notify, Settings, units
from sparkd.base.config.units import DropIn, DropInState
from sparkd.base.host.files import Files
from sparkd.base.lib import REINSTALL
from sparkd.base.lib.errors import UsageError

DEFAULTS = Settings()
ELSEWHERE = Settings(engine=Engine(models_dir="/data/big models", stop_grace_seconds=45))
OURS = f"{units.HEADER} of yesterday\n"
HEAD = DropIn("sparkd-head.service", "").path
WORKER = DropIn("sparkd-worker.service", "").path


def lines(unit: str, key: str) -> list[str]:
    return [line.partition("=")[2] for line in unit.splitlines() if line.startswith(f"{key}=")]


def words(unit: str, key: str) -> list[str]:
    return " ".join(lines(unit, key)).split()


@pytest.mark.parametrize("role", units.ROLES)
def test_unit_runs_its_role_and_sweeps_after_it(role: str) -> None:
    unit = units.render(role)
    assert lines(unit, "ExecStart") == [f"/usr/bin/sparkd run --role {role}"]
    assert lines(unit, "ExecStopPost") == [f"/usr/bin/sparkd sweep --role {role}"]
    assert lines(unit, "ExecReload") == ["/usr/bin/sparkd reload"]
    assert "$" not in unit


@pytest.mark.parametrize("role", units.ROLES)
def test_nothing_that_an_agent_runs_opens_a_watchdog(role: str) -> None:
    """py-spy follows links of a rank's container by the mounts of its own unit."""
    assert {"-/dev/watchdog", "-/dev/watchdog0"} <= set(words(units.render(role), "InaccessiblePaths"))


def test_each_service_makes_files_for_root_alone_where_no_mode_is_said() -> None:
    services = {path: text for path, text in units.package_units().items() if path.endswith(".service")}
    assert len(services) == 5
    assert [lines(text, "UMask") for text in services.values()] == [["0077"]] * 5


BOUNDS = ("CapabilityBoundingSet", "RestrictAddressFamilies", "SystemCallFilter")
NOTIFY = f"{units.PACKAGE_UNITS}/{units.NOTIFY_UNIT}"


def test_what_stays_down_is_reported_by_a_unit_that_can_do_no_more_than_send() -> None:
    agent, notify = units.render("head"), units.package_units()[NOTIFY]
    assert words(agent, "OnFailure") == [units.NOTIFY_UNIT]
    assert lines(notify, "ExecStart") == ["/usr/bin/sparkd notify flush"]
    assert words(notify, "CapabilityBoundingSet") == []
    assert "-/run/docker.sock" in words(notify, "InaccessiblePaths")
    assert units.dropins(DEFAULTS)[-1].text == ""


def test_a_program_for_messages_has_the_agents_bounds_by_a_drop_in() -> None:
    agent, notify = units.render("head"), units.package_units()[NOTIFY]
    *_, drop_in = units.dropins(Settings(notify=Notify(command="/usr/local/bin/send")))
    assert drop_in.path == "/etc/systemd/system/sparkd-notify.service.d/50-sparkd.conf"
    assert drop_in.text.startswith(units.HEADER)
    for key in BOUNDS:
        last = lines(drop_in.text, key)
        own = [] if "" in last else lines(notify, key)  # an empty one resets what came before
        assert sorted(" ".join(own + last).split()) == sorted(words(agent, key)), key
    agents = {line for line in agent.splitlines() if line[:1].isupper()}
    for line in notify.partition("CapabilityBoundingSet=")[2].splitlines():
        key, _, value = line.partition("=")
        assert key in BOUNDS or key in drop_in.text or line in agents or not value, line


def test_each_bound_is_lifted_to_what_the_agent_has() -> None:
    agent, drop_in = units.render("head"), units.dropins(Settings(notify=Notify(command="/x")))[-1].text
    lifted = [line for line in drop_in.splitlines() if line.endswith(("=no", "=default"))]
    assert len(lifted) == 8
    assert [line for line in lifted if f"\n{line.partition('=')[0]}=" in agent] == []


def test_the_guard_outlives_its_agents_and_can_do_no_more_than_kill() -> None:
    agent, texts = units.render("head"), units.package_units()
    socket, guard = (texts[f"{units.PACKAGE_UNITS}/{name}"] for name in units.GUARD_UNITS)
    assert "sparkd-guard.socket" in words(agent, "Wants")
    assert "sparkd-guard.socket" in words(agent, "After")
    tied = {"PartOf", "BindsTo", "Requires", "Requisite", "PropagatesStopTo", "Upholds", "Conflicts"}
    assert not tied & {line.partition("=")[0] for line in (socket + guard).splitlines()}
    assert lines(socket, "ListenSequentialPacket") == [UNIT_SOCKET]
    assert lines(socket, "SocketMode") == ["0600"]
    assert words(guard, "CapabilityBoundingSet") == ["CAP_KILL", "CAP_IPC_LOCK"]
    boot = BOOT.format("/usr/lib/sparkd/app")
    assert lines(guard, "ExecStart") == [f'/usr/bin/python3 -I -S -B -c "{boot}" /proc 60']


def test_unit_restarts_for_ever_but_not_where_only_a_person_helps() -> None:
    unit = units.render("head")
    assert lines(unit, "Restart") == ["always"]
    assert lines(unit, "StartLimitIntervalSec") == ["0"]
    assert lines(unit, "LogRateLimitIntervalSec") == ["1us"], "0 means the default of journald, not none"
    assert words(unit, "RestartPreventExitStatus") == ["2", "17", "78"]


def test_unit_requires_nothing_and_holds_no_boot() -> None:
    unit = units.render("head")
    assert not {"Requires", "Requisite", "BindsTo", "RequiresMountsFor"} & {
        line.partition("=")[0] for line in unit.splitlines()
    }
    assert {"docker.service", "network-online.target", "multi-user.target"} <= set(words(unit, "After"))
    assert words(unit, "WantedBy") == ["sparkd.target"]
    texts = units.package_units()
    boot = {name: texts[f"{units.PACKAGE_UNITS}/{name}"] for name in units.BOOT_UNITS}
    assert [name for name, text in boot.items() if "sparkd.target" in words(text, "Wants")] == [], (
        "no start job at boot"
    )
    assert lines(boot["sparkd-boot.service"], "Type") == ["exec"]
    assert words(boot["multi-user.target.d/sparkd-boot.conf"], "Wants") == ["sparkd-boot.service"]


def test_a_start_after_the_boot_that_systemd_does_not_take_is_tried_again(tmp_path: Path) -> None:
    """As while it executes itself again: nobody else starts sparkd."""
    unit = units.package_units()[f"{units.PACKAGE_UNITS}/sparkd-boot.service"]
    (tmp_path / "systemctl").write_text('#!/bin/sh\ncase "$*" in *start*) exit 1;; esac\n')
    (tmp_path / "systemctl").chmod(0o755)
    command = shlex.split(lines(unit, "ExecStart")[0])
    assert subprocess.run(command, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}).returncode == 1
    assert lines(unit, "Restart") == ["on-failure"]


def test_an_isolate_leaves_a_serving_unit_alone_and_rescue_mode_ends_it() -> None:
    unit = units.render("head")
    assert lines(unit, "IgnoreOnIsolate") == ["yes"]
    assert words(unit, "Conflicts") == ["rescue.target", "emergency.target"]
    assert [word for word in words(unit, "Wants") if "docker" in word] == []


def test_roles_differ_in_nothing_else_than_their_name() -> None:
    assert units.render("head").replace("head", "worker") == units.render("worker")


def test_unknown_role_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no role 'tail'"):
        units.render("tail")


def test_dropin_carries_what_the_configuration_changes_and_nothing_else() -> None:
    assert units.dropins(DEFAULTS)[0].text == ""
    text = units.dropins(ELSEWHERE)[0].text
    assert text.startswith(units.HEADER)
    assert words(text, "Wants") == words(text, "After") == ["data.mount", r"data-big\x20models.mount"]
    assert lines(text, "TimeoutStopSec") == ["75"]


def test_only_a_readahead_that_is_to_be_set_can_be_set() -> None:
    lowered = units.dropins(Settings(engine=Engine(load_readahead_kib=8)))[0].text
    assert words(lowered, "ReadWritePaths") == ["-/sys/devices/virtual/bdi"]
    assert "ReadWritePaths" not in units.dropins(ELSEWHERE)[0].text
    assert "bdi" not in units.render("head")


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/", ()),
        ("/srv", ("srv.mount",)),
        ("/srv//models/", ("srv.mount", "srv-models.mount")),
        ("/home/me/my-models", ("home.mount", "home-me.mount", r"home-me-my\x2dmodels.mount")),
        ("/.hidden", (r"\x2ehidden.mount",)),
        ("/a/.b", ("a.mount", "a-.b.mount")),
        ("/é %n\n$x\\", (r"\xc3\xa9\x20\x25n\x0a\x24x\x5c.mount",)),
    ],
)
def test_mount_units_are_named_as_systemd_escapes_them(path: str, names: tuple[str, ...]) -> None:
    assert units.mount_units(path) == names


@pytest.mark.parametrize(("wanted", "state"), [("", DropInState.MATCHES), ("new", DropInState.MISSING)])
def test_a_file_that_is_not_there_is_missing_where_it_is_needed(tree: Tree, wanted: str, state: DropInState) -> None:
    assert units.compare_file(Files(str(tree.root)), DropIn("sparkd-head.service", wanted)) is state


@pytest.mark.parametrize(
    ("wanted", "installed", "state"),
    [
        (OURS, OURS, DropInState.MATCHES),
        (f"{units.HEADER} of today\n", OURS, DropInState.MATCHES),
        (f"{units.HEADER}\n[Service]\nTimeoutStopSec=9\n", OURS, DropInState.DIFFERS),
        ("", OURS, DropInState.LEFT_OVER),
        ("", "[Service]\nNice=5\n", DropInState.FOREIGN),
        (OURS, "", DropInState.FOREIGN),
        (OURS, f"[Service]\n{OURS}", DropInState.FOREIGN),
    ],
)
def test_a_file_is_compared_by_its_settings_and_is_foreign_without_sparkds_header(
    tree: Tree, wanted: str, installed: str, state: DropInState
) -> None:
    tree.file(HEAD, installed)
    assert units.compare_file(Files(str(tree.root)), DropIn("sparkd-head.service", wanted)) is state


def test_a_node_in_order_has_no_drift_and_a_masked_unit_is_none(tree: Tree) -> None:
    for path, text in units.package_units().items():
        tree.file(path, text)
    tree.file(f"{units.ADMIN_UNITS}/sparkd-worker.service", "")
    for drop_in in units.dropins(ELSEWHERE)[:2]:
        tree.file(drop_in.path, drop_in.text)
    assert units.drift(units.dropins(ELSEWHERE), Files(str(tree.root))) == ()


def test_drift_names_every_difference(tree: Tree) -> None:
    for path, text in units.package_units().items():
        if "worker" not in path:
            tree.file(path, text + "# edited\n" * path.endswith("head.service"))
    tree.file(f"{units.ADMIN_UNITS}/sparkd-worker.service", units.render("worker"))
    tree.file(HEAD, OURS)
    tree.file(WORKER, "[Service]\nNice=5\n")
    of_another = f"is not the unit of this sparkd: {REINSTALL}"
    assert units.drift(units.dropins(DEFAULTS), Files(str(tree.root))) == (
        f"{HEAD} is not needed any more: sudo sparkd units install",
        f"{WORKER} was not written by sparkd: move it to another name",
        f"/usr/lib/systemd/system/sparkd-head.service {of_another}",
        f"/usr/lib/systemd/system/sparkd-worker.service {of_another}",
        "/etc/systemd/system/sparkd-worker.service hides the package's unit: make it a drop-in",
    )
