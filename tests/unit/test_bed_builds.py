"""How the test bed builds what is slow: which PyTorch it takes, and what it reports meanwhile.

pip is the real one, and its index is served on loopback.
"""

import hashlib
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.bed import cache, torch_wheel
from tests.bed.command import BedError, failure


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def index(root: Path, *versions: str) -> Iterator[str]:
    """A package index of loopback that has these versions of torch; its address."""
    pages = root / "simple/torch"
    pages.mkdir(parents=True)
    links = []
    for version in versions:
        wheel = pages / f"torch-{version}-py3-none-any.whl"
        info = f"torch-{version}.dist-info"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        links.append(f'<a href="{wheel.name.replace("+", "%2B")}#sha256={digest}">{wheel.name}</a>')
    (pages / "index.html").write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def pip_of(address: str, *argv: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    env |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": address, "PIP_RETRIES": "0", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", *argv]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BedError(failure(command, done.returncode, done.stderr or done.stdout))
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "build"
    made.mkdir()
    return made


def test_the_small_wheel_is_taken_where_the_index_has_it(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with index(tmp_path, "2.13.0", "2.13.0+cpu") as address:
        chosen = torch_wheel.choose(partial(pip_of, address), folder, str(folder))
    assert chosen == f"{folder}/torch-2.13.0+cpu-py3-none-any.whl"
    assert Path(chosen).exists()
    assert capsys.readouterr().err == ""


def test_an_ordinary_index_gives_the_ordinary_wheel_and_its_size_is_reported_first(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with index(tmp_path, "2.12.1", "2.13.0", "2.14.0") as address:
        pip = partial(pip_of, address)
        chosen = torch_wheel.choose(pip, folder, str(folder))
        (line,) = capsys.readouterr().err.splitlines()
        assert "2.7 GB" in line
        assert not any(folder.iterdir()), "nothing is downloaded before"
        pip("install", "--quiet", "--no-deps", "--target", str(tmp_path / "site"), chosen)
    assert (tmp_path / "site/torch-2.13.0.dist-info").is_dir()


def test_an_index_without_pytorch_and_one_that_does_not_answer_are_errors(tmp_path: Path, folder: Path) -> None:
    with index(tmp_path) as address, pytest.raises(BedError, match="from versions: none"):
        torch_wheel.choose(partial(pip_of, address), folder, str(folder))
    with pytest.raises(BedError):  # the index at that address has ended
        torch_wheel.choose(partial(pip_of, address), folder, str(folder))


def test_a_build_reports_what_it_downloads_and_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BED_CACHE", str(tmp_path))

    def build(target: Path) -> None:
        time.sleep(0.35)
        target.write_text("built")

    made = cache.artefact("engine", "0" * cache.KEY_LENGTH, ".tar", build, pause=0.1)
    first, *steps, last = capsys.readouterr().err.splitlines()
    assert made.read_text() == "built"
    assert first.startswith("bed: building engine-0000000000000000.tar: downloads vLLM, PyTorch for the CPU")
    assert "about 1,100 MB" in first
    assert 2 <= len(steps) <= 3
    assert all(" of about 1,100 MB received, " in step for step in steps)
    assert last.startswith("bed: built engine-")


def test_a_build_that_fails_stops_reporting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BedError), cache.progress("ray", pause=0.05):
        raise BedError("no")
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_every_build_that_downloads_says_how_much() -> None:
    from tests.bed import nodebase

    others = {"engine", "litellm", "ray", "sparkrun", "qemu", "arm64"}
    assert {*(f"node-{suite}" for suite in nodebase.PACKAGES), *others} == set(cache.DOWNLOADS)
