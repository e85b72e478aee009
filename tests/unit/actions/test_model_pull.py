"""`sparkd model pull`: the hub's own client against a hub on loopback."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.hub_server import COMMIT, REPO, Hub, serving

from sparkd.lib.text import size

SHARD = "model.safetensors"
DATA_BYTES = 20_000_000
CUT_AT = 12_000_000
"""The client writes pieces of 10 MB."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    shard = Tree(tmp_path / "source").safetensors(f"/{SHARD}", DATA_BYTES).read_bytes()
    files = {"config.json": b"{}", "tokenizer.json": b"{}", SHARD: shard, "original/[1].pth": b"old", "README.md": b"x"}
    with serving(Hub(files)) as one:
        yield one


class Machine:
    """Where the command runs: its folder of models, and its own home."""

    def __init__(self, root: Path, hub: Hub) -> None:
        self.models, self.home = root / "models", root / "home"
        self.home.mkdir()
        self.folder = self.models / "name"
        self.env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": "src",
            "HOME": str(self.home),
            "SPARKD_CONFIG": str(root / "none.toml"),
            "SPARKD_ENGINE__MODELS_DIR": str(self.models),
            "HF_ENDPOINT": hub.endpoint,
        }
        (root / "none.toml").write_text("")

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "sparkd.cli.main", "model", "pull", *words]

    def begun(self) -> list[int]:
        """What has come of a shard under way; small files come and go beside it."""
        sizes = []
        for one in self.folder.rglob("*.incomplete"):
            with suppress(FileNotFoundError):
                sizes.append(one.stat().st_size)
        return [one for one in sizes if one > CUT_AT // 2]

    def interrupt(self, stderr: int | None = None, **env: str) -> None:
        """Begin the download of the shard, and end it by SIGINT."""
        command, env = self.command(REPO), {**self.env, **env}
        with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=stderr) as process:
            while not self.begun():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == -signal.SIGINT, "no waiting for files under way"

    def pull(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), env={**self.env, **env}, capture_output=True, text=True, timeout=120, check=False
        )


@pytest.fixture
def machine(tmp_path: Path, hub: Hub) -> Machine:
    return Machine(tmp_path, hub)


def test_a_model_is_downloaded_and_looked_at(machine: Machine, hub: Hub) -> None:
    done = machine.pull(REPO)
    assert (done.returncode, done.stderr) == (0, ""), "progress is for terminals"
    assert {path: (machine.folder / path).read_bytes() for path in hub.files} == hub.files
    lines = done.stdout.splitlines()
    assert lines[0] == f"{REPO} at {COMMIT[:12]}: {len(hub.files)} files for {machine.folder}"
    assert lines[-1] == "as they were downloaded, by SHA-256: 1 of its files"
    assert list(machine.home.rglob("*")) == [], "nothing lies outside of the model's folder"


def test_a_broken_connection_is_resumed(machine: Machine, hub: Hub) -> None:
    hub.cut_at = CUT_AT
    done = machine.pull(REPO)
    assert (done.returncode, done.stderr) == (0, "")
    assert (machine.folder / SHARD).read_bytes() == hub.files[SHARD]
    assert len([one for one in hub.requests if "bytes=" in one]) == 1, hub.requests


def test_an_expired_address_is_resolved_again(machine: Machine, hub: Hub) -> None:
    hub.cut_at, hub.stalls, hub.expired = CUT_AT, True, True
    done = machine.pull(REPO, HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert (done.returncode, done.stderr, hub.expired) == (0, "", False)
    assert (machine.folder / SHARD).read_bytes() == hub.files[SHARD]


@pytest.mark.parametrize("begun", [False, True])
def test_a_hub_that_goes_away_is_one_line(machine: Machine, hub: Hub, *, begun: bool) -> None:
    if begun:
        machine.folder.mkdir(parents=True)
        (machine.folder / "config.json").write_bytes(hub.files["config.json"])
    hub.answers = 1
    done = machine.pull(REPO)
    assert (done.returncode, done.stderr.count("\n")) == (10, 1), done.stderr
    assert f"{hub.endpoint} can't be reached, or broke off" in done.stderr


def test_an_interrupted_download_is_resumed(machine: Machine, hub: Hub) -> None:
    hub.cut_at, hub.stalls = CUT_AT, True
    machine.interrupt()
    (begun,) = machine.begun()
    assert not (machine.folder / SHARD).exists()
    older = machine.folder / f".cache/huggingface/download/a=.{64 * 'e'}.incomplete"
    older.write_bytes(bytes(DATA_BYTES))
    hub.requests.clear()
    hub.cut_at = None
    done = machine.pull(REPO)
    assert done.returncode == 0
    left = f"\n{size(len(hub.files[SHARD]) - begun)} to download"
    assert left in done.stdout, "another revision's partial file does not count"
    assert [one for one in hub.requests if "bytes=" in one] == [f"GET /{REPO}/resolve/{COMMIT}/{SHARD} bytes={begun}-"]
    assert (machine.folder / SHARD).read_bytes() == hub.files[SHARD]


def test_an_interrupt_leaves_a_terminal_as_it_was(machine: Machine, hub: Hub) -> None:
    hub.cut_at, hub.stalls = CUT_AT, True
    ours, theirs = pty.openpty()
    machine.interrupt(theirs, TERM="xterm", COLUMNS="80")
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    os.close(theirs)
    assert f"1/1 {REPO}" in shown
    assert "\x1b[?25l" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor is shown again"


def test_a_second_time_nothing_is_downloaded(machine: Machine, hub: Hub) -> None:
    machine.pull(REPO)
    hub.requests.clear()
    assert machine.pull(REPO).returncode == 0
    assert [one for one in hub.requests if one.startswith("GET /org")] == []


def test_a_file_that_was_spoilt_is_downloaded_again(machine: Machine, hub: Hub) -> None:
    machine.pull(REPO)
    with (machine.folder / SHARD).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    os.utime(machine.folder / SHARD, (2e9, 2e9))
    assert machine.pull(REPO).returncode == 0
    assert (machine.folder / SHARD).read_bytes() == hub.files[SHARD]


def test_a_file_without_a_record_is_compared_and_not_downloaded(machine: Machine, hub: Hub) -> None:
    machine.pull(REPO)
    (machine.folder / f".cache/huggingface/download/{SHARD}.metadata").unlink()
    hub.requests.clear()
    assert machine.pull(REPO).returncode == 0
    assert [one for one in hub.requests if one.endswith(SHARD)] == [f"HEAD /{REPO}/resolve/{COMMIT}/{SHARD}"]


def test_a_partial_file_that_is_too_long_begins_again(machine: Machine, hub: Hub) -> None:
    hub.cut_at, hub.stalls = CUT_AT, True
    machine.interrupt()
    partial = max(machine.folder.rglob("*.incomplete"), key=lambda path: path.stat().st_size)  # others may be begun
    os.truncate(partial, len(hub.files[SHARD]) + 1)
    hub.cut_at = None
    assert machine.pull(REPO).returncode == 0
    assert (machine.folder / SHARD).read_bytes() == hub.files[SHARD]


def test_files_may_be_left_out(machine: Machine) -> None:
    assert machine.pull(REPO, "--exclude", "original/*").returncode == 0
    assert not (machine.folder / "original").exists()
    assert (machine.folder / SHARD).exists()


def test_a_file_outside_of_the_folder_is_refused(machine: Machine, hub: Hub) -> None:
    hub.files["a/../../evil"] = b"x"
    done = machine.pull(REPO)
    assert (done.returncode, done.stderr.count("\n")) == (10, 1)
    assert "outside of the model's folder" in done.stderr
    assert not machine.models.exists()


def test_what_the_disk_has_no_room_for_is_not_begun(machine: Machine, hub: Hub) -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 50

    hub.files["huge.safetensors"] = Huge()
    done = machine.pull(REPO)
    assert done.returncode == 10
    assert "1048577.0 GiB needed" in done.stderr
    assert not machine.models.exists()


def test_a_token_comes_from_a_private_file_alone(machine: Machine, hub: Hub, tmp_path: Path) -> None:
    hub.token = "hf_secret"
    closed = machine.pull(REPO)
    assert (closed.returncode, closed.stderr.count("\n")) == (10, 1)
    assert f"accept them at {hub.endpoint}/{REPO}" in closed.stderr
    file = tmp_path / "token"
    file.write_text("hf_secret\n")
    file.chmod(0o644)
    opened = machine.pull(REPO, "--token-file", str(file))
    assert (opened.returncode, "chmod 600" in opened.stderr) == (2, True)
    file.chmod(0o600)
    done = machine.pull(REPO, "--token-file", str(file))
    assert done.returncode == 0
    assert "hf_secret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "env", "code", "text"),
    [
        (["org/other"], {}, 10, "has no model org/other"),
        ([REPO], {"HF_HUB_OFFLINE": "1"}, 10, "HF_HUB_OFFLINE says to stay offline"),
        ([REPO], {"HF_ENDPOINT": "http://127.0.0.1:9"}, 10, "http://127.0.0.1:9 can't be reached"),
        (["name"], {}, 2, "name is no name of a model on the hub"),
        (["other/DeepSeek-V4-Flash"], {}, 2, "is the folder of deepseek-ai/DeepSeek-V4-Flash, not of other/"),
        ([], {"SPARKD_ENGINE__RECIPE": "tiny-cpu"}, 2, "recipe tiny-cpu does not say where its model is published"),
    ],
)
def test_each_refusal_is_one_line(
    machine: Machine, words: list[str], env: dict[str, str], code: int, text: str
) -> None:
    done = machine.pull(*words, **env)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert text in done.stderr
    assert not machine.models.exists()
