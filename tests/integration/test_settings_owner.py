"""Whose folder configuration comes from. Only root may give a folder away, and these tests run as root."""

import os
from pathlib import Path

from tests.unit.settings_files import faults, write

from sparkd.base.config import Settings, load_settings


def test_confd_of_somebody_else_beside_a_named_file_is_refused(tmp_path: Path) -> None:
    named = {"SPARKD_CONFIG": str(write(tmp_path, ""))}
    folder = write(tmp_path, "", "conf.d/1.toml").parent
    os.chown(folder, 65534, 65534)
    assert str(folder) in faults(tmp_path, named)[0]
    folder.rename(tmp_path / "theirs")
    os.chown(tmp_path / "theirs", 0, 0)
    folder.symlink_to(tmp_path / "theirs")
    assert load_settings(named) == Settings()
    os.chown(folder, 65534, 65534, follow_symlinks=False)
    assert str(folder) in faults(tmp_path, named)[0]
