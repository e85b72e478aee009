"""The builder: the same bytes for the same commit, and no file that the lock does not pin."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from deb import archive, changelog, closure, downloads, lock, source
from deb.errors import BuildError
from deb.targets import ARCHITECTURES
from deb.tree import Tree

CHECKOUT = Path(__file__).parents[2]
WHEELS = CHECKOUT / "build/wheels"


@pytest.fixture
def wheels(package: Path, tmp_path: Path) -> Path:
    """The downloads, in a folder that may be spoilt. `package` has fetched them."""
    return Path(shutil.copytree(WHEELS, tmp_path / "wheels"))


def pins() -> lock.Lock:
    return lock.read((CHECKOUT / "requirements.lock").read_text())


def wheel(folder: Path, members: dict[str, bytes]) -> Path:
    file = folder / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as made:
        for name, content in {"thing-1.0.dist-info/METADATA": b"Name: thing\n", **members}.items():
            made.writestr(name, content)
    return file


def test_building_again_elsewhere_gives_the_same_bytes(package: Path, tmp_path: Path) -> None:
    architecture = package.stem.rpartition("_")[2]
    environment = {**os.environ, "PYTHONPATH": "packaging", "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7", "LC_ALL": "C"}
    command = [sys.executable, "-m", "deb", architecture, "--out", str(tmp_path)]
    subprocess.run(command, cwd=CHECKOUT, env=environment, umask=0o077, check=True, capture_output=True)
    again = tmp_path / package.name
    assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(package.read_bytes()).digest()


def test_a_wheel_with_one_byte_changed_is_refused(wheels: Path) -> None:
    pin = pins().pin(canonicalize_name("h11"))
    assert downloads.files(pin, wheels, ARCHITECTURES[0])
    file = next(wheels.glob("h11-*.whl"))
    spoilt = bytearray(file.read_bytes())
    spoilt[100] ^= 1
    file.write_bytes(spoilt)
    with pytest.raises(BuildError, match=r"none of those that requirements\.lock has for h11"):
        downloads.files(pin, wheels, ARCHITECTURES[0])


def test_a_dependency_that_the_lock_lacks_is_refused(wheels: Path) -> None:
    with pytest.raises(BuildError, match=r"requirements\.lock has no left-pad"):
        closure.fetch(["left-pad>=1"], pins(), wheels)


def test_a_version_that_is_too_old_is_refused(wheels: Path) -> None:
    with pytest.raises(BuildError, match=r"needed is h11>=99"):
        closure.fetch(["h11>=99"], pins(), wheels)


@pytest.mark.parametrize("line", ["h11>=1 --hash=sha256:00", "h11==1", "h11==1 --hash=md5:00"])
def test_a_lock_without_exact_versions_or_hashes_is_refused(line: str) -> None:
    with pytest.raises(BuildError, match="no exact version, or no hash"):
        lock.read(f"{line}\n")


@pytest.mark.parametrize("path", ["../x.py", "/etc/x", "thing/../../x.py", "thing\\..\\x.py"])
def test_a_wheel_that_leaves_its_folder_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(BuildError, match="leaves its folder"):
        archive.read(wheel(tmp_path, {path: b""}))


def test_a_wheel_with_files_for_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="belongs outside site-packages"):
        archive.read(wheel(tmp_path, {"thing-1.0.data/scripts/thing": b"#!python"}))


def test_a_compiled_program_of_a_wheel_lies_beside_the_libraries(tmp_path: Path) -> None:
    read = archive.read(wheel(tmp_path, {"thing-1.0.data/scripts/thing": b"\x7fELF"}))
    assert "bin/thing" in [member.path for member in read.members]
    with pytest.raises(BuildError, match="leaves its folder"):
        archive.read(wheel(tmp_path, {"thing-1.0.data/scripts/..": b"\x7fELF"}))


def test_two_files_at_one_path_must_be_the_same() -> None:
    tree = Tree()
    tree.add("a/b", b"1")
    tree.add("a/b", b"1")
    with pytest.raises(BuildError, match="a/b comes from two places"):
        tree.add("a/b", b"2")


def test_a_commit_without_a_release_tag_sorts_before_the_release(tmp_path: Path, git: Callable[..., None]) -> None:
    untagged = source.read(tmp_path).version
    subprocess.run(["dpkg", "--compare-versions", untagged, "lt", "1.2.3"], check=True)
    git("tag", "v1.2.3")
    assert source.read(tmp_path).version == "1.2.3"


def test_changelog_entries_follow_the_sections() -> None:
    text = "## [Unreleased]\n\n### Added\n\n- One thing that\n  continues.\n\n## [0.1.0] - 2026-01-02\n\n- First.\n"
    changes = changelog.debian(text, "0.2.0~git1", 1_800_000_000)
    assert changes.startswith("sparkd (0.2.0~git1) unstable; urgency=medium\n\n  * One thing that continues.\n")
    assert "\nsparkd (0.1.0) unstable" in changes
    assert changes.endswith("Fri, 02 Jan 2026 00:00:00 +0000\n")
