"""Whatever root writes where a user may write too: no link of that user's is followed, and new files are the user's.

`tests/unit/test_writers.py` finds code that writes and is not walked here.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec import Struct
from tests.integration.stranger import UID, Stranger
from tests.integration.world import open_folder
from tests.unit.commands import sparkd

from sparkd.agent.actions import Actions, compile_caches, files, history
from sparkd.agent.actions.image_archive import lock_scratch, save
from sparkd.agent.actions.owner_lock import acquire_lock
from sparkd.agent.actions.shared_folders import SharedFolderError, refuse_shared, run_as_owner
from sparkd.agent.daemon.notify import Outbox
from sparkd.base.config import Notify
from sparkd.base.config.units import DropIn
from sparkd.base.host import Host
from sparkd.base.host.files import Files
from sparkd.base.host.owner import NodeOwner
from sparkd.base.lib.errors import BlockedError, LaunchError, SparkdError
from sparkd.base.lib.log import ProcessLog
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.systemd import Notifier
from sparkd.base.state.facts import Facts
from sparkd.base.state.file import StateFile
from sparkd.base.state.history import Launch
from sparkd.tools.models.ssh import ProgramResult, SshHost
from sparkd.tools.node.command_lock import hold_command_lock
from sparkd.tools.setup import cluster_key
from sparkd.tools.setup.setup_manifest import Setup
from sparkd.tools.setup.sysctl import SysctlManager
from sparkd.tools.setup.unit_files import UnitFiles

FOREIGN = Path(__file__).parents[1] / "unit/recipes/foreign-recipes/eugr-v1-deepseek-v4-flash.yaml"
IMAGE = "ab" * 32
STATE = "var/lib/sparkd"
MINE = NodeOwner(os.getpid(), "sparkd run --role head", "a" * 32)


class Count(Struct, frozen=True):
    steps: int


FILE = StateFile(Count, "count.json")
ROW = Launch("a", "2026-11-23T10:00:00+00:00", 0, "d", "tiny", Facts({}, {}, {}))


def host(root: Path) -> Host:
    """A host whose root is not resolved, because `/` is not either."""
    unresolved = Host(root)
    unresolved.files = Files(str(root))
    return unresolved


def run_import(root: Path) -> None:
    done = sparkd("recipe", "import", str(FOREIGN), "--write", str(root), "--force")
    if done.returncode:
        raise SharedFolderError(done.stderr, "")


def run_capture(root: Path) -> None:
    done = sparkd("capture", "--output", str(root / "x.tar.gz"), SUDO_UID=str(UID))
    if done.returncode:
        raise SharedFolderError(done.stderr, "")


def run_capture_for_root(root: Path) -> None:
    done = sparkd("capture", "--output", str(root / "x.tar.gz"), SUDO_UID="0")
    if done.returncode:
        raise SharedFolderError(done.stderr, "")


def write_several(root: Path) -> None:
    def write() -> None:
        files.write(root / "m.mods-1/run.sh", "x", 0o755, durable=True)
        files.write(root / "m.yaml", "x", 0o644, durable=True)

    run_as_owner(root, write)


def open_outbox(root: Path) -> None:
    events = ProcessLog(lambda *_line, **_how: None).events(Redaction())
    box = Outbox(host(root), Notify(), events)
    if box.open(wait=False):
        box.close()


def act(work: Callable[[Actions], object]) -> Callable[[Path], None]:
    def run(root: Path) -> None:
        lock = os.open("/dev/null", os.O_RDONLY)
        actions = Actions(host(root), MainLoop(Notifier(), {}), MINE, lock)
        try:
            work(actions)
        finally:
            os.close(lock)

    return run


def save_image(root: Path) -> None:
    with lock_scratch(root / ".cache/sparkd"):
        save("none", root / ".cache/sparkd/image-1.tar", lambda _: None)


class Writer(NamedTuple):
    run: Callable[[Path], object]
    target: str
    """The path below the folder that it makes or replaces."""
    theirs: bool = False
    """Whether it is written with the ids of the folder's owner; else it is refused."""


WRITERS = {
    "recipe import --write": Writer(run_import, "eugr-v1-deepseek-v4-flash.yaml", theirs=True),
    "recipe import --write, with files": Writer(write_several, "m.mods-1/run.sh", theirs=True),
    "capture --output": Writer(run_capture, "x.tar.gz", theirs=True),
    "capture --output, of another user's": Writer(run_capture_for_root, "x.tar.gz"),
    "image sync": Writer(save_image, ".cache/sparkd/image-1.part"),
    "init": Writer(
        lambda root: Setup(root).write("/etc/sparkd/conf.d/10-init.toml", "x", 0o644), f"{STATE}/setup.json"
    ),
    "init, its lock": Writer(lambda root: Setup(root).hold_lock().__enter__(), "run/sparkd/setup.lock"),
    "init --new-cluster-key": Writer(
        lambda root: cluster_key.create_key(f"/{root.name}/key", Setup(root.parent)), "key"
    ),
    "units install": Writer(
        lambda root: UnitFiles(root).install((DropIn("sparkd-head.service", "[Service]\n"),)),
        "etc/systemd/system/sparkd-head.service.d/50-sparkd.conf",
    ),
    "tune apply": Writer(
        lambda root: SysctlManager(root).apply({}, "# Written by `sparkd tune apply`\n"), "run/sparkd/setup.lock"
    ),
    "bench, its lock": Writer(
        lambda root: hold_command_lock(root, "run/sparkd/bench.lock").__enter__(), "run/sparkd/bench.lock"
    ),
    "tune-recipe": Writer(
        lambda root: files.write(root / "r.yaml", "x", 0o644, durable=True, overwrite=False), "r.yaml"
    ),
    "state": Writer(act(lambda actions: actions.write_state("s.json", "{}", 0o600)), f"{STATE}/s.json"),
    "state of people and agent": Writer(
        lambda root: files.compare_and_swap(Files(str(root)), FILE, None, Count(1)), f"{STATE}/count.json"
    ),
    "history": Writer(lambda root: history.write(Files(str(root)), ROW), f"{STATE}/history.db"),
    "notify, its lock": Writer(open_outbox, f"{STATE}/notify.lock"),
    "files of the head": Writer(act(lambda actions: actions.replace_head_files({"a": b"x"})), f"{STATE}/head/a"),
    "report": Writer(act(lambda actions: actions.write_run("report.json", "{}")), "run/sparkd/report.json"),
    "the node's lock": Writer(lambda root: os.close(acquire_lock(host(root), MINE)), "run/sparkd/owner.lock"),
    "caches, made": Writer(lambda root: compile_caches.make_cache_folder(IMAGE, "vllm", root), f"{IMAGE}/vllm"),
    "caches, cleared": Writer(
        lambda root: compile_caches.remove_cut_kernels(IMAGE, "triton", root), f"{IMAGE}/triton/a.so"
    ),
    "caches, pruned": Writer(lambda root: list(compile_caches.prune_caches(IMAGE, (), root)), f".removed-{IMAGE}/a"),
}


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of root's with a file for each writer, and one without a byte."""
    folder = tmp_path / "victim"
    for writer in WRITERS.values():
        file = folder / writer.target
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_dir():
            file.write_text("" if file.suffix == ".so" else "root's")
            file.chmod(0o600)
    return folder


@pytest.fixture
def theirs(tmp_path: Path, victim: Path) -> Path:
    """A folder of a user's."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, UID, UID)
    return folder


def snapshot(folder: Path) -> Iterator[tuple[str, int, int, int, str]]:
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        yield str(path), status.st_mode, status.st_uid, status.st_ino, path.read_text() if path.is_file() else ""


@pytest.mark.parametrize("planted", ["target", "parent", "folder"])
@pytest.mark.parametrize("name", WRITERS)
def test_what_a_user_has_planted_leads_to_nothing_of_roots(name: str, planted: str, theirs: Path, victim: Path) -> None:
    writer = WRITERS[name]
    if planted == "folder":
        theirs.rmdir()
        link, leads_to = theirs, victim
    else:
        link, leads_to = theirs / writer.target, victim / writer.target
        if planted == "parent" and link.parent != theirs:
            link, leads_to = link.parent, leads_to.parent
        link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(leads_to)
    while link not in (theirs.parent, theirs):
        os.chown(link, UID, UID, follow_symlinks=False)
        link = link.parent
    os.chown(theirs, UID, UID, follow_symlinks=False)
    before = list(snapshot(victim))
    with suppress(OSError, SparkdError):
        writer.run(theirs)
    assert list(snapshot(victim)) == before


@pytest.mark.parametrize("name", [name for name, writer in WRITERS.items() if writer.theirs])
def test_a_file_that_is_written_for_a_person_belongs_to_the_folders_owner(name: str, theirs: Path) -> None:
    WRITERS[name].run(theirs)
    written = list(theirs.rglob("*"))
    assert theirs / WRITERS[name].target in written
    assert {(path.stat().st_uid, path.stat().st_gid) for path in written} == {(UID, UID)}


@pytest.mark.parametrize("name", [name for name, writer in WRITERS.items() if not writer.theirs])
def test_what_is_sparkds_own_is_refused_with_the_command_that_repairs_it(name: str, theirs: Path) -> None:
    with pytest.raises((SparkdError, OSError)) as refused:
        WRITERS[name].run(theirs)
    assert str(theirs) in str(refused.value)
    assert "sudo " in str(refused.value)
    assert list(theirs.iterdir()) == []


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_of_roots_is_written_as_before(name: str, theirs: Path) -> None:
    os.chown(theirs, 0, 0)
    for place in (STATE, "run/sparkd"):
        (theirs / place).mkdir(parents=True)
    with suppress(BlockedError):  # docker has no such image
        WRITERS[name].run(theirs)
    assert {path.lstat().st_uid for path in theirs.rglob("*")} == {0}


SWAP = """
import os, sys, time
path = sys.argv[1]
while not os.path.exists(path):
    time.sleep(0.001)
os.rename(path, path + ".gone")
os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
os.chmod(path, 0o666)
print("swapped", flush=True)
time.sleep(20)
"""


def test_an_archive_is_written_into_no_file_that_another_user_has_put_in_its_place(theirs: Path) -> None:
    os.chown(theirs, 65534, 65534)
    theirs.chmod(0o777)
    archive = theirs / "x.tar.gz"
    with Stranger(SWAP, str(archive)) as stranger:
        assert sparkd("capture", "--output", str(archive), SUDO_UID="65534").returncode == 0
        assert stranger.wait_for("swapped")
    assert (archive.stat().st_uid, archive.stat().st_mode & 0o777) == (65534, 0o600)
    assert archive.stat().st_size > 1000


def test_a_folder_of_several_users_is_refused(theirs: Path) -> None:
    os.chown(theirs, 0, 0)
    theirs.chmod(0o777)
    with pytest.raises(SharedFolderError, match=f"sudo chmod go-w {theirs}"):
        run_as_owner(theirs, lambda: (theirs / "a").touch())


def test_in_a_sticky_folder_files_are_made_but_no_folders(theirs: Path) -> None:
    os.chown(theirs, 0, 0)
    theirs.chmod(0o1777)
    files.write(theirs / "a", "x", 0o600, durable=False)
    assert (theirs / "a").stat().st_uid == 0
    with pytest.raises(SharedFolderError, match=f"mktemp -d {theirs}/sparkd-XXXX"):
        files.write(theirs / "b/a", "x", 0o600, durable=False)


def test_an_error_of_the_owners_process_is_raised_as_it_was(theirs: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        run_as_owner(theirs, (theirs / "none").unlink)
    assert raised.value.filename == str(theirs / "none")
    with pytest.raises(OSError, match=f"as uid {UID} ended with 1"):
        run_as_owner(theirs, lambda: 1 / 0)


def test_a_link_that_a_container_puts_in_place_of_a_cache_folder_is_not_followed(tmp_path: Path, victim: Path) -> None:
    top = tmp_path / "cache"
    (top / "in").mkdir(parents=True)
    (top / "in/a.so").touch()
    (top / "link").symlink_to(victim / IMAGE / "triton")
    before = list(snapshot(victim))
    with pytest.raises(NotADirectoryError):
        compile_caches.remove_cut(top, "link/a.so")
    assert list(snapshot(victim)) == before
    compile_caches.remove_cut(top, "in/a.so")
    assert list((top / "in").iterdir()) == []


def test_caches_that_a_user_may_swap_start_no_engine(theirs: Path) -> None:
    with pytest.raises(LaunchError, match="sudo chown -h root:"):
        compile_caches.make_cache_folder(IMAGE, "vllm", theirs)


class Here(SshHost, frozen=True):
    """This node in the place of another one, where root logs in."""

    def run(self, *words: str, seconds: float = 60.0, stdin_text: str = "") -> ProgramResult:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return ProgramResult(done.returncode, done.stdout, done.stderr)


def test_rsync_on_another_node_runs_as_the_owner_of_the_folder(theirs: Path) -> None:
    os.chown(theirs, 65534, 65534)  # it has a name here
    assert Here("a").choose_writer(f"{theirs}/models/m") == ("--rsync-path=runuser -u nobody -- rsync",)
    os.chown(theirs, 0, 0)
    assert Here("a").choose_writer(f"{theirs}/models/m") == ()
    (theirs / "link").symlink_to("/")
    os.chown(theirs / "link", 65534, 65534, follow_symlinks=False)
    assert Here("a").choose_writer(f"{theirs}/link/srv") == ("--rsync-path=runuser -u nobody -- rsync",)


@pytest.mark.parametrize(("owner", "mode"), [(0, 0o777), (0, 0o1777), (0, 0o775), (UID, 0o755)])
def test_rsync_on_another_node_is_refused_where_several_users_may_write(theirs: Path, owner: int, mode: int) -> None:
    theirs.chmod(mode)
    os.chown(theirs, owner, owner)
    with pytest.raises(BlockedError, match="there: sudo"):
        Here("a").choose_writer(f"{theirs}/m")


class Hiding(Here, frozen=True):
    """A node on which a user has mounted a file system of their own, which root can't look at."""

    def run(self, *words: str, seconds: float = 60.0, stdin_text: str = "") -> ProgramResult:
        as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
        return super().run(*as_nobody, *(word.replace("id -u", "echo 0") for word in words))


def test_rsync_on_another_node_is_refused_where_root_cannot_look(theirs: Path) -> None:
    """The user unmounts it once that was looked at, and has links below."""
    os.chown(theirs, 0, 0)
    assert Hiding("a").choose_writer(f"{theirs}/models/m") == ()
    theirs.chmod(0o700)
    (theirs / "models").mkdir()
    with pytest.raises(BlockedError, match="can't look at models: Permission denied"):
        Hiding("a").choose_writer(f"{theirs}/models/m")
    os.chown(theirs, 1, 1)  # a user's own mount below a folder of that user's is written as that user
    assert Hiding("a").choose_writer(f"{theirs}/models/m") == ("--rsync-path=runuser -u daemon -- rsync",)


def test_nothing_is_refused_to_a_user_without_root(theirs: Path) -> None:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setresuid(UID, UID, UID)
            refuse_shared(theirs)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
