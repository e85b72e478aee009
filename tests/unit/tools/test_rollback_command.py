"""`sparkd rollback`: which known good plan it chooses, lists and puts in force, and what becomes of its image."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.known_good_entries import known_good_entry
from tests.unit.plans import plan
from tests.unit.rollbacks import IMAGE_ID, configure, good_entry, put_in_force, write_recipe
from tests.unit.verdicts import present

from sparkd.base.cluster import membership
from sparkd.base.host import Host
from sparkd.base.lib.errors import UsageError
from sparkd.base.state import known_good
from sparkd.base.state.switch import FILE
from sparkd.tools.cli.switching import list_plans
from sparkd.tools.node.rollback import choose, roll_back
from sparkd.tools.node.switching import image_id

NOW = plan()
SAME, OLDER, OLDEST = (replace(known_good_entry(), plan_digest=digest) for digest in (NOW.digest, "aa11", "ab22"))
KNOWN = (SAME, OLDER, OLDEST)


def test_the_newest_that_is_not_configured_is_chosen() -> None:
    assert choose(KNOWN, "", NOW, SAME.image_id) is OLDER
    assert choose(KNOWN, "", NOW, "") is OLDER


def test_a_plan_that_ran_another_image_is_another_plan() -> None:
    assert choose(KNOWN, "", NOW, "sha256:other") is SAME


def test_where_what_is_configured_makes_no_plan_the_newest_is_chosen() -> None:
    assert choose(KNOWN, "", None, "") is SAME


def test_the_plan_whose_digest_is_named_is_chosen() -> None:
    assert choose(KNOWN, "ab", NOW, "") is OLDEST
    assert choose(KNOWN, NOW.digest[:12], NOW, SAME.image_id) is SAME


@pytest.mark.parametrize(
    ("known", "wanted", "reason"),
    [
        ((), "", "nothing to go back to"),
        ((SAME,), "", "the last known good plan itself"),
        ((OLDER,), "zz", "begins with 'zz'"),
    ],
)
def test_without_a_plan_to_go_back_to_it_fails(known: tuple[known_good.Entry, ...], wanted: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        choose(known, wanted, NOW, "")


def test_a_missing_image_differs_from_an_unreachable_docker(tree: Tree) -> None:
    host = Host(tree.root)
    assert image_id(host, "i:1") is None
    tree.dockerd()
    assert image_id(host, "i:1") == ""
    tree.docker("/images/i:1/json", {"Id": IMAGE_ID, "Architecture": "arm64", "Os": "linux", "Config": {}})
    assert image_id(host, "i:1") == IMAGE_ID


def test_without_known_good_plans_the_list_is_empty(tree: Tree) -> None:
    write_recipe(tree)
    assert list_plans((), configure(), Host(tree.root)).rows[1:] == []


def test_the_list_marks_what_is_configured_and_what_is_in_force(tree: Tree) -> None:
    write_recipe(tree, **{"max-model-len": 1024})
    put_in_force(tree, configure())
    host = Host(tree.root)
    digest = membership.make_context(configure(), host).plan.digest
    proven_again = replace(good_entry(), until="2027-01-01T00:00:00.000+00:00")
    known = replace(good_entry(), plan_digest=digest), good_entry(), proven_again
    _, configured, *in_force = list_plans(known, configure(), host).rows
    assert configured[0] == digest[:12]
    assert configured[-1] == "configured"
    assert [row[-1] for row in in_force] == ["rolled back to"] * 2


@pytest.mark.parametrize("digest", ["", f"x/i@sha256:{'a' * 64}"])
def test_a_recorded_image_that_is_gone_is_pulled_by_its_digest(tree: Tree, digest: str) -> None:
    write_recipe(tree)
    tree.dockerd()
    entry = replace(good_entry(), image_digest=digest)
    tree.file(known_good.FILE.path, known_good.FILE.encode(known_good.KnownGood((entry,))))
    lines = list(roll_back("", configure(), Host(tree.root)))
    assert f"the recorded image, {IMAGE_ID}, is not on this node any more: the one that has its name will run" in lines
    pull = f"to run the recorded one: sudo docker pull {digest} && sudo sparkd rollback {entry.plan_digest[:12]}"
    assert (pull in lines) is bool(digest)


def test_a_recipe_that_is_away_keeps_nobody_from_going_back(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    """As on a share that comes late: the start that waits for it names this command."""
    recipe_file, host, away = write_recipe(tree), Host(tree.root), []
    tree.file(known_good.FILE.path, known_good.FILE.encode(known_good.KnownGood((good_entry(),))))
    before = put_in_force(tree, configure())
    recipe_file.unlink()
    recipe_file.symlink_to("late")
    for is_noted in (False, True):  # instead of another choice, and of none
        assert any("is in force from the next start on" in line for line in roll_back("", configure(), host))
        assert ("once it can, what is configured holds from the next start on" in capsys.readouterr().err) is is_noted
        away.append(present(FILE.read(host.files)))
        (tree.root / FILE.path[1:]).unlink()
    assert away[0].replaces == before.replaces, "not known to have changed"
    assert away[1].replaces != before.replaces, "over once it is back"
