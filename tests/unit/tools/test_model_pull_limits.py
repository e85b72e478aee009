"""`sparkd model pull`: no more than was announced, than the disk has room for, and than a person agrees to."""

import errno
import os
import pty
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.commands import stdin_of
from tests.unit.hub_machine import SHARD, Machine, ended
from tests.unit.hub_server import REPO, Hub

from sparkd.base.host import Host
from sparkd.base.host.disks import read_rooms
from sparkd.base.lib.errors import BlockedError
from sparkd.tools.cli.model import CONFIRM_BYTES
from sparkd.tools.models.hub import Repo, limit_bytes
from sparkd.tools.models.hub_client import explain_error
from sparkd.tools.models.model_pull import require_download_room
from sparkd.tools.models.peers import SPARE_BYTES

LARGE_BYTES = CONFIRM_BYTES + 10**9


@pytest.mark.parametrize(
    ("words", "answer", "prompts", "code"),
    [((), "n\n", True, 0), ((), "\n", True, 10), (("--yes",), "n\n", False, 10)],
    ids=["declined", "confirmed", "confirmed by an option"],
)
def test_a_large_download_is_confirmed_on_a_terminal(
    words: tuple[str, ...], answer: str, prompts: bool, code: int, machine: Machine, hub: Hub
) -> None:
    """The hub announces more than the file has, so each download ends with an error."""
    (room,) = read_rooms(Host(), (str(machine.home),))
    assert room.free_bytes >= LARGE_BYTES + SPARE_BYTES, "needs a disk with room for a download that is confirmed"
    hub.announced_bytes[SHARD] = LARGE_BYTES
    ours, theirs = pty.openpty()
    os.write(ours, answer.encode())
    with os.fdopen(theirs) as terminal, stdin_of(terminal):
        done = machine.pull(REPO, *words)
    os.close(ours)
    assert done.returncode == code
    assert ("download it? [Y/n]" in done.stdout) is prompts
    assert ("nothing is downloaded" in done.stdout) is (code == 0)
    assert ("is not as large as the hub has it" in done.stderr) is (code == 10)
    assert (machine.folder / SHARD).exists() is (code == 10)


def test_an_answer_that_would_fill_the_memory_is_refused(machine: Machine, hub: Hub) -> None:
    """Some 2 MB on the wire."""
    hub.spaces_behind = 400 << 20
    done = ended(machine.start(REPO))
    assert done.returncode == 10
    assert done.stderr.splitlines() == [
        f"sparkd: {hub.endpoint} answers with more than 256 MiB for {REPO}",
        f"hint: no list of files is so large; another mirror: sudo env HF_ENDPOINT=URL sparkd model pull {REPO}",
    ]


@pytest.mark.parametrize("sizes", [True, False])
def test_a_file_larger_than_announced_is_not_written_on_nor_tried_again(
    machine: Machine, hub: Hub, sizes: bool
) -> None:
    hub.sizes, hub.spaces_behind = sizes, 40 << 20
    done = machine.pull(REPO, "--yes")
    assert done.returncode == 10
    assert "has more than its " in done.stderr
    assert sum(path.stat().st_size for path in machine.folder.rglob("*") if path.is_file()) < 40 << 20
    assert len([request for request in hub.requests if SHARD in request]) <= 2


@pytest.mark.parametrize("most_bytes", [None, 1 << 30], ids=["without a size", "with its size"])
def test_a_file_is_received_only_while_its_disk_has_room(most_bytes: int | None) -> None:
    """The room was there when the download began: another one may take it meanwhile."""
    received = list[int]()
    limit_bytes(received.append, Path.home() / "file", most_bytes)(1 << 20)
    with pytest.raises(OSError, match="its disk has less than") as refused:
        limit_bytes(received.append, Path("/proc/file"), most_bytes)(1)  # a file system without free space
    assert received == [1 << 20]
    assert explain_error(refused.value, REPO).hint == "make room: df -h; then run it again: it resumes"


def test_a_download_takes_a_bounded_amount_of_memory(machine: Machine, hub: Hub) -> None:
    """The client reads the text of an error whole, which may have no end."""
    limits = set[int]()
    hub.on_request = lambda _request: limits.add(resource.getrlimit(resource.RLIMIT_AS)[0])
    assert machine.pull(REPO).returncode == 0
    assert resource.RLIM_INFINITY not in limits
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("needed_bytes", "text"),
    [
        (lambda free_bytes: free_bytes - SPARE_BYTES // 2, "GiB needed for org/name"),
        (lambda _: 1 << 50, "1048577.0 GiB needed for org/name"),
    ],
    ids=["fits only with the spare GiB", "does not fit at all"],
)
def test_what_the_disk_has_no_room_for_beside_a_spare_gib_is_not_begun(
    machine: Machine, hub: Hub, needed_bytes: Callable[[int], int], text: str
) -> None:
    (room,) = read_rooms(Host(), (str(machine.home),))
    hub.announced_bytes[SHARD] = needed_bytes(room.free_bytes)
    done = machine.pull(REPO)
    assert done.returncode == 10
    assert text in done.stderr
    assert not machine.models.exists()


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (errno.EACCES, "with sudo, or into a folder of your own: --to FOLDER"),
        (errno.ENOSPC, "make room: df -h; then run it again: it resumes"),
        (errno.EROFS, "fix that, then run it again: it resumes"),
    ],
)
def test_a_folder_that_takes_no_files_has_its_remedy(server: Hub, code: int, hint: str) -> None:
    refused = explain_error(OSError(code, os.strerror(code), "/srv/models/x"), REPO)
    assert refused.reason == f"/srv/models/x: {os.strerror(code)}"
    assert refused.hint == hint


def test_a_disk_that_is_not_mounted_gets_its_model_only_once_it_is(tree: Tree) -> None:
    tree.file("/etc/fstab", "LABEL=models /srv/models ext4 nofail 0 2\n")
    tree.folder("/srv/models")
    with pytest.raises(BlockedError, match="nothing is mounted at /srv/models") as refused:
        require_download_room(Repo(REPO, "0" * 40, ()), "/srv/models/x", Host(tree.root))
    assert refused.value.hint.startswith("sudo mount /srv/models; or ")
