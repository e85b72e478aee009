"""What is written can be read by those for whom it is; what can't be written is an error with a hint that helps."""

import errno
import os
from pathlib import Path

import pytest

from sparkd.agent.actions.files import write
from sparkd.base.lib.errors import UsageError
from sparkd.base.state.file import FolderError
from sparkd.tools.node.command_lock import usage_error


def test_folders_that_are_made_for_a_file_are_for_all_also_with_a_users_umask(tmp_path: Path) -> None:
    """sudo keeps a user's: a unit's folder that only root can read hides its drop-ins from `sparkd units check`."""
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o700)
    before = os.umask(0o077)
    try:
        write(kept / "sparkd-head.service.d/inner/10-x.conf", "[Service]\n", 0o644, durable=False)
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (kept, *sorted(kept.rglob("*")))]
    assert modes == [0o700, 0o755, 0o755, 0o644]


@pytest.mark.skipif(os.geteuid() != 0, reason="is about root")
def test_root_who_cannot_write_is_not_sent_to_the_same_command() -> None:
    """The disk may fail, and the same command have a join code in it, which would be printed."""
    with pytest.raises(UsageError, match="Input/output error") as refused, usage_error("x can't be written"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    assert refused.value.hint.startswith("the disk: sudo dmesg")


def test_a_folder_in_the_place_of_a_file_is_moved_away_and_no_matter_of_room() -> None:
    with pytest.raises(UsageError, match="is a folder") as refused, usage_error("x can't be changed", "df -h /x"):
        raise FolderError("/x/y")
    assert refused.value.hint == "sudo mv /x/y /x/y.folder"
