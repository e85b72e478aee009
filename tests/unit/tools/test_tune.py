"""`sparkd tune`: what it sets, what it remembers, and that it takes back exactly that."""

import fcntl
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.plans import configured

from sparkd.base.cluster.membership import fingerprint_config
from sparkd.base.config.settings import Engine
from sparkd.base.host import Host
from sparkd.base.lib.errors import ConfigError, ExitCode, UsageError
from sparkd.base.recipes.schema import Recipe
from sparkd.base.state import switch
from sparkd.base.state.switch import Chosen, Stage, Switch
from sparkd.tools.cli import main
from sparkd.tools.cli.tune import apply_tuning, find_recipe_in_use, run_action, show_tuning, sysctl_file
from sparkd.tools.node.command_lock import SETUP_LOCK, hold_command_lock
from sparkd.tools.setup.sysctl import FILE, HEADER, PAIRED, PATH, SysctlManager
from sparkd.tools.setup.watchdog import WATCHDOG_DROPIN, apply_watchdog, revert_watchdog, with_panic

SWAPPINESS = {"vm.swappiness": "10"}
RMEM = {"net.ipv4.tcp_rmem": "4096 131072 33554432"}
BOTH = RMEM | SWAPPINESS
BEFORE = {"vm.swappiness": "60", "net.ipv4.tcp_rmem": "4096 131072 6291456"}


@pytest.fixture
def node(tree: Tree) -> Tree:
    tree.file("/proc/sys/vm/swappiness", "60\n")
    tree.file("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n")
    tree.folder("/var/lib/sparkd")
    return tree


@pytest.fixture
def manager(node: Tree) -> SysctlManager:
    return SysctlManager(node.root)


def recipe(sysctls: dict[str, str], source: str = "a guide") -> Recipe:
    keys = {"schema": 1, "name": "x", "source": source, "model": {"path": "m"}, "image": {"ref": "i"}}
    return Recipe.model_validate({**keys, "host": {"sysctls": sysctls}})


def apply(manager: SysctlManager, wanted: dict[str, str]) -> list[str]:
    return manager.apply(wanted, sysctl_file(recipe(wanted)))


def values(manager: SysctlManager) -> dict[str, str | None]:
    return {name: manager.current(name) for name in BEFORE}


def files(node: Tree) -> dict[str, tuple[int, str]]:
    """Inode and content of each file but the lock."""
    paths = [path for path in node.root.rglob("*") if path.is_file() and path != node.root / SETUP_LOCK]
    return {str(path.relative_to(node.root)): (path.stat().st_ino, path.read_text()) for path in paths}


def assert_refused(node: Tree, error: type[Exception], match: str) -> None:
    """Neither `apply` nor `revert` changes anything."""
    before = files(node)
    with pytest.raises(error, match=match):
        apply(SysctlManager(node.root), BOTH)
    with pytest.raises(error, match=match):
        SysctlManager(node.root).revert()
    assert files(node) == before


class Kernel(SysctlManager):
    """On a kernel, which sets the other one of two settings to 0 where one gets a value."""

    def _set(self, values: Mapping[str, str]) -> list[str]:
        changes = list[str]()
        for name, value in sorted(values.items()):
            new_changes = super()._set({name: value})
            if new_changes and name in PAIRED:
                (self._root / "proc/sys" / PAIRED[name].replace(".", "/")).write_text("0\n")
            changes += new_changes
        return changes


def put_settings(node: Tree, settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        node.file(f"/proc/sys/{name.replace('.', '/')}", f"{value}\n")


@pytest.mark.parametrize("next_wanted", [{}, SWAPPINESS])
@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("vm.dirty_ratio", "vm.dirty_bytes"),
        ("vm.dirty_bytes", "vm.dirty_ratio"),
        ("vm.dirty_ratio", "vm.dirty_ratio"),
        ("vm.dirty_background_bytes", "vm.dirty_background_ratio"),
        ("vm.dirty_background_ratio", "vm.dirty_background_bytes"),
    ],
)
def test_of_two_settings_that_exclude_each_other_the_one_that_held_comes_back(
    node: Tree, name: str, held: str, next_wanted: dict[str, str]
) -> None:
    """With 0 in both, all writers would wait."""
    manager, before = Kernel(node.root), {name: "0", PAIRED[name]: "0", held: "20"}
    put_settings(node, before)
    for _ in range(2):
        apply(manager, {name: "5"})
        assert (manager.current(name), manager.current(PAIRED[name])) == ("5", "0")
        assert manager.saved() == {held: "20"}
    assert apply(manager, next_wanted) if next_wanted else manager.revert()
    assert {setting: manager.current(setting) for setting in before} == before
    assert manager.saved().keys() == next_wanted.keys()


def test_the_0_that_an_earlier_version_saved_of_a_setting_does_not_come_back(node: Tree) -> None:
    """That version had no record of the other setting, which held."""
    manager = Kernel(node.root)
    put_settings(node, {"vm.dirty_ratio": "5", "vm.dirty_bytes": "0"})
    node.file(FILE.path, json.dumps({"schema": 1, "before": {"vm.dirty_ratio": "0"}}))
    assert apply(manager, SWAPPINESS) == ["vm.swappiness: 60 -> 10"]
    assert apply(manager, {"vm.dirty_ratio": "10"}) == ["vm.dirty_ratio: 5 -> 10", "vm.swappiness: 10 -> 60"]
    manager.revert()
    assert (manager.current("vm.dirty_ratio"), manager.current("vm.swappiness")) == ("5", "60")
    assert not node.path(FILE.path).exists()


def test_apply_sets_writes_and_saves_and_a_second_time_changes_nothing(node: Tree, manager: SysctlManager) -> None:
    assert apply(manager, BOTH) == [
        "net.ipv4.tcp_rmem: 4096 131072 6291456 -> 4096 131072 33554432",
        "vm.swappiness: 60 -> 10",
    ]
    assert values(manager) == BOTH
    assert (node.root / PATH[1:]).read_text().splitlines() == [
        f"{HEADER}; `sparkd tune revert` removes it and gives back what was set before.",
        "# from recipe x: a guide",
        "net.ipv4.tcp_rmem = 4096 131072 33554432",
        "vm.swappiness = 10",
    ]
    assert json.loads((node.root / FILE.path[1:]).read_text()) == {"schema": 1, "before": BEFORE}
    before = files(node)
    assert apply(manager, BOTH) == []
    assert files(node) == before


def test_revert_leaves_the_machine_as_it_was(node: Tree, manager: SysctlManager) -> None:
    assert manager.revert() == []
    node.file("/etc/sysctl.d/10-own.conf", "vm.swappiness = 60\n")
    before = files(node).keys()
    apply(manager, BOTH)
    manager.revert()
    assert values(manager) == BEFORE
    assert files(node).keys() == before
    assert manager.revert() == []


def test_a_setting_that_the_kernel_does_not_take_back_holds_up_no_other(node: Tree, manager: SysctlManager) -> None:
    """As vm.dirty_bytes, which refuses its own 0. What reads back as another text stands for it."""
    apply(manager, BOTH)
    other_text = f"{BEFORE['net.ipv4.tcp_rmem']} "
    node.file(FILE.path, json.dumps({"schema": 1, "before": {**BEFORE, "net.ipv4.tcp_rmem": other_text}}))
    with pytest.raises(ConfigError, match=r"^net\.ipv4\.tcp_rmem: the kernel made [^;]*$"):
        manager.revert()
    assert manager.current("vm.swappiness") == "60"
    assert not (node.root / PATH[1:]).exists()
    assert manager.saved() == {"net.ipv4.tcp_rmem": other_text}


def test_a_setting_that_can_not_be_read_is_named_and_holds_up_no_other(node: Tree, manager: SysctlManager) -> None:
    """As stable_secret of IPv6, whose reading fails until it is set: EIO."""
    apply(manager, BOTH)
    (node.root / "proc/sys/net/ipv4/tcp_rmem").unlink()
    node.folder("/proc/sys/net/ipv4/tcp_rmem")
    with pytest.raises(ConfigError, match=r"net\.ipv4\.tcp_rmem can't be read"):
        apply(manager, BOTH)
    with pytest.raises(ConfigError, match=r"net\.ipv4\.tcp_rmem can't be read"):
        manager.revert()
    assert manager.current("vm.swappiness") == "60"
    assert manager.saved() == {"net.ipv4.tcp_rmem": BEFORE["net.ipv4.tcp_rmem"]}


def test_a_setting_that_is_no_longer_wanted_is_taken_back(node: Tree, manager: SysctlManager) -> None:
    apply(manager, BOTH)
    assert apply(manager, SWAPPINESS) == ["net.ipv4.tcp_rmem: 4096 131072 33554432 -> 4096 131072 6291456"]
    assert manager.saved() == {"vm.swappiness": "60"}
    assert "tcp_rmem" not in (node.root / PATH[1:]).read_text()


def test_a_setting_that_the_kernel_lacks_stops_it_before_any_change(node: Tree, manager: SysctlManager) -> None:
    before = files(node)
    with pytest.raises(ConfigError, match=r"vm\.no_such: this kernel has no such setting"):
        apply(manager, SWAPPINESS | {"vm.no_such": "1"})
    assert files(node) == before


@pytest.mark.parametrize("kind", ["a file", "a link"])
def test_a_file_of_somebody_elses_is_never_touched(node: Tree, kind: str) -> None:
    node.file("/etc/own.conf", f"{HEADER}\n")
    if kind == "a file":
        node.file(PATH, "vm.swappiness = 1\n")
    else:
        node.link(PATH, "/etc/own.conf")
    assert_refused(node, ConfigError, PATH)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": 2, "before": {}}',
        '{"schema": 1, "before": {"../x": "1"}}',
        '{"schema": 1, "before": {"vm.x": 1}}',
        '{"schema": 1, "before": {"vm.swappiness": "\u0664"}}',
    ],
)
def test_a_record_that_can_not_be_read_is_left_for_a_person(node: Tree, text: str) -> None:
    node.file(FILE.path, text)
    assert_refused(node, ConfigError, FILE.path)


def test_whatever_interrupts_apply_the_way_back_is_known_first(node: Tree, manager: SysctlManager) -> None:
    with pytest.raises(UnicodeEncodeError):
        manager.apply({"vm.swappiness": "not ascii: \u00e9"} | RMEM, f"{HEADER}\n")
    assert values(manager) != BEFORE
    manager.revert()
    assert values(manager) == BEFORE
    assert not (node.root / FILE.path[1:]).exists()


def test_where_nothing_can_be_saved_nothing_is_set(node: Tree) -> None:
    (node.root / "var/lib/sparkd").rmdir()
    (node.root / "var/lib/sparkd").symlink_to("of-a-disk-that-is-away")
    before = files(node)
    with pytest.raises(UsageError, match="/var/lib/sparkd"):
        apply(SysctlManager(node.root), BOTH)
    assert files(node) == before


def test_two_at_once_do_not_take_each_others_values_for_those_of_before(node: Tree, manager: SysctlManager) -> None:
    with hold_command_lock(node.root):
        assert_refused(node, UsageError, "another `sparkd init` or `tune` is under way")
    assert apply(manager, BOTH)


def test_a_user_who_may_only_read_keeps_nobody_from_tuning(node: Tree, manager: SysctlManager) -> None:
    (node.root / SETUP_LOCK).parent.mkdir(parents=True)
    folders = [os.open(node.root / path, os.O_RDONLY) for path in ("var/lib/sparkd", "run/sparkd")]
    for folder in folders:
        fcntl.flock(folder, fcntl.LOCK_EX)
    assert apply(manager, BOTH)
    assert stat.S_IMODE((node.root / SETUP_LOCK).stat().st_mode) == 0o600
    for folder in folders:
        os.close(folder)


def test_a_value_that_the_kernel_changes_is_named(node: Tree, manager: SysctlManager) -> None:
    """As vm.nr_hugepages does where memory is short: what reads back is not what was written."""
    with pytest.raises(ConfigError, match="the kernel made 10 of 10 "):
        manager.apply({"vm.swappiness": "10 "}, f"{HEADER}\n")
    manager.revert()
    assert manager.current("vm.swappiness") == "60"


def test_show_apply_and_revert_print_each_setting_before_and_after(manager: SysctlManager) -> None:
    wanted, nothing = recipe(SWAPPINESS), recipe({})
    assert list(apply_tuning(manager, nothing)) == ["recipe x has no kernel settings", "nothing to take back"]
    assert "\n".join(show_tuning(manager, wanted)).splitlines() == [
        "SETTING        NOW  PROPOSED  BEFORE SPARKD",
        "vm.swappiness  60   10        -",
        "",
        "from recipe x: a guide",
    ]
    assert list(apply_tuning(manager, wanted)) == [
        "vm.swappiness: 60 -> 10",
        f"{PATH} sets 1 at each boot; `sparkd tune revert` takes that back",
    ]
    assert "\n".join(show_tuning(manager, nothing)).splitlines() == [
        "SETTING        NOW  PROPOSED  BEFORE SPARKD",
        "vm.swappiness  10   -         60",
        "",
        "recipe x has no kernel settings",
    ]
    reverted = ["vm.swappiness: 10 -> 60", f"removed {PATH}"]
    assert list(apply_tuning(manager, nothing)) == ["recipe x has no kernel settings", *reverted]
    apply(manager, SWAPPINESS)
    assert manager.revert() == reverted


def test_without_the_record_revert_prints_that_values_stay_until_the_next_boot(
    node: Tree, manager: SysctlManager
) -> None:
    apply(manager, SWAPPINESS)
    (node.root / FILE.path[1:]).unlink()
    removed, lost = manager.revert()
    assert removed == f"removed {PATH}"
    assert "until the next boot" in lost
    assert manager.current("vm.swappiness") == "10"


def test_a_source_of_several_lines_is_one_comment() -> None:
    text = sysctl_file(recipe(SWAPPINESS, "a\nvm.dirty_ratio = 1"))
    assert text.splitlines()[1:] == ["# from recipe x: a vm.dirty_ratio = 1", "vm.swappiness = 10"]


def test_only_root_may_set_the_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    child = os.fork()
    if not child:
        os.setuid(65534)
        os._exit(main.main(["tune", "apply"]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == ExitCode.USAGE


WATCHDOG = "/sys/class/watchdog/watchdog0"
PANIC_BEFORE = {"kernel.panic": "0", "kernel.panic_on_oops": "0"}


@pytest.fixture
def guarded(node: Tree) -> Tree:
    """A machine with a watchdog that nobody uses."""
    for name, value in PANIC_BEFORE.items():
        node.file(f"/proc/sys/{name.replace('.', '/')}", f"{value}\n")
    node.file(f"{WATCHDOG}/identity", "SBSA\n")
    node.file(f"{WATCHDOG}/state", "inactive\n")
    return node


Tune = Callable[..., list[str]]


@pytest.fixture
def tune(guarded: Tree) -> Tune:
    """What `sparkd tune` prints on that machine, with a recipe that sets the swappiness."""
    root = guarded.root

    def run(action: str, *, chosen: bool = False) -> list[str]:
        return "\n".join(run_action(action, root, lambda: recipe(SWAPPINESS), watchdog=chosen)).splitlines()

    return run


def test_a_watchdog_is_set_on_request_shown_and_taken_back(guarded: Tree, tune: Tune) -> None:
    before = files(guarded)
    resets = "after a panic the machine stays down; watchdog SBSA is not in use; to have it reset itself: "
    assert tune("show")[-1] == f"{resets}sudo sparkd tune apply --watchdog"
    assert tune("apply", chosen=True) == [
        "kernel.panic: 0 -> 30",
        "kernel.panic_on_oops: 0 -> 1",
        "vm.swappiness: 60 -> 10",
        f"{PATH} sets 3 at each boot; `sparkd tune revert` takes that back",
        f"wrote {WATCHDOG_DROPIN}: the watchdog (SBSA) resets a frozen machine",
    ]
    assert (guarded.root / WATCHDOG_DROPIN[1:]).read_text().splitlines()[1:] == ["[Manager]", "RuntimeWatchdogSec=60"]
    assert "hung_task" not in (guarded.root / PATH[1:]).read_text()
    (guarded.root / WATCHDOG[1:] / "state").write_text("active\n")  # as systemd does
    shown = tune("show")
    assert shown[1].split() == ["kernel.panic", "30", "30", "0"]
    assert shown[-1] == "after a panic the machine reboots; watchdog SBSA is active"
    assert len(tune("apply", chosen=True)) == 1, "a second time, nothing is to be set"
    assert tune("revert") == [
        "kernel.panic: 30 -> 0",
        "kernel.panic_on_oops: 1 -> 0",
        "vm.swappiness: 10 -> 60",
        f"removed {PATH}",
        f"removed {WATCHDOG_DROPIN}",
    ]
    (guarded.root / WATCHDOG[1:] / "state").write_text("inactive\n")
    assert {path: text for path, (_, text) in files(guarded).items()} == {
        path: text for path, (_, text) in before.items()
    }
    assert tune("revert") == ["nothing to take back"]


def test_an_apply_without_it_sets_no_watchdog_and_takes_none_back(guarded: Tree, tune: Tune) -> None:
    tune("apply")
    assert not (guarded.root / WATCHDOG_DROPIN[1:]).exists()
    assert "kernel.panic" not in (guarded.root / PATH[1:]).read_text()
    tune("apply", chosen=True)
    assert len(tune("apply")) == 1
    assert (guarded.root / WATCHDOG_DROPIN[1:]).exists()
    assert "kernel.panic = 30" in (guarded.root / PATH[1:]).read_text()


def test_what_the_watchdog_needs_is_not_said_to_be_the_recipes() -> None:
    alone, both = (sysctl_file(with_panic(recipe(own))).splitlines() for own in ({}, SWAPPINESS))
    assert alone[1:] == [
        "# from recipe x: kernel.panic, kernel.panic_on_oops: --watchdog",
        "kernel.panic = 30",
        "kernel.panic_on_oops = 1",
    ]
    assert both[1] == "# from recipe x: kernel.panic, kernel.panic_on_oops: --watchdog; the others: a guide"


def test_a_watchdog_that_something_else_uses_or_that_is_not_there_is_left(guarded: Tree) -> None:
    (guarded.root / WATCHDOG[1:] / "state").write_text("active\n")
    assert apply_watchdog(guarded.root) == ["the watchdog (SBSA) is in use by something else: nothing is to be done"]
    for name in ("state", "identity"):
        (guarded.root / WATCHDOG[1:] / name).unlink()
    (guarded.root / WATCHDOG[1:]).rmdir()
    assert apply_watchdog(guarded.root) == ["this machine has no watchdog: if it freezes, its power must be cut"]
    assert not (guarded.root / WATCHDOG_DROPIN[1:]).exists()
    assert revert_watchdog(guarded.root) == []


def until_error(root: Path, action: str, match: str, **options: bool) -> list[str]:
    """What is printed before it."""
    lines: list[str] = []
    with pytest.raises(ConfigError, match=match):
        lines.extend(run_action(action, root, lambda: recipe(SWAPPINESS), **options))
    return lines


def test_a_drop_in_of_somebody_elses_is_left_and_holds_up_no_other_setting(guarded: Tree) -> None:
    drop_in = guarded.file(WATCHDOG_DROPIN, "[Manager]\nRuntimeWatchdogSec=20\n")
    foreign = "50-sparkd.conf was not written by sparkd"
    assert "vm.swappiness: 60 -> 10" in until_error(guarded.root, "apply", foreign, watchdog=True)
    lines = until_error(guarded.root, "revert", foreign)
    assert lines[-2:] == ["vm.swappiness: 10 -> 60", f"removed {PATH}"]
    assert values(SysctlManager(guarded.root)) == BEFORE
    assert drop_in.read_text() == "[Manager]\nRuntimeWatchdogSec=20\n"


def test_a_setting_of_somebody_elses_does_not_keep_the_watchdog(guarded: Tree, tune: Tune) -> None:
    tune("apply", chosen=True)
    guarded.file(PATH, "vm.swappiness = 1\n")
    printed = until_error(guarded.root, "revert", "60-sparkd.conf was not written by sparkd")
    assert printed == [f"removed {WATCHDOG_DROPIN}"]


def test_a_setting_that_is_stuck_holds_up_no_drop_in(guarded: Tree, tune: Tune) -> None:
    tune("apply", chosen=True)
    (guarded.root / "proc/sys/vm/swappiness").unlink()
    guarded.folder("/proc/sys/vm/swappiness")
    with pytest.raises(ConfigError, match=r"vm\.swappiness can't be read"):
        tune("revert")
    assert not (guarded.root / WATCHDOG_DROPIN[1:]).exists()


@pytest.mark.parametrize(("chosen", "name"), [(None, "tiny-cpu"), (Chosen(recipe(SWAPPINESS), Engine()), "x")])
def test_the_recipe_of_the_plan_in_force_counts(tree: Tree, chosen: Chosen | None, name: str) -> None:
    tree.file("/etc/sparkd/sparkd.toml", 'engine.recipe = "tiny-cpu"\n')
    fingerprint = fingerprint_config(configured(engine={"recipe": "tiny-cpu"}), Host(tree.root))
    tree.file(switch.FILE.path, switch.FILE.encode(Switch(fingerprint, Stage.IN_FORCE, chosen, (), 0, 0, "")))
    assert find_recipe_in_use(tree.root).name == name
