"""The package of this machine's architecture, unpacked."""

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def unpacked(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(root)], check=True)
    return root
