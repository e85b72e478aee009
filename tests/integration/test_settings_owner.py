"""Whose folder configuration comes from. Only root may give a folder away, and these tests run as root."""

import os
from pathlib import Path

import pytest
from tests.unit.settings_files import faults, write

from sparkd.base.config import Settings, load_settings

NOBODY = 65534
"""The user and the group without rights."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Names a settings file, whose drop-ins are in conf.d beside it."""
    return {"SPARKD_CONFIG": str(write(tmp_path, ""))}


@pytest.fixture
def drop_ins(tmp_path: Path) -> Path:
    return write(tmp_path, "", "conf.d/1.toml").parent


def test_confd_of_somebody_else_beside_a_named_file_is_refused(
    tmp_path: Path, environment: dict[str, str], drop_ins: Path
) -> None:
    os.chown(drop_ins, NOBODY, NOBODY)
    assert str(drop_ins) in faults(tmp_path, environment)[0]


def test_confd_may_be_a_link_of_roots_to_a_folder_of_roots_and_no_link_of_somebody_else(
    tmp_path: Path, environment: dict[str, str], drop_ins: Path
) -> None:
    roots = drop_ins.rename(tmp_path / "roots")
    drop_ins.symlink_to(roots)
    assert load_settings(environment) == Settings()
    os.chown(drop_ins, NOBODY, NOBODY, follow_symlinks=False)
    assert str(drop_ins) in faults(tmp_path, environment)[0]
