"""`sparkd init`: a key is made once, never printed, and never lost to a second one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sparkd.base.cluster.auth import forget_command, read_keys
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import ConfigError, UsageError
from sparkd.tools.setup.cluster_key import create_key, rotate_key


def keys(path: Path) -> tuple[bytes, ...]:
    return read_keys(Files(), str(path), os.geteuid())


def test_a_new_key_is_32_bytes_in_a_file_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "etc/sparkd/cluster.key"
    assert f"next: copy {path} to each other node" in create_key(str(path))
    assert [len(key) for key in keys(path)] == [32]
    assert path.stat().st_mode & 0o7777 == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["cluster.key"]
    create_key(str(tmp_path / "other"))
    assert keys(path) != keys(tmp_path / "other")


@pytest.mark.parametrize("link", [False, True])
def test_a_file_that_exists_is_never_overwritten(tmp_path: Path, link: bool) -> None:
    path = tmp_path / "cluster.key"
    if link:  # a broken link
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_text("mine")
    with pytest.raises(UsageError, match=r"exists.*--rotate"):
        create_key(str(path))
    assert link or path.read_text() == "mine"
    assert [one.name for one in tmp_path.iterdir()] == ["cluster.key"]


def test_rotation_puts_a_new_key_above_the_one_that_signed_and_is_completed_before_another_one(tmp_path: Path) -> None:
    path = tmp_path / "cluster.key"
    with pytest.raises(ConfigError, match="does not exist"):
        rotate_key(str(path))
    create_key(str(path))
    first = keys(path)[0]
    lines = rotate_key(str(path))
    assert f"next: copy {path} to each other node" in lines
    command = forget_command(str(path))
    assert command in lines
    second = keys(path)[0]
    assert keys(path) == (second, first)
    assert second != first
    assert path.stat().st_mode & 0o7777 == 0o600
    with pytest.raises(UsageError, match=r"2 keys: the rotation before is not complete .*sed -i"):
        rotate_key(str(path))
    assert keys(path) == (second, first)
    for _ in range(2):  # as often as it is pasted
        subprocess.run(["sh", "-c", command.removeprefix("sudo ")], check=True)
        assert keys(path) == (second,)
        assert path.stat().st_mode & 0o7777 == 0o600


def test_a_folder_that_can_not_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="can't be written"):
        create_key(str(tmp_path / "file/cluster.key"))
