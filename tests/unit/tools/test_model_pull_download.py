"""`sparkd model pull`: files are downloaded once, and an interrupted download is resumed."""

import fcntl
import os
import pty
import threading
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.hub_machine import DATA_BYTES, DOWNLOADS, SHARD, Machine, ended, partial_file
from tests.unit.hub_server import COMMIT, REPO, Hub, serving
from tests.unit.terminal import drain

from sparkd.base.lib.text import size
from sparkd.tools.models.hub import Repo, RepoFile
from sparkd.tools.models.hub_client import fetch_until_complete


def test_a_model_is_downloaded_and_looked_at(machine: Machine, hub: Hub) -> None:
    done = ended(machine.start(REPO))
    assert done.returncode == 0
    assert done.stderr == "", "progress is for terminals"
    assert {path: (machine.folder / path).read_bytes() for path in hub.files} == hub.files
    lines = done.stdout.splitlines()
    assert lines[0] == f"{REPO} at {COMMIT[:12]}: {len(hub.files)} files for {machine.folder}"
    assert lines[-1] == "as they were downloaded, by SHA-256: 1 of its files"
    assert list(machine.home.rglob("*")) == [], "nothing lies outside of the model's folder"


def test_a_broken_connection_is_resumed(machine: Machine, broken_hub: Hub) -> None:
    done = machine.pull(REPO)
    assert done.returncode == 0
    assert done.stderr == ""
    assert (machine.folder / SHARD).read_bytes() == broken_hub.files[SHARD]
    assert len([request for request in broken_hub.requests if "bytes=" in request]) == 1, broken_hub.requests


@pytest.mark.parametrize("sizes", [True, False])
@pytest.mark.parametrize("older_bytes", [0, 2 * DATA_BYTES])
def test_an_expired_address_is_resolved_again(
    machine: Machine, broken_hub: Hub, older_bytes: int, *, sizes: bool
) -> None:
    """In place of another revision's file too, which is deleted as the new one comes."""
    broken_hub.stalls, broken_hub.expired, broken_hub.sizes = True, True, sizes
    if older_bytes:
        Tree(machine.folder).safetensors(f"/{SHARD}", older_bytes)
    done = ended(machine.start(REPO, HF_HUB_DOWNLOAD_TIMEOUT="1"))
    assert done.returncode == 0
    assert done.stderr == ""
    assert not broken_hub.expired
    assert (machine.folder / SHARD).read_bytes() == broken_hub.files[SHARD]


def test_a_hub_that_goes_away_ends_with_one_error_line(machine: Machine, hub: Hub, tmp_path: Path) -> None:
    """Two at once, as each waits between its tries: one has nothing yet, the other has a file."""
    with serving(Hub(hub.files)) as other_hub:
        other = Machine(tmp_path / "other", other_hub)
        other.folder.mkdir(parents=True)
        (other.folder / "config.json").write_bytes(hub.files["config.json"])
        hub.answers = other_hub.answers = 1
        with machine.start(REPO) as first, other.start(REPO) as second:
            for away, process in ((hub, first), (other_hub, second)):
                done = ended(process)
                assert done.returncode == 10, done.stderr
                assert done.stderr.count("sparkd: ") == 1
                assert f"{away.endpoint} can't be reached, or broke off" in done.stderr


@pytest.mark.parametrize(
    ("received_bytes", "status", "seconds"),
    [(0, 0, 6), (1, 0, 242), (0, 503, 6), (1, 503, 242), (0, 403, 0), (1, 403, 2)],
)
def test_a_hub_that_was_there_is_awaited_for_minutes(
    server: Hub, received_bytes: int, status: int, seconds: float
) -> None:
    """A router that connects again at night must not end a download of hours. A refusal lasts."""
    from httpx import ConnectError, Request, Response
    from huggingface_hub.errors import HfHubHTTPError

    refusal = HfHubHTTPError("", response=Response(status, request=Request("GET", server.endpoint))) if status else None
    pauses, received = list[float](), [0]

    def fetch() -> None:
        received[0] = received_bytes
        raise refusal or ConnectError("away")

    with pytest.raises((ConnectError, HfHubHTTPError)):
        fetch_until_complete(fetch, lambda: received[0], pauses.append)
    assert sum(pauses) == seconds


def test_a_hub_that_has_a_file_begin_again_is_not_awaited_without_end(server: Hub) -> None:
    """Such as one without ranges, whose connections break off now here, now there."""
    from httpx import ReadError

    totals = [0, *(50, -10) * 20]

    def fetch() -> None:
        totals.pop(0)
        raise ReadError("broken off")

    with pytest.raises(ReadError):
        fetch_until_complete(fetch, lambda: totals[0], lambda _: None)
    assert len(totals) > 20


def test_a_hub_without_ranges_sends_the_whole_file_again(machine: Machine, broken_hub: Hub) -> None:
    broken_hub.stalls = True
    machine.interrupt()
    assert machine.partial_sizes()
    broken_hub.cut_at, broken_hub.ranges = None, False
    done = machine.pull(REPO)
    assert done.returncode == 0
    assert done.stderr == ""
    assert (machine.folder / SHARD).read_bytes() == broken_hub.files[SHARD]


def test_an_interrupted_download_is_resumed(machine: Machine, broken_hub: Hub) -> None:
    broken_hub.stalls = True
    machine.interrupt()
    (partial_bytes,) = machine.partial_sizes()
    assert not (machine.folder / SHARD).exists()
    older = partial_file(machine.folder, SHARD, etag=64 * "e")
    older.write_bytes(bytes(DATA_BYTES))
    broken_hub.requests.clear()
    broken_hub.cut_at = None
    done = machine.pull(REPO)
    assert done.returncode == 0
    rest = f"\n{size(len(broken_hub.files[SHARD]) - partial_bytes)} to download"
    assert rest in done.stdout, "another revision's partial file does not count"
    assert [request for request in broken_hub.requests if "bytes=" in request] == [
        f"GET /{REPO}/resolve/{COMMIT}/{SHARD} bytes={partial_bytes}-"
    ]
    assert (machine.folder / SHARD).read_bytes() == broken_hub.files[SHARD]


@pytest.mark.parametrize(
    ("partials", "left_bytes"),
    [
        ({("a/model", "wanted"): 30}, 70),
        ({("a/model", "wanted"): 300}, 50),
        ({("a/model", "older"): 30, ("a/left-out", "left-out"): 300, ("b/model", "wanted"): 30}, 100),
        ({("b/here", "here"): 50}, 100),
        ({("b/no-hash", "any"): 20}, 80),
    ],
    ids=["its own", "too long", "of an older revision, a file left out, and another place", "complete", "no hash"],
)
def test_a_partial_counts_for_its_own_missing_file_alone(
    server: Hub, tmp_path: Path, partials: dict[tuple[str, str], int], left_bytes: int
) -> None:
    files = RepoFile("a/model", 50, "wanted"), RepoFile("b/here", 50, "here"), RepoFile("b/no-hash", 50)
    Tree(tmp_path).file("/b/here", 50 * "x")
    for (path, etag), size_bytes in partials.items():
        file = partial_file(tmp_path, path, etag)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(size_bytes))
    assert Repo(server.endpoint, COMMIT, files).missing_bytes(tmp_path) == left_bytes


def test_an_interrupt_leaves_a_terminal_as_it_was(machine: Machine, broken_hub: Hub) -> None:
    broken_hub.stalls = True
    ours, theirs = pty.openpty()
    machine.interrupt(theirs, TERM="xterm", COLUMNS="80")
    os.close(theirs)
    drain(ours, pieces := bytearray())
    os.close(ours)
    shown = pieces.decode()
    assert f"1/1 {REPO}" in shown
    assert "\x1b[?25l" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor is shown again"
    assert shown.endswith("sparkd: interrupted; the same command resumes\r\n")


def test_an_interrupt_ends_a_pull_whose_errors_nobody_reads(machine: Machine, broken_hub: Hub) -> None:
    """As with `2>&1 | tee`, which the same Ctrl-C ends first."""
    broken_hub.stalls = True
    reader, writer = os.pipe()
    os.close(reader)
    machine.interrupt(writer)
    os.close(writer)


def test_a_partial_file_that_is_too_long_begins_again(machine: Machine, broken_hub: Hub) -> None:
    broken_hub.stalls = True
    machine.interrupt()
    partial = max(machine.folder.rglob("*.incomplete"), key=lambda path: path.stat().st_size)  # others may be begun
    os.truncate(partial, len(broken_hub.files[SHARD]) + 1)
    broken_hub.cut_at = None
    assert machine.pull(REPO).returncode == 0
    assert (machine.folder / SHARD).read_bytes() == broken_hub.files[SHARD]


def test_a_second_pull_downloads_nothing(machine: Machine, hub: Hub) -> None:
    machine.pull(REPO)
    hub.requests.clear()
    assert machine.pull(REPO).returncode == 0
    assert [request for request in hub.requests if request.startswith("GET /org")] == []


def test_a_file_that_was_spoilt_is_downloaded_again(machine: Machine, hub: Hub) -> None:
    machine.pull(REPO)
    with (machine.folder / SHARD).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    os.utime(machine.folder / SHARD, (2e9, 2e9))
    done = machine.pull(REPO)
    assert done.returncode == 0, done
    assert "\nonly changed files to download, " in done.stdout
    assert (machine.folder / SHARD).read_bytes() == hub.files[SHARD]


def test_a_file_that_lost_its_end_after_its_record_is_downloaded_again(machine: Machine, hub: Hub) -> None:
    """As a power cut leaves it: the client writes no file through to the disk, and the time of the file stays."""
    machine.pull(REPO)
    shard = machine.folder / SHARD
    written = shard.stat().st_mtime
    os.truncate(shard, 100)
    os.utime(shard, (written, written))
    assert machine.pull(REPO).returncode == 0
    assert shard.read_bytes() == hub.files[SHARD]


def test_a_model_without_sizes_is_downloaded_once(machine: Machine, hub: Hub) -> None:
    """As some mirrors list its files."""
    hub.sizes = False
    done = machine.pull(REPO)
    assert done.returncode == 0, done
    assert "\nan unknown amount to download, " in done.stdout
    assert (machine.folder / SHARD).read_bytes() == hub.files[SHARD]
    hub.requests.clear()
    assert machine.pull(REPO).returncode == 0
    assert not [request for request in hub.requests if "/resolve/" in request]


def test_a_file_that_another_pull_has_just_brought_stays(machine: Machine, hub: Hub) -> None:
    shard, lock_file = machine.folder / SHARD, machine.folder / DOWNLOADS / f"{SHARD}.lock"

    def bring(lock: int) -> None:
        shard.write_bytes(hub.files[SHARD])
        os.close(lock)

    def begin_another_pull(request: str) -> None:
        """It has the shard's lock from the moment on in which this pull has resolved the address of the shard."""
        if request.startswith("HEAD") and request.endswith(SHARD):
            lock = os.open(lock_file, os.O_RDWR | os.O_CREAT)
            fcntl.flock(lock, fcntl.LOCK_EX)
            threading.Timer(1.0, bring, (lock,)).start()

    hub.on_request = begin_another_pull
    assert machine.pull(REPO).returncode == 0
    assert not [request for request in hub.requests if request.startswith("GET") and SHARD in request]


def test_a_file_without_a_record_is_compared_and_not_downloaded(machine: Machine, hub: Hub) -> None:
    machine.pull(REPO)
    (machine.folder / DOWNLOADS / f"{SHARD}.metadata").unlink()
    hub.requests.clear()
    assert machine.pull(REPO).returncode == 0
    assert [request for request in hub.requests if request.endswith(SHARD)] == [
        f"HEAD /{REPO}/resolve/{COMMIT}/{SHARD}"
    ]
