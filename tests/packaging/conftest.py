"""The package of this machine's architecture, unpacked; and a repository of git."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def unpacked(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(root)], check=True)
    return root


@pytest.fixture
def git(tmp_path: Path) -> Callable[..., None]:
    """Runs git in `tmp_path`, where version 1.2.3 of a program is committed."""

    def run(*words: str) -> None:
        who = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, "-C", str(tmp_path), *words], check=True, capture_output=True)

    (tmp_path / "src/sparkd").mkdir(parents=True)
    (tmp_path / "src/sparkd/__init__.py").write_text('__version__ = "1.2.3"\n')
    run("init")
    run("add", ".")
    run("commit", "-m", "first")
    return run
