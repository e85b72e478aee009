"""`sparkd tune`: what it sets, what it remembers, and that it takes back exactly that."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest
from tests.tree import Tree

from sparkd import cli
from sparkd.commands import tune
from sparkd.errors import ConfigError, ExitCode, UsageError
from sparkd.hands.tune import HEADER, PATH, STATE, Change, Tuning
from sparkd.host import sysctl
from sparkd.recipes.schema import Recipe
from sparkd.recipes.tuning import DEFAULTS, Proposal, proposals

SWAPPINESS = Proposal("vm.swappiness", "10", "a guide")
RMEM = Proposal("net.ipv4.tcp_rmem", "4096 131072 33554432", "another guide")
BOTH = (RMEM, SWAPPINESS)
BEFORE = {"vm.swappiness": "60", "net.ipv4.tcp_rmem": "4096 131072 6291456"}


@pytest.fixture
def node(tree: Tree) -> Tree:
    tree.file("/proc/sys/vm/swappiness", "60\n")
    tree.file("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n")
    tree.file("/proc/sys/vm/dirty_ratio", "20\n")
    tree.folder("/etc/sysctl.d")
    tree.folder("/var/lib/sparkd")
    return tree


def apply(node: Tree, *wanted: Proposal) -> tuple[Change, ...]:
    return Tuning(node.root).apply({one.name: one.value for one in wanted}, tune.render(wanted))


def values(node: Tree) -> dict[str, str | None]:
    return {name: Tuning(node.root).now(name) for name in BEFORE}


def files(node: Tree) -> dict[str, str]:
    return {str(path.relative_to(node.root)): path.read_text() for path in node.root.rglob("*") if path.is_file()}


def test_apply_sets_writes_and_remembers(node: Tree) -> None:
    assert apply(node, *BOTH) == (
        Change("net.ipv4.tcp_rmem", BEFORE["net.ipv4.tcp_rmem"], RMEM.value),
        Change("vm.swappiness", "60", "10"),
    )
    assert values(node) == {"vm.swappiness": "10", "net.ipv4.tcp_rmem": RMEM.value}
    written = (node.root / PATH[1:]).read_text()
    assert written.startswith(HEADER)
    assert sysctl.assigned(written) == {"vm.swappiness": "10", "net.ipv4.tcp_rmem": RMEM.value}
    assert "# vm.swappiness: a guide\nvm.swappiness = 10\n" in written
    assert json.loads((node.root / STATE[1:]).read_text()) == {"schema": 1, "before": BEFORE}


def test_a_second_apply_changes_nothing_and_remembers_the_first_values(node: Tree) -> None:
    apply(node, *BOTH)
    before = {name: os.stat(node.root / name).st_ino for name in files(node)}
    assert apply(node, *BOTH) == ()
    assert {name: os.stat(node.root / name).st_ino for name in files(node)} == before
    assert Tuning(node.root).remembered() == BEFORE


def test_revert_leaves_the_machine_as_it_was(node: Tree) -> None:
    node.file("/etc/sysctl.d/10-own.conf", "vm.swappiness = 60\n")
    apply(node, *BOTH)
    Tuning(node.root).revert()
    assert values(node) == BEFORE
    assert not (node.root / PATH[1:]).exists()
    assert not (node.root / STATE[1:]).exists()
    assert (node.root / "etc/sysctl.d/10-own.conf").read_text() == "vm.swappiness = 60\n"
    assert Tuning(node.root).revert() == ()


def test_what_the_kernel_does_not_take_back_holds_up_nothing_else(node: Tree) -> None:
    """As vm.dirty_bytes, which refuses its own 0. What reads back as another text stands for it."""
    apply(node, *BOTH)
    refused = f"{BEFORE['net.ipv4.tcp_rmem']} "
    node.file(STATE, json.dumps({"schema": 1, "before": {**BEFORE, "net.ipv4.tcp_rmem": refused}}))
    with pytest.raises(ConfigError, match=r"^net\.ipv4\.tcp_rmem: the kernel made [^;]*$"):
        Tuning(node.root).revert()
    assert values(node)["vm.swappiness"] == "60"
    assert not (node.root / PATH[1:]).exists()
    assert Tuning(node.root).remembered() == {"net.ipv4.tcp_rmem": refused}


def test_a_setting_that_the_kernel_does_not_tell_is_named_and_holds_up_no_other(node: Tree) -> None:
    """As stable_secret of IPv6, whose reading fails until it is set: EIO."""
    apply(node, *BOTH)
    setting = node.root / "proc/sys/net/ipv4/tcp_rmem"
    setting.unlink()
    setting.mkdir()
    with pytest.raises(ConfigError, match=r"net\.ipv4\.tcp_rmem can't be read"):
        apply(node, *BOTH)
    with pytest.raises(ConfigError, match=r"net\.ipv4\.tcp_rmem can't be read"):
        Tuning(node.root).revert()
    assert Tuning(node.root).now("vm.swappiness") == "60"
    assert Tuning(node.root).remembered() == {"net.ipv4.tcp_rmem": BEFORE["net.ipv4.tcp_rmem"]}


def test_a_node_without_the_folder_has_nothing_to_take_back(node: Tree) -> None:
    (node.root / "etc/sysctl.d").rmdir()
    assert Tuning(node.root).revert() == ()


def test_what_is_no_longer_wanted_is_taken_back(node: Tree) -> None:
    apply(node, *BOTH)
    assert apply(node, SWAPPINESS) == (Change("net.ipv4.tcp_rmem", RMEM.value, BEFORE["net.ipv4.tcp_rmem"]),)
    assert Tuning(node.root).remembered() == {"vm.swappiness": "60"}
    assert sysctl.assigned((node.root / PATH[1:]).read_text()) == {"vm.swappiness": "10"}


def test_a_setting_that_the_kernel_lacks_stops_it_before_any_change(node: Tree) -> None:
    before = files(node)
    with pytest.raises(ConfigError, match=r"vm\.no_such: this kernel has no such setting"):
        apply(node, SWAPPINESS, Proposal("vm.no_such", "1", "x"))
    assert files(node) == before


@pytest.mark.parametrize("kind", ["a file", "a link"])
def test_a_file_of_somebody_elses_is_never_touched(node: Tree, kind: str) -> None:
    if kind == "a file":
        node.file(PATH, "vm.swappiness = 1\n")
    else:
        node.file("/etc/own.conf", f"{HEADER}\n")
        node.link(PATH, "/etc/own.conf")
    before = files(node)
    with pytest.raises(ConfigError, match=PATH):
        apply(node, *BOTH)
    with pytest.raises(ConfigError, match=PATH):
        Tuning(node.root).revert()
    assert files(node) == before


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
def test_a_memory_that_can_not_be_read_is_left_for_a_person(node: Tree, text: str) -> None:
    node.file(STATE, text)
    before = files(node)
    with pytest.raises(ConfigError, match=STATE):
        apply(node, *BOTH)
    with pytest.raises(ConfigError, match=STATE):
        Tuning(node.root).revert()
    assert files(node) == before


def test_whatever_interrupts_apply_the_way_back_is_known_first(node: Tree) -> None:
    with pytest.raises(UnicodeEncodeError):
        apply(node, Proposal("vm.swappiness", "not ascii: \u00e9", "x"), RMEM)
    assert values(node) != BEFORE
    Tuning(node.root).revert()
    assert values(node) == BEFORE
    assert not (node.root / STATE[1:]).exists()


def test_where_nothing_can_be_remembered_nothing_is_set(node: Tree) -> None:
    (node.root / "var/lib/sparkd").rmdir()
    (node.root / "var/lib").rmdir()
    node.file("/var/lib")
    with pytest.raises(UsageError, match="/var/lib/sparkd"):
        apply(node, *BOTH)
    assert values(node) == BEFORE
    assert not (node.root / PATH[1:]).exists()


def test_two_at_once_do_not_take_each_others_values_for_those_of_before(node: Tree) -> None:
    folder = os.open(node.root / "var/lib/sparkd", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    before = files(node)
    with pytest.raises(UsageError, match="another `sparkd tune` is under way"):
        apply(node, *BOTH)
    with pytest.raises(UsageError, match="another `sparkd tune` is under way"):
        Tuning(node.root).revert()
    assert files(node) == before
    os.close(folder)
    assert apply(node, *BOTH)


def test_a_value_that_the_kernel_makes_another_of_is_said(node: Tree) -> None:
    """As vm.nr_hugepages does where memory is short. A link to what takes any text, and gives nothing back."""
    (node.root / "proc/sys/vm/swappiness").unlink()
    node.file("/proc/sys/vm/taken")
    node.link("/proc/sys/vm/swappiness", "/proc/sys/vm/taken")
    wanted = {"vm.swappiness": "10 "}
    with pytest.raises(ConfigError, match="the kernel made 10 of 10 "):
        Tuning(node.root).apply(wanted, f"{HEADER}\n")
    Tuning(node.root).revert()
    assert values(node)["vm.swappiness"] == ""


def test_show_puts_now_proposed_and_file_side_by_side(node: Tree) -> None:
    tuning = Tuning(node.root)
    lines = list(tune.shown(tuning, (SWAPPINESS,)))
    assert lines[:2] == [
        "SETTING        NOW  PROPOSED  IN FILE  BEFORE SPARKD",
        "vm.swappiness  60   10        -        -",
    ]
    assert "vm.swappiness: a guide" in lines
    apply(node, *BOTH)
    node.file("/etc/sysctl.d/99-own.conf", "vm.swappiness = 30\n")
    lines = list(tune.shown(tuning, (SWAPPINESS,)))
    assert lines[2].split() == ["vm.swappiness", "10", "10", "10", "60"]
    assert lines[1].split()[0] == "net.ipv4.tcp_rmem"
    assert lines[-1] == f"vm.swappiness is set at boot by /etc/sysctl.d/99-own.conf, after {PATH}"


def test_apply_and_revert_say_what_they_did(node: Tree) -> None:
    tuning = Tuning(node.root)
    node.file("/etc/sysctl.d/99-own.conf", "vm.swappiness = 30\n")
    assert list(tune.applied(tuning, (SWAPPINESS,))) == [
        "vm.swappiness: 60 -> 10",
        "vm.swappiness: at boot /etc/sysctl.d/99-own.conf has the last word",
        f"{PATH} sets 1 at each boot; `sparkd tune revert` takes that back",
    ]
    assert list(tune.reverted(tuning)) == ["vm.swappiness: 10 -> 60", f"removed {PATH}"]
    assert list(tune.reverted(tuning)) == ["nothing to take back"]


def test_a_memory_that_is_gone_is_said(node: Tree) -> None:
    apply(node, SWAPPINESS)
    (node.root / STATE[1:]).unlink()
    said = list(tune.reverted(Tuning(node.root)))
    assert said[0] == f"removed {PATH}"
    assert "until the next boot" in said[1]
    assert values(node)["vm.swappiness"] == "10"


def recipe(**keys: object) -> Recipe:
    return Recipe.model_validate({"schema": 1, "name": "x", "model": {"path": "m"}, "image": {"ref": "i"}, **keys})


def test_the_recipes_own_settings_go_before_the_defaults_with_their_source() -> None:
    assert proposals(recipe()) == DEFAULTS
    own = recipe(source="a thread", host={"sysctls": {"vm.swappiness": 1, "vm.dirty_ratio": 5}})
    assert proposals(own) == (
        Proposal("vm.dirty_ratio", "5", "recipe x: a thread"),
        Proposal("vm.swappiness", "1", "recipe x: a thread"),
    )


def test_every_default_says_its_source_and_could_stand_in_a_recipe() -> None:
    for one in DEFAULTS:
        assert len(one.source) > 40
        assert recipe(host={"sysctls": {one.name: one.value}}).host.sysctls == {one.name: one.value}


def test_lines_of_the_file_are_comments_or_settings_whatever_a_source_holds() -> None:
    text = tune.render((Proposal("vm.swappiness", "10", "a\nvm.dirty_ratio = 1 " + "word " * 60),))
    assert sysctl.assigned(text) == {"vm.swappiness": "10"}
    assert max(map(len, text.splitlines())) <= 120


def test_only_root_may_set_the_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    child = os.fork()
    if not child:
        os.setuid(65534)
        os._exit(cli.main(["tune", "apply"]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == ExitCode.USAGE
