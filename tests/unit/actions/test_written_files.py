"""What sparkd writes can be read by those for whom it is, whatever the umask of who runs it."""

import os
from pathlib import Path

from sparkd.agent.actions.files import write


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
