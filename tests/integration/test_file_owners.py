"""Files that somebody without rights may swap are not used: recipes, secrets, and the script of the user's own."""

import os
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest
from tests.integration.stranger import UID, Stranger
from tests.unit.commands import sparkd

SWAP = """
import os, sys
new, old = sys.argv[1:]
open(new, "w").write(open(old).read() if os.access(old, os.R_OK) else "x")
os.chmod(new, 0o644)
os.replace(new, old)
print("swapped", flush=True)
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that the stranger owns, where everybody may go."""
    folder = Path(mkdtemp(prefix="sparkd-owners-"))
    folder.chmod(0o755)
    yield folder
    rmtree(folder)


def configure(home: Path, recipe: Path, engine: str = "") -> Path:
    file = home / "sparkd.toml"
    file.write_text(f'[engine]\nrecipe = "{recipe}"\n{engine}')
    return file


def swap(new: Path, old: Path) -> None:
    with Stranger(SWAP, str(new), str(old)) as stranger:
        stranger.wait_for("swapped")


@pytest.mark.parametrize("what", ["recipe", "secret", "script"])
def test_a_file_that_a_stranger_can_swap_is_refused(home: Path, what: str) -> None:
    theirs = home / "theirs"
    theirs.mkdir()
    recipe, secret, script = (
        (theirs if what == name else home) / f"x{suffix}"
        for name, suffix in (("recipe", ".yaml"), ("secret", ".key"), ("script", ".sh"))
    )
    recipe.write_text("schema: 1\nname: x\nmodel: {path: m}\nimage: {ref: i}\n")
    secret.write_text("key")
    script.write_text('exec "$@"\n')
    config = configure(home, recipe, f'script = "{script}"\nsecrets = {{A = "{secret}"}}\n')
    assert sparkd("plan", config=config).returncode == 0
    os.chown(theirs, UID, UID)
    named = {"recipe": recipe, "secret": secret, "script": script}[what]
    for writable in (theirs, named):
        done = sparkd("plan", config=config)
        assert done.returncode == 78
        assert f"{named} is not used: others than root may write to {theirs}" in done.stderr
        assert "move it to a folder that only root may write to" in done.stderr
        if writable == theirs:
            swap(theirs / "new", named)
            assert named.stat().st_uid == UID
    os.chown(theirs, 0, 0)
    done = sparkd("plan", config=config)
    assert f"others than root may write to {named}" in done.stderr, "what was swapped in stays refused"
    assert f"sudo chown root: {named}" in done.stderr
    os.chown(named, 0, 0)
    assert sparkd("plan", config=config).returncode == 0


def test_a_symlink_into_a_strangers_folder_is_refused(home: Path) -> None:
    theirs = home / "theirs"
    theirs.mkdir()
    (theirs / "x.yaml").write_text("schema: 1\nname: x\nmodel: {path: m}\nimage: {ref: i}\n")
    os.chown(theirs, UID, UID)
    link = home / "x.yaml"
    link.symlink_to(theirs / "x.yaml")
    done = sparkd("plan", config=configure(home, link))
    assert (done.returncode, f"others than root may write to {theirs}" in done.stderr) == (78, True)
    assert sparkd("recipe", "check", str(link)).returncode == 0, "a developer checks his own"
