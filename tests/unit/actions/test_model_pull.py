"""`sparkd model pull`: the hub's own client against a hub on loopback."""

import errno
import fcntl
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.commands import INTERRUPTIBLE, Done, sparkd, stdin_of
from tests.unit.hub_server import COMMIT, REPO, Hub, serving
from tests.unit.nodes import until

from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.disks import read_rooms
from sparkd.base.lib.text import size
from sparkd.base.recipes.schema import Model
from sparkd.tools.cli import model
from sparkd.tools.models.hub import Repo, RepoFile, limit_bytes
from sparkd.tools.models.model_pull import ModelSource
from sparkd.tools.models.peers import SPARE_BYTES

SHARD = "model.safetensors"
DATA_BYTES = 20_000_000
CUT_AT = 12_000_000
"""The client writes pieces of 10 MB."""


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
def cut(hub: Hub, tmp_path: Path) -> Hub:
    """Its shard takes two pieces, and is cut in the second."""
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

    def begun(self) -> list[int]:
        """What has come of a shard under way; small files come and go beside it."""
        sizes = []
        for path in self.folder.rglob("*.incomplete"):
            with suppress(FileNotFoundError):
                sizes.append(path.stat().st_size)
        return [size_bytes for size_bytes in sizes if size_bytes > CUT_AT // 2]

    def interrupt(self, stderr: int = subprocess.DEVNULL, **env: str) -> None:
        """Begin the download of the shard, and end it by SIGINT."""
        with self.start(REPO, stderr=stderr, **env) as process:
            until(lambda: self.begun() or process.poll() is not None, 60)
            process.send_signal(signal.SIGINT)
            try:
                assert process.wait(10) == -signal.SIGINT, "no waiting for files under way"
            finally:
                process.kill()  # else a failure would wait for the end of the download, which may never come


def ended(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate(timeout=120)
    return Done(process.returncode, out, err)


@pytest.fixture
def machine(tmp_path: Path, hub: Hub) -> Machine:
    return Machine(tmp_path, hub)


def test_a_model_is_downloaded_and_looked_at(machine: Machine, hub: Hub) -> None:
    done = ended(machine.start(REPO))
    assert (done.returncode, done.stderr) == (0, ""), "progress is for terminals"
    assert {path: (machine.folder / path).read_bytes() for path in hub.files} == hub.files
    lines = done.stdout.splitlines()
    assert lines[0] == f"{REPO} at {COMMIT[:12]}: {len(hub.files)} files for {machine.folder}"
    assert lines[-1] == "as they were downloaded, by SHA-256: 1 of its files"
    assert list(machine.home.rglob("*")) == [], "nothing lies outside of the model's folder"


def test_a_broken_connection_is_resumed(machine: Machine, cut: Hub) -> None:
    done = machine.pull(REPO)
    assert (done.returncode, done.stderr) == (0, "")
    assert (machine.folder / SHARD).read_bytes() == cut.files[SHARD]
    assert len([request for request in cut.requests if "bytes=" in request]) == 1, cut.requests


@pytest.mark.parametrize("sizes", [True, False])
@pytest.mark.parametrize("older_bytes", [0, 2 * DATA_BYTES])
def test_an_expired_address_is_resolved_again(machine: Machine, cut: Hub, older_bytes: int, *, sizes: bool) -> None:
    """In place of another revision's file too, which is deleted as the new one comes."""
    cut.stalls, cut.expired, cut.sizes = True, True, sizes
    if older_bytes:
        Tree(machine.folder).safetensors(f"/{SHARD}", older_bytes)
    done = ended(machine.start(REPO, HF_HUB_DOWNLOAD_TIMEOUT="1"))
    assert (done.returncode, done.stderr, cut.expired) == (0, "", False)
    assert (machine.folder / SHARD).read_bytes() == cut.files[SHARD]


def test_a_hub_that_goes_away_is_one_line(machine: Machine, hub: Hub, tmp_path: Path) -> None:
    """Two at once, as each waits between its tries: one has nothing yet, the other has a file."""
    with serving(Hub(hub.files)) as other_hub:
        other = Machine(tmp_path / "other", other_hub)
        other.folder.mkdir(parents=True)
        (other.folder / "config.json").write_bytes(hub.files["config.json"])
        hub.answers = other_hub.answers = 1
        with machine.start(REPO) as first, other.start(REPO) as second:
            for away, process in ((hub, first), (other_hub, second)):
                done = ended(process)
                assert (done.returncode, done.stderr.count("sparkd: ")) == (10, 1), done.stderr
                assert f"{away.endpoint} can't be reached, or broke off" in done.stderr


def test_an_interrupted_download_is_resumed(machine: Machine, cut: Hub) -> None:
    cut.stalls = True
    machine.interrupt()
    (begun,) = machine.begun()
    assert not (machine.folder / SHARD).exists()
    older = machine.folder / f".cache/huggingface/download/a=.{64 * 'e'}.incomplete"
    older.write_bytes(bytes(DATA_BYTES))
    cut.requests.clear()
    cut.cut_at = None
    done = machine.pull(REPO)
    assert done.returncode == 0
    rest = f"\n{size(len(cut.files[SHARD]) - begun)} to download"
    assert rest in done.stdout, "another revision's partial file does not count"
    assert [request for request in cut.requests if "bytes=" in request] == [
        f"GET /{REPO}/resolve/{COMMIT}/{SHARD} bytes={begun}-"
    ]
    assert (machine.folder / SHARD).read_bytes() == cut.files[SHARD]


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
    from huggingface_hub._local_folder import get_local_download_paths

    files = RepoFile("a/model", 50, "wanted"), RepoFile("b/here", 50, "here"), RepoFile("b/no-hash", 50)
    Tree(tmp_path).file("/b/here", 50 * "x")
    for (path, etag), size_bytes in partials.items():
        get_local_download_paths(tmp_path, path).incomplete_path(etag).write_bytes(bytes(size_bytes))
    assert Repo(server.endpoint, COMMIT, files).missing_bytes(tmp_path) == left_bytes


def test_an_interrupt_leaves_a_terminal_as_it_was(machine: Machine, cut: Hub) -> None:
    cut.stalls = True
    ours, theirs = pty.openpty()
    machine.interrupt(theirs, TERM="xterm", COLUMNS="80")
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    os.close(theirs)
    assert f"1/1 {REPO}" in shown
    assert "\x1b[?25l" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor is shown again"


@pytest.mark.parametrize(
    ("words", "answer", "downloads"), [((), "n\n", False), ((), "\n", True), (("--yes",), "n\n", True)]
)
def test_a_large_download_is_confirmed_on_a_terminal(
    words: tuple[str, ...], answer: str, downloads: bool, machine: Machine, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "CONFIRM_BYTES", sum(map(len, hub.files.values())) - 1)
    ours, theirs = pty.openpty()
    os.write(ours, answer.encode())
    with os.fdopen(theirs) as terminal, stdin_of(terminal):
        done = machine.pull(REPO, *words)
    os.close(ours)
    assert (done.returncode, machine.folder.exists()) == (0, downloads)
    assert ("download it? [Y/n]" in done.stdout) is not bool(words)
    assert ("nothing is downloaded" in done.stdout) is not downloads


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
    assert (done.returncode, "\nonly changed files to download, " in done.stdout) == (0, True), done
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
    assert (done.returncode, "\nan unknown amount to download, " in done.stdout) == (0, True), done
    assert (machine.folder / SHARD).read_bytes() == hub.files[SHARD]
    hub.requests.clear()
    assert machine.pull(REPO).returncode == 0
    assert not [request for request in hub.requests if "/resolve/" in request]


def test_a_file_that_another_pull_has_just_brought_stays(machine: Machine, hub: Hub) -> None:
    shard, lock = machine.folder / SHARD, machine.folder / f".cache/huggingface/download/{SHARD}.lock"

    def bring(held: int) -> None:
        shard.write_bytes(hub.files[SHARD])
        os.close(held)

    class Requests(list[str]):
        def append(self, request: str) -> None:
            """The other pull, from the moment on in which this one has resolved the address of the shard."""
            super().append(request)
            if request.startswith("HEAD") and request.endswith(SHARD):
                held = os.open(lock, os.O_RDWR | os.O_CREAT)
                fcntl.flock(held, fcntl.LOCK_EX)
                threading.Timer(1.0, bring, (held,)).start()

    hub.requests = Requests()
    assert machine.pull(REPO).returncode == 0
    assert not [request for request in hub.requests if request.startswith("GET") and SHARD in request]


def test_an_empty_folder_name_is_none(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of `--to "$FOLDER"`, where that is not set: files of that name here would be replaced."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "README.md").write_text("mine")
    monkeypatch.chdir(own)
    assert machine.pull(REPO, "--to", "").returncode == 0
    assert [path.name for path in own.iterdir()] == ["README.md"]
    assert (machine.folder / SHARD).exists()


def test_a_file_without_a_record_is_compared_and_not_downloaded(machine: Machine, hub: Hub) -> None:
    machine.pull(REPO)
    (machine.folder / f".cache/huggingface/download/{SHARD}.metadata").unlink()
    hub.requests.clear()
    assert machine.pull(REPO).returncode == 0
    assert [request for request in hub.requests if request.endswith(SHARD)] == [
        f"HEAD /{REPO}/resolve/{COMMIT}/{SHARD}"
    ]


def test_a_partial_file_that_is_too_long_begins_again(machine: Machine, cut: Hub) -> None:
    cut.stalls = True
    machine.interrupt()
    partial = max(machine.folder.rglob("*.incomplete"), key=lambda path: path.stat().st_size)  # others may be begun
    os.truncate(partial, len(cut.files[SHARD]) + 1)
    cut.cut_at = None
    assert machine.pull(REPO).returncode == 0
    assert (machine.folder / SHARD).read_bytes() == cut.files[SHARD]


def test_an_answer_that_would_fill_the_memory_is_refused(machine: Machine, hub: Hub) -> None:
    """Some 2 MB on the wire."""
    hub.spaces_behind = 400 << 20
    done = ended(machine.start(REPO))
    assert (done.returncode, done.stderr.splitlines()) == (
        10,
        [
            f"sparkd: {hub.endpoint} answers with more than 256 MiB for {REPO}",
            f"hint: no list of files is so large; another mirror: sudo env HF_ENDPOINT=URL sparkd model pull {REPO}",
        ],
    )


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


def test_a_file_without_a_size_is_received_only_while_its_disk_has_room() -> None:
    received = list[int]()
    limit_bytes(received.append, Path.home() / "file", None)(1 << 20)
    with pytest.raises(ValueError, match="has no size at the hub"):
        limit_bytes(received.append, Path("/proc/file"), None)(1)  # a file system without free space
    assert received == [1 << 20]


def test_files_may_be_left_out(machine: Machine) -> None:
    assert machine.pull(REPO, "--exclude", "original/*").returncode == 0
    assert not (machine.folder / "original").exists()
    assert (machine.folder / SHARD).exists()


def test_a_file_outside_of_the_folder_is_refused(machine: Machine, hub: Hub) -> None:
    hub.files["a/../../evil"] = b"x"
    done = machine.pull(REPO)
    assert (done.returncode, done.stderr.count("sparkd: ")) == (10, 1)
    assert "outside of the model's folder" in done.stderr
    assert not machine.models.exists()


@pytest.mark.parametrize("fits", [False, True])
def test_what_the_disk_has_no_room_for_beside_a_spare_gib_is_not_begun(machine: Machine, hub: Hub, fits: bool) -> None:
    (room,) = read_rooms(Host(), (str(machine.home),))
    data_bytes = room.free_bytes - SPARE_BYTES // 2 if fits else 1 << 50

    class Huge(bytes):
        def __len__(self) -> int:
            return data_bytes

    hub.files["huge.safetensors"] = Huge()
    done = machine.pull(REPO)
    assert done.returncode == 10
    assert "GiB needed for org/name" in done.stderr
    assert fits or "1048577.0 GiB needed" in done.stderr
    assert not machine.models.exists()


def test_a_token_comes_from_a_private_file_alone(machine: Machine, hub: Hub, tmp_path: Path) -> None:
    hub.token = "hf_secret"
    closed = machine.pull(REPO)
    assert (closed.returncode, closed.stderr.count("sparkd: ")) == (10, 1)
    assert f"accept them at {hub.endpoint}/{REPO}" in closed.stderr
    file = tmp_path / "token"
    file.write_text("hf_secret\n")
    file.chmod(0o644)
    opened = machine.pull(REPO, "--token-file", str(file))
    assert (opened.returncode, "chmod 600" in opened.stderr) == (2, True)
    assert "has mode 0644" in opened.stderr
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    assert "is no regular file" in machine.pull(REPO, "--token-file", str(fifo)).stderr
    file.chmod(0o600)
    done = machine.pull(REPO, "--token-file", str(file))
    assert done.returncode == 0
    assert "hf_secret" not in done.stdout + done.stderr


def test_a_token_does_not_go_to_where_the_hub_stores_its_files(machine: Machine, hub: Hub, tmp_path: Path) -> None:
    hub.token = "hf_secret"
    file = tmp_path / "token"
    file.write_text("hf_secret\n")
    file.chmod(0o600)
    with serving(Hub(hub.files)) as storage:
        hub.moved_to = storage.endpoint.replace("127.0.0.1", "localhost")
        done = machine.pull(REPO, "--token-file", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert any(request.startswith("GET") for request in storage.requests)
    assert storage.tokens == {""}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("HF_HUB_OFFLINE", "1", "HF_HUB_OFFLINE says to stay offline"),
        ("HF_ENDPOINT", "http://127.0.0.1:{port}", "http://127.0.0.1:{port} can't be reached"),
    ],
)
def test_a_hub_out_of_reach_is_one_line(machine: Machine, port: int, name: str, value: str, text: str) -> None:
    machine.env[name] = value.format(port=port)
    done = ended(machine.start(REPO))
    assert (done.returncode, done.stderr.count("sparkd: ")) == (10, 1), done.stderr
    assert text.format(port=port) in done.stderr
    by_sudo = f": sudo env HTTPS_PROXY=URL HF_ENDPOINT=URL sparkd model pull {REPO}\n"
    assert done.stderr.endswith(by_sudo) == (name == "HF_ENDPOINT"), "sudo keeps neither variable"
    assert not machine.models.exists()


@pytest.mark.parametrize(
    ("words", "env", "code", "text"),
    [
        (["org/other"], {}, 10, "has no model org/other"),
        (["name"], {}, 78, "there is no recipe name"),
        ([], {}, 78, "this node is not set up"),
        (["a b/c"], {}, 2, "a b/c is no name of a model on the hub"),
        (
            ["other/DeepSeek-V4-Flash"],
            {"SPARKD_ENGINE__RECIPE": "deepseek-v4-flash-balanced"},
            2,
            "is the folder of deepseek-ai/DeepSeek-V4-Flash, not of other/",
        ),
        (
            ["--to", "/srv/models/Other"],
            {"SPARKD_ENGINE__RECIPE": "deepseek-v4-flash-balanced"},
            2,
            "/srv/models/Other is not the folder of deepseek-ai/DeepSeek-V4-Flash, the configured model",
        ),
        ([], {"SPARKD_ENGINE__RECIPE": "tiny-cpu"}, 2, "recipe tiny-cpu does not say where its model is published"),
    ],
)
def test_each_refusal_is_one_line(
    machine: Machine, words: list[str], env: dict[str, str], code: int, text: str
) -> None:
    done = machine.pull(*words, **env)
    assert (done.returncode, done.stderr.count("sparkd: ")) == (code, 1), done.stderr
    assert text in done.stderr
    assert not machine.models.exists()


def test_a_recipe_by_its_file_says_where_its_model_is_and_which_revision(machine: Machine, hub: Hub) -> None:
    recipe = machine.home / "mine.yaml"
    text = "schema: 1\nname: mine\nimage: {ref: i}\nmodel: {path: of-recipe, repo: org/name, revision: v1.0}\n"
    recipe.write_text(text)
    assert machine.pull(str(recipe), SPARKD_ENGINE__RECIPE="tiny-cpu").returncode == 0
    assert f"GET /api/models/{REPO}/revision/v1.0?blobs=true" in " ".join(hub.requests)
    assert (machine.models / "of-recipe" / SHARD).is_file()
    hub.requests.clear()
    assert machine.pull(str(recipe), "--revision", "v2").returncode == 0, "the option goes before the recipe"
    assert "/revision/v2?" in " ".join(hub.requests)


def test_the_recipes_model_in_lower_case_has_its_folder_and_revision() -> None:
    source = ModelSource("org/name", Model(path="of-recipe", repo="Org/Name", revision="v1.0"))
    assert (source.revision, source.folder(Settings())) == ("v1.0", f"{Settings().engine.models_dir}/of-recipe")
    other = ModelSource("org/other", source.model)
    assert (other.revision, other.folder(Settings())) == (None, f"{Settings().engine.models_dir}/other")


def test_the_configured_model_needs_no_name_for_its_own_folder(machine: Machine) -> None:
    recipe, folder = machine.home / "mine.yaml", machine.models / "of-recipe"
    recipe.write_text("schema: 1\nname: mine\nimage: {ref: i}\nmodel: {path: of-recipe, repo: org/name}\n")
    assert machine.pull("--to", f"{folder}/", SPARKD_ENGINE__RECIPE=str(recipe)).returncode == 0
    assert (folder / SHARD).is_file()
    refused = machine.pull("--to", str(machine.models / "other"), SPARKD_ENGINE__RECIPE=str(recipe))
    assert f"sudo sparkd model pull ORGANISATION/NAME --to {machine.models}/other" in refused.stderr


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (errno.EACCES, "with sudo, or into a folder of your own: --to FOLDER"),
        (errno.ENOSPC, "make room: df -h; then run it again: it resumes"),
        (errno.EROFS, "fix that, then run it again: it resumes"),
    ],
)
def test_a_folder_that_takes_no_files_has_its_remedy(server: Hub, code: int, hint: str) -> None:
    from sparkd.tools.models import hub

    refused = hub._explain_error(OSError(code, os.strerror(code), "/srv/models/x"), REPO)
    assert (refused.reason, refused.hint) == (f"/srv/models/x: {os.strerror(code)}", hint)
