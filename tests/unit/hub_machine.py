"""A machine that runs `sparkd model pull`: the hub's own client against a hub on loopback.

The fixtures are for the tests in tests/unit/tools, whose conftest.py names them.
"""

import base64
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.commands import INTERRUPTIBLE, Done, sparkd
from tests.unit.hub_server import REPO, Hub, serving
from tests.unit.nodes import until

SHARD = "model.safetensors"
DATA_BYTES = 20_000_000
CUT_AT = 12_000_000
"""The client writes pieces of 10 MB."""
DOWNLOADS = ".cache/huggingface/download"
"""The client's own files, below the model's folder."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """One for all tests of this process: the client reads its environment once, when it is imported."""
    with serving(Hub({})) as hub:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HF_ENDPOINT", hub.endpoint)
            patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hub") / "none"))
            import huggingface_hub.constants

            assert hub.endpoint == huggingface_hub.constants.ENDPOINT
        yield hub


def content(folder: Path, data_bytes: int) -> dict[str, bytes]:
    shard = Tree(folder).safetensors(f"/{SHARD}", data_bytes).read_bytes()
    return {"config.json": b"{}", "tokenizer.json": b"{}", SHARD: shard, "original/[1].pth": b"old", "README.md": b"x"}


@pytest.fixture
def hub(server: Hub, tmp_path: Path) -> Hub:
    server.reset(content(tmp_path / "source", 1000))
    return server


@pytest.fixture
def broken_hub(hub: Hub, tmp_path: Path) -> Hub:
    """Its shard takes two pieces, and the connection breaks in the second."""
    hub.files = content(tmp_path / "source", DATA_BYTES)
    hub.cut_at = CUT_AT
    return hub


class Machine:
    """Where the command runs: its folder of models, and its own home."""

    def __init__(self, root: Path, hub: Hub) -> None:
        self.models, self.home = root / "models", root / "home"
        self.home.mkdir(parents=True)
        self.folder = self.models / "name"
        (root / "none.toml").write_text("")
        self.env = {
            "HOME": str(self.home),
            "SPARKD_CONFIG": str(root / "none.toml"),
            "SPARKD_ENGINE__MODELS_DIR": str(self.models),
            "HF_ENDPOINT": hub.endpoint,
        }

    def pull(self, *words: str, **env: str) -> Done:
        """In this process, by the client as it was imported."""
        return sparkd("model", "pull", *words, **{"config": self.env["SPARKD_CONFIG"], **self.env, **env})

    def start(self, *words: str, stderr: int = subprocess.PIPE, **env: str) -> subprocess.Popen[str]:
        """In a process of its own."""
        return subprocess.Popen(
            [*INTERRUPTIBLE, sys.executable, "-m", "sparkd.tools.cli.main", "model", "pull", *words],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": "src", **self.env, **env},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def partial_sizes(self) -> list[int]:
        """What has come of a shard under way; small files come and go beside it."""
        sizes = []
        for path in self.folder.rglob("*.incomplete"):
            with suppress(FileNotFoundError):
                sizes.append(path.stat().st_size)
        return [size_bytes for size_bytes in sizes if size_bytes > CUT_AT // 2]

    def interrupt(self, stderr: int = subprocess.DEVNULL, **env: str) -> None:
        """Begin the download of the shard, and end it by SIGINT."""
        with self.start(REPO, stderr=stderr, **env) as process:
            until(lambda: self.partial_sizes() or process.poll() is not None, 60)
            process.send_signal(signal.SIGINT)
            try:
                assert process.wait(10) == -signal.SIGINT, "no waiting for files under way"
            finally:
                process.kill()  # else a failure would wait for the end of the download, which may never come


@pytest.fixture
def machine(tmp_path: Path, hub: Hub) -> Machine:
    return Machine(tmp_path, hub)


def ended(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate(timeout=120)
    return Done(process.returncode, out, err)


def partial_file(folder: Path, path: str, etag: str) -> Path:
    """Where huggingface_hub 1.x keeps what has come of a file.

    That is the digest of the record's name and the ETag, beside the record: DOWNLOADS is in its guide, "Download files
    to a local folder"; the name is `LocalDownloadFilePaths.incomplete_path` in its private _local_folder.py.
    """
    record = folder / DOWNLOADS / f"{path}.metadata"
    digest = base64.urlsafe_b64encode(hashlib.sha1(record.name.encode()).digest()).decode()
    return record.parent / f"{digest}.{etag}.incomplete"
