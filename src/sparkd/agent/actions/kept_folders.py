"""Folders of /var/lib/sparkd that hold a bounded set of files: the head's files, and the stacks of hung ranks."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from sparkd.agent.actions import files
from sparkd.agent.actions.shared_folders import refuse_shared
from sparkd.base.host import Host
from sparkd.base.recipes.reach import HEAD_FILES
from sparkd.base.state.file import STACKS

KEPT_STACKS = 10
"""Files that are kept; the oldest go."""


def replace_head_files(host: Host, wanted: Mapping[str, bytes]) -> None:
    """Returns and raises as `Actions.replace_head_files`. Takes as long as the disk does."""
    folder = Path(host.files.real(HEAD_FILES))
    if not wanted and not folder.is_dir():
        return
    refuse_shared(folder)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name, content in wanted.items():
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            files.write(folder / name, content, 0o644, durable=True)  # for an image with another user
    for file in folder.iterdir():
        if file.name not in wanted:
            with suppress(OSError):  # such as a folder: what is left over holds up no start
                file.unlink()


def write_stacks(host: Host, name: str, text: Callable[[], str]) -> str:
    """Returns and raises as `Actions.write_stacks`. Takes as long as the disk does."""
    folder = Path(host.files.real(STACKS))
    files.write(folder / name, text(), 0o600, durable=False)
    folder.chmod(0o700)
    for old in sorted(folder.glob("*.txt"))[:-KEPT_STACKS]:
        old.unlink(missing_ok=True)
    return f"{STACKS}/{name}"
