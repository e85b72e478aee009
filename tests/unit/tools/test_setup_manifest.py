"""What `sparkd init` wrote comes back exactly, wherever it was interrupted, and nothing of a person's is lost."""

from pathlib import Path

import pytest
from tests.tree import Tree

from sparkd.base.lib.errors import ConfigError, UsageError
from sparkd.tools.setup.setup_manifest import FILE, Setup

TOML, KEY, OWN = "/etc/sparkd/sparkd.toml", "/etc/sparkd/cluster.key", "/etc/sparkd/conf.d/10-init.toml"
PERSONS = "# mine\n[memory]\nheadroom_gib = 4 # as measured\n"


def setup_of(tree: Tree) -> Setup:
    return Setup(tree.root)


def content(tree: Tree, path: str) -> str | None:
    real = tree.root / path.lstrip("/")
    return real.read_text() if real.exists() else None


def choose(tree: Tree, recipe: str) -> None:
    """As `init` does it."""
    setup_of(tree).write(OWN, f'[engine]\nrecipe = "{recipe}"\n', 0o644, own=True)


def test_new_files_are_removed_and_the_manifest_with_them(tree: Tree) -> None:
    choose(tree, "mine")
    setup_of(tree).write(KEY, "secret\n", 0o600)
    assert (tree.root / KEY.lstrip("/")).stat().st_mode & 0o777 == 0o600
    manifest = tree.root / FILE.path.lstrip("/")
    assert manifest.stat().st_mode & 0o777 == 0o600
    assert "secret" not in manifest.read_text()
    assert list(setup_of(tree).take_back()) == [f"removed {KEY}", f"removed {OWN}"]
    assert [content(tree, path) for path in (OWN, KEY, FILE.path)] == [None, None, None]
    assert (tree.root / OWN.lstrip("/")).parent.is_dir(), "the package's"
    assert list(setup_of(tree).take_back()) == []


def test_a_file_that_was_there_comes_back_as_it_was_with_its_mode(tree: Tree) -> None:
    tree.file(TOML, PERSONS, mode=0o640)
    setup_of(tree).write(TOML, "first\n", 0o644)
    setup_of(tree).write(TOML, "second\n", 0o644)
    assert (tree.root / TOML.lstrip("/")).stat().st_mode & 0o777 == 0o640
    assert list(setup_of(tree).take_back()) == [f"restored {TOML}"]
    assert content(tree, TOML) == PERSONS
    assert (tree.root / TOML.lstrip("/")).stat().st_mode & 0o777 == 0o640


def test_where_one_file_is_unfit_nothing_is_taken_back(tree: Tree) -> None:
    setup_of(tree).write(KEY, "secret\n", 0o600)
    choose(tree, "mine")
    tree.path(KEY).unlink()
    tree.link(KEY, "/srv/cluster.key")
    with pytest.raises(ConfigError, match="can't be read: it is a symlink"):
        list(setup_of(tree).take_back())
    assert content(tree, OWN) is not None


@pytest.mark.parametrize("persons", [None, "theirs\n"])
def test_a_power_cut_between_the_manifest_and_a_second_change_loses_nothing(tree: Tree, persons: str | None) -> None:
    if persons:
        tree.file(KEY, persons)
    setup_of(tree).write(KEY, "first\n", 0o600)
    choose(tree, "mine")
    for _ in range(2):  # the power is cut before the change, twice
        setup_of(tree).record(KEY, "second\n")
        setup_of(tree).record(OWN, "second\n", own=True)
    list(setup_of(tree).take_back())
    assert content(tree, KEY) == persons
    assert content(tree, OWN) is None


def test_a_key_in_place_of_one_that_others_could_read_is_private(tree: Tree) -> None:
    tree.file(KEY, "old\n", mode=0o644)
    setup_of(tree).write(KEY, "secret\n", 0o600)
    assert (tree.root / KEY.lstrip("/")).stat().st_mode & 0o777 == 0o600


def test_a_file_that_was_edited_between_two_runs_comes_back(tree: Tree) -> None:
    for text in ("first\n", "second\n"):
        setup_of(tree).write(KEY, text, 0o600)
        if text == "first\n":
            tree.file(KEY, "rotated\n")
    assert list(setup_of(tree).take_back()) == [f"restored {KEY}"]
    assert content(tree, KEY) == "rotated\n"


@pytest.mark.parametrize(("path", "text"), [(KEY, "rotated\n"), (OWN, '[engine]\nrecipe = "theirs"\n')])
def test_what_is_entirely_somebody_elses_now_is_left(tree: Tree, path: str, text: str) -> None:
    setup_of(tree).write(KEY, "secret\n", 0o600)
    choose(tree, "mine")
    tree.file(path, text)
    assert f"left {path}: it was changed since" in list(setup_of(tree).take_back())
    assert content(tree, path) == text


def test_a_power_cut_between_the_manifest_and_a_new_file_leaves_nothing_to_take_back(tree: Tree) -> None:
    setup_of(tree).record(TOML, "what was never written")
    assert list(setup_of(tree).take_back()) == [f"{TOML} is gone"]
    assert content(tree, TOML) is None


def test_a_power_cut_between_the_manifest_and_a_change_leaves_the_file_as_it_was(tree: Tree) -> None:
    tree.file(TOML, PERSONS)
    setup_of(tree).record(TOML, "what was never written")
    assert list(setup_of(tree).take_back()) == [f"{TOML} is as it was before"]
    assert content(tree, TOML) == PERSONS


def test_a_take_back_that_was_cut_off_is_repeated_to_the_same_end(tree: Tree) -> None:
    tree.file(TOML, PERSONS)
    setup_of(tree).write(TOML, "other\n", 0o644)
    setup_of(tree).write(KEY, "secret\n", 0o600)
    steps = setup_of(tree).take_back()
    next(steps)
    del steps
    assert list(setup_of(tree).take_back()) == [f"{KEY} is gone", f"restored {TOML}"]
    assert content(tree, TOML) == PERSONS


def test_a_symlink_is_not_written_through(tree: Tree) -> None:
    elsewhere = tree.file("/elsewhere", PERSONS)
    tree.link(TOML, str(elsewhere))
    with pytest.raises(ConfigError, match=r"can't be read: it is a symlink"):
        setup_of(tree).write(TOML, "x", 0o644)
    assert elsewhere.read_text() == PERSONS


@pytest.mark.parametrize("text", ["{", '{"schema": 1, "files": [{"path": 3}]}'])
def test_a_manifest_that_is_unreadable_stops_everything(tree: Tree, text: str) -> None:
    tree.file(FILE.path, text)
    for act in (lambda: list(setup_of(tree).take_back()), lambda: setup_of(tree).write(TOML, "x", 0o644)):
        with pytest.raises(ConfigError, match=r"setup.json can't be read"):
            act()
    assert content(tree, TOML) is None


def test_a_folder_that_can_not_be_written_to_is_an_error_for_the_user(tree: Tree) -> None:
    tree.file("/etc", "no folder")
    with pytest.raises((UsageError, ConfigError)):
        setup_of(tree).write(TOML, "x", 0o644)


def test_two_setups_at_once_exclude_each_other(tree: Tree) -> None:
    with setup_of(tree).hold_lock(), pytest.raises(UsageError, match="under way"), Setup(Path(tree.root)).hold_lock():
        pass
