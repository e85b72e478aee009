"""`sparkd capture` on this machine, as root: it has neither docker nor an agent."""

import json
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tests.unit.commands import INTERRUPTIBLE
from tests.unit.nodes import until

from sparkd.base.lib.errors import ExitCode
from sparkd.tools.cli.main import main


def test_capture_overwrites_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "there.tar.gz"
    there.write_text("mine")
    assert main(["capture", "--output", str(there)]) == ExitCode.USAGE
    assert there.read_text() == "mine"
    assert f"hint: sudo sparkd capture --output {tmp_path}/" in capsys.readouterr().err


@pytest.mark.alone  # two looks, and an engine of a test beside this one would be a stray in one of them
def test_a_machine_without_anything_gives_an_archive_that_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "capture.tar.gz"
    assert main(["capture", "--output", str(path)]) == 0
    shown = capsys.readouterr().out
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert f"{path}: " in shown
    with tarfile.open(path) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
        tar.extractall(tmp_path / "out", filter="data")
    assert {"README.txt", "summary.md", "preflight.json", "versions.json", "gpu.json", "caches.txt"} <= names
    (top,) = (tmp_path / "out").iterdir()
    assert main(["preflight", "--root", str(top / "tree"), "--json"]) in (10, 17, 78)
    checks = json.loads(capsys.readouterr().out)["checks"]
    live = json.loads((top / "preflight.json").read_text())["checks"]
    assert {check["id"]: check["level"] for check in checks} == {check["id"]: check["level"] for check in live}


def test_a_summary_is_markdown_without_names_of_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", "--issue"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("**sparkd ")
    assert "| check | level | found | hint |" in shown
    assert len(shown.splitlines()) < 60


def test_a_file_that_a_container_has_put_into_a_compile_cache_is_left_out(tmp_path: Path) -> None:
    cache = Path("/var/lib/sparkd/cache/of-a-test")
    cache.mkdir(parents=True, exist_ok=True)
    try:
        (cache / "known-good.json").write_text("{}")
        assert main(["capture", "--output", str(tmp_path / "capture.tar.gz")]) == 0
    finally:
        shutil.rmtree(cache)
    with tarfile.open(tmp_path / "capture.tar.gz") as tar:
        assert not [name for name in tar.getnames() if name.endswith("known-good.json")]


@pytest.mark.parametrize("end", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_session_that_ends_leaves_no_part_of_an_archive(tmp_path: Path, end: signal.Signals) -> None:
    archive = tmp_path / "x.tar.gz"
    command = [sys.executable, "-m", "sparkd.tools.cli.main", "capture", "--output", str(archive)]
    with subprocess.Popen([*INTERRUPTIBLE, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until(lambda: archive.exists() or process.poll() is not None, 60)
        process.send_signal(end)
        assert process.wait(60) in (130, -end)
    assert not archive.exists()
