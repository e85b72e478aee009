"""`sparkd init`: a key is made once, never printed, and never lost to a second one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparkd.cli import main
from sparkd.commands.init import create, rotate
from sparkd.errors import ConfigError, ExitCode, UsageError
from sparkd.host.cluster_key import read
from sparkd.host.files import Files

OWNER = os.geteuid()


def keys(path: Path) -> tuple[bytes, ...]:
    return read(Files(), str(path), OWNER)


def test_a_new_key_is_32_bytes_in_a_file_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "etc/sparkd/cluster.key"
    said = create(str(path))
    assert [len(key) for key in keys(path)] == [32]
    assert path.stat().st_mode & 0o7777 == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["cluster.key"]
    assert f"copy {path} to each other node" in said


def test_two_keys_are_never_the_same(tmp_path: Path) -> None:
    create(str(tmp_path / "a"))
    create(str(tmp_path / "b"))
    assert keys(tmp_path / "a") != keys(tmp_path / "b")


def test_a_file_that_exists_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "cluster.key"
    path.write_text("mine")
    with pytest.raises(UsageError, match=r"exists.*--rotate"):
        create(str(path))
    assert path.read_text() == "mine"
    assert [one.name for one in tmp_path.iterdir()] == ["cluster.key"]


def test_a_symlink_that_leads_nowhere_is_a_file_that_exists(tmp_path: Path) -> None:
    path = tmp_path / "cluster.key"
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="exists"):
        create(str(path))
    assert not (tmp_path / "elsewhere").exists()


def test_rotation_puts_a_new_key_above_the_one_that_signed(tmp_path: Path) -> None:
    path = tmp_path / "cluster.key"
    create(str(path))
    first = keys(path)[0]
    assert "last line away" in rotate(str(path), OWNER)
    second = keys(path)[0]
    assert keys(path) == (second, first)
    assert path.stat().st_mode & 0o7777 == 0o600


def test_a_rotation_that_is_not_complete_is_never_followed_by_another_one(tmp_path: Path) -> None:
    path = tmp_path / "cluster.key"
    create(str(path))
    rotate(str(path), OWNER)
    kept = path.read_text()
    with pytest.raises(UsageError, match=r"2 keys: the rotation before is not complete .*old lines away first"):
        rotate(str(path), OWNER)
    assert path.read_text() == kept


def test_what_is_next_is_done_from_one_node(tmp_path: Path) -> None:
    path = tmp_path / "cluster.key"
    for said in (create(str(path)), rotate(str(path), OWNER)):
        assert f"next: copy {path} to each other node" in said


def test_rotation_needs_a_good_key_to_keep(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        rotate(str(tmp_path / "cluster.key"))


def test_a_folder_that_can_not_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="can't be written"):
        create(str(tmp_path / "file/cluster.key"))


def test_init_alone_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == ExitCode.USAGE
    assert "--new-cluster-key" in capsys.readouterr().err
