"""`sparkd capture`: what gets into the archive, and what does not."""

import asyncio
import fcntl
import io
import json
import os
import shlex
import signal
import struct
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.commands import INTERRUPTIBLE

from sparkd.agent.cluster.log_pages import LogPage
from sparkd.agent.cluster.node_logs import NodeLog
from sparkd.agent.preflight.engine_processes import is_serve
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.journal import Line, Lines, Query
from sparkd.base.lib.errors import UsageError
from sparkd.base.lib.http_client import HttpError
from sparkd.base.lib.redaction import Redaction
from sparkd.tools.support.archive import Archive
from sparkd.tools.support.capture_collector import Collector
from sparkd.tools.support.capture_tree import hide_values, keep_content
from sparkd.tools.support.nodes_reader import NodesReader
from sparkd.tools.support.recorder import KEPT_SETTINGS, RecordingFiles, read_tree

AT = datetime(2026, 11, 23, tzinfo=UTC)
F_SETOWN_EX, F_OWNER_TID = 15, 0  # linux/fcntl.h
PLANT = "Tr0ub4dor-and-3"


def opened(content: bytes) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(content))


def test_every_text_of_an_archive_passes_the_redaction_names_too() -> None:
    out = Archive("capture", AT, Redaction((PLANT,)))
    out.add("a.json", json.dumps({"x": PLANT}))
    out.add(f"tree/srv/{PLANT}/config.json", b"{}")
    out.add("tree/etc/link", None, f"../{PLANT}")
    out.add("tree/srv/model.bin", b"\xff\x00" + PLANT.encode())
    content = out.close()
    with opened(content) as tar:
        names = tar.getnames()
        texts = [file.read() for one in tar.getmembers() if (file := tar.extractfile(one) if one.isfile() else None)]
        links = [one.linkname for one in tar.getmembers()]
    assert not any(PLANT in text for text in (*names, *links))
    assert not any(PLANT.encode() in text for text in texts)
    assert texts == [b'{\n "x": "***"\n}', b"{}", b""]


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/etc/sparkd/sparkd.toml", b"a\0b\0c\0d\0e\0f\0g"),
        ("/etc/sparkd/other.key", b"0" * 64 + b"\n"),
        ("/etc/sparkd/token", b""),
        ("/var/lib/sparkd/setup.json", b""),
        ("/var/lib/sparkd/switch.json", b"a\0b\0c\0d\0e\0f\0g"),
        ("/run/sparkd/private/rank-plan.json", b""),
        ("/run/sparkd/private/rank.json", b"a\0b\0c\0d\0e\0f\0g"),
        ("/proc/7/environ", b""),
        ("/proc/7/cmdline", b"a\0***\0***\0***\0***\0***\0"),
    ],
)
def test_what_is_known_to_hold_secrets_is_not_copied(path: str, kept: bytes) -> None:
    found = keep_content(path, b"a\0b\0c\0d\0e\0f\0g", "/etc/sparkd/other.key", {"/etc/sparkd/token"})
    assert found == kept


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("bash|-c|export A=1\nexport B=2", "bash|-c|***"),
        ("mysql|-uroot|-phunter22|--password=hunter22|--host|db", "mysql|-u|-p|--password|--host|***"),
        ("x" * 500 + "|a", "x" * 100 + "|***"),
        ("worker: started with hunter22", "worker:"),
        (
            "/usr/bin/python3|-X|utf8|/opt/v/bin/vllm|serve|org/model|--port",
            "/usr/bin/python3|-X|***|/opt/v/bin/vllm|serve|***",
        ),
        (
            "python|-m|vllm.entrypoints.openai.api_server|--api-key|hunter22",
            "python|-m|vllm.entrypoints.openai.api_server|--api-key|***",
        ),
        ("|a", "|***"),
        ("", ""),
    ],
)
def test_of_a_command_the_program_and_its_flags_are_kept(words: str, kept: str) -> None:
    assert "|".join(hide_values(words.split("|"))) == kept


@pytest.mark.parametrize(
    "words", ["vllm serve m --port 1", "python -m vllm serve", "python3 -X a /x/vllm serve", "python x.py"]
)
def test_an_engine_is_known_by_what_is_kept(words: str) -> None:
    assert is_serve(tuple(hide_values(words.split()))) is is_serve(tuple(words.split()))


def test_json_without_end_is_redacted_as_text() -> None:
    out = Archive("capture", AT, Redaction((PLANT,)))
    out.add("config.json", "[" * 900 + f'"{PLANT}"' + "]" * 900)
    with opened(out.close()) as tar:
        (file,) = (tar.extractfile(one) for one in tar.getmembers())
        assert file is not None
        assert file.read().count(b"[") == 900


class Machine:
    """`tree` as this machine: what a capture would copy of it."""

    def __init__(self, top: Path) -> None:
        self.top = top.resolve()

    def read(self, *paths: str) -> dict[str, bytes | None]:
        seen = RecordingFiles()
        for path in paths:
            seen.text(f"{self.top}/{path}")
        return {one.path.removeprefix(f"{self.top}/"): one.content for one in read_tree(seen, ())}


def test_what_only_root_may_read_is_copied_of_the_settings_alone(tmp_path: Path) -> None:
    """A check reads compose files that units name, and follows links in folders of models, as root."""
    machine = Machine(tmp_path)
    for path in ("compose.yml", "model/kube.yaml", "open/open.yaml"):
        (machine.top / path).parent.mkdir(exist_ok=True)
        (machine.top / path).write_text("words")
    for path in ("compose.yml", "model/kube.yaml"):
        (machine.top / path).chmod(0o600)
    (machine.top / "model/config.json").symlink_to("kube.yaml")
    found = machine.read("compose.yml", "model/config.json", "open/open.yaml")
    assert found["compose.yml"] == b""
    assert found["model/kube.yaml"] == b""
    assert found["open/open.yaml"] == b"words"
    assert KEPT_SETTINGS.fullmatch("/etc/sparkd/conf.d/10-more.toml")
    assert not KEPT_SETTINGS.fullmatch("/srv/etc/sparkd/x.toml")


@pytest.fixture
def collector(tree: Tree) -> Callable[[], Collector]:
    """Of the machine `tree`, whose configuration is broken."""
    tree.file("/etc/sparkd/sparkd.toml", "[cluster\n")
    return lambda: Collector(Host(str(tree.root)))


def test_what_root_keeps_beside_broken_settings_is_hidden(collector: Callable[[], Collector], tree: Tree) -> None:
    tree.file("/etc/sparkd/webhook", f"https://example.com/{PLANT}", 0o600)
    tree.file("/etc/sparkd/notes", "seen by all", 0o644)
    made = collector()
    assert made.redact(f"posted to https://example.com/{PLANT}") == "posted to ***"
    assert made.redact("seen by all") == "seen by all"
    assert "LOOK FOR SECRETS" in made.missing[0]
    assert f"  {made.missing[0]}\n" in made._format_readme("capture")


def test_a_secret_that_can_t_be_read_is_named(collector: Callable[[], Collector], tree: Tree) -> None:
    tree.file("/etc/sparkd/long", "x" * (1 << 17), 0o600)
    assert any("content of /etc/sparkd/long (LOOK FOR IT, it is not hidden)" in one for one in collector().missing)


def test_a_part_that_fails_in_any_way_or_hangs_is_named(collector: Callable[[], Collector]) -> None:
    made, end = collector(), threading.Event()
    assert made.attempt("odd", lambda: dict[str, int]()["x"]) is None
    assert made.attempt("slow", end.wait, 0.2) is None
    end.set()
    assert made.missing[-2:] == ["odd: KeyError: 'x'", "slow: not read within 0.2 s"]


def test_own_lines_are_there_where_another_node_is_silent(tree: Tree) -> None:
    """Which is not requested again for the next window."""
    requests = list[str]()

    async def own(query: Query) -> LogPage:
        return LogPage("spark1", time.time_ns() // 1000, Lines((Line(query.since_us, "1", 6, "an own line"),)))

    async def silent(_query: Query) -> LogPage:
        requests.append("spark2")
        raise HttpError("no answer")

    missing = list[str]()

    @asynccontextmanager
    async def open_both(*_: object) -> AsyncIterator[tuple[list[NodeLog], str]]:
        yield [NodeLog("", own), NodeLog("10.0.0.2", silent)], ""

    nodes = NodesReader(Settings(), Host(str(tree.root)), missing, open_both)
    asyncio.run(nodes.read_all([datetime(2026, 11, 23, 1, tzinfo=UTC)]))
    assert len(nodes.texts) == 2
    assert all("an own line" in text for text in nodes.texts.values())
    assert requests == ["spark2"]
    assert "lines of 10.0.0.2 (there: sudo sparkd capture), recent: no answer" in missing


def test_windows_are_by_this_nodes_clock(tree: Tree) -> None:
    """The other node's clock is two hours behind."""
    behind_us, queries = 7_200_000_000, list[Query]()

    async def read(query: Query) -> LogPage:
        queries.append(query)
        return LogPage("spark2", time.time_ns() // 1000 - behind_us, Lines(()))

    @asynccontextmanager
    async def open_other(*_: object) -> AsyncIterator[tuple[list[NodeLog], str]]:
        yield [NodeLog("10.0.0.2", read)], ""

    failure = datetime(2026, 11, 23, 1, tzinfo=UTC)
    asyncio.run(NodesReader(Settings(), Host(str(tree.root)), [], open_other).read_all([failure]))
    at_us = round(failure.timestamp() * 1e6) - behind_us
    assert abs(queries[-1].since_us - (at_us - 900_000_000)) < 1_000_000
    assert abs(queries[-1].until_us - (at_us + 60_000_000)) < 1_000_000


def test_a_file_that_is_there_stays_and_the_hint_has_a_free_name(
    collector: Callable[[], Collector], tmp_path: Path
) -> None:
    there = tmp_path / "it's.tar.gz"
    there.write_text("mine")
    with pytest.raises(UsageError, match="is there already") as raised:
        collector().save(str(there))
    words = shlex.split(raised.value.hint)
    assert words[:4] == ["sudo", "sparkd", "capture", "--output"]
    another = Path(words[4])
    assert (another.parent, another.exists(), there.read_text()) == (tmp_path, False, "mine")


def test_an_archive_is_bounded() -> None:
    out = Archive("capture", AT, Redaction(()))
    for number in range(40):
        out.add(f"{number}", os.urandom(1 << 19).hex())
    assert out.left_out > 0
    assert len(out.close()) < 21e6


def test_a_tree_has_what_was_looked_at_and_leads_nowhere_else(tmp_path: Path) -> None:
    top = tmp_path.resolve()
    (top / "a").mkdir()
    (top / "a/file").write_text("content")
    (top / "a/other").write_text("not looked at")
    (top / "link").symlink_to(top / "a")
    (top / "out").symlink_to("../../../../../../../../../etc/shadow")
    (top / "pipe").symlink_to("pipe:[12]")
    os.mkfifo(top / "fifo")
    (top / "key").write_text("bare words")
    (top / "key").chmod(0o640)
    seen = RecordingFiles()
    assert seen.text(f"{top}/link/file") == "content"
    seen.names(f"{top}/link")
    for name in ("out", "pipe"):
        seen.link(f"{top}/{name}")
    seen.exists(f"{top}/fifo")
    assert seen.text(f"{top}/key") == "bare words"
    members = {
        member.path.removeprefix(f"{top}"): member for member in read_tree(seen, ()) if member.path.startswith(str(top))
    }
    assert members["/a/file"].content == b"content"
    assert members["/a/other"].content == b"", "its name is there"
    assert members["/link"].target == "a"
    assert members["/fifo"].content == b""
    assert members["/key"].content == b"", "not everybody may read it"
    assert members["/pipe"].target == "pipe:[12]"
    resolved = os.path.normpath(os.path.join(str(top), members["/out"].target))
    assert resolved == "/etc/shadow", "below the tree's root, wherever that is"
    assert "/etc/shadow" not in {member.path for member in read_tree(seen, ())}, (
        "what a symlink names was not looked at"
    )


ENDS = """
import os, signal
from sparkd.tools.measure.interrupts import catch_ends
catch_ends(once=True)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.raise_signal(number)
    print("cleaned up")
"""


def test_ctrl_c_again_does_not_end_what_removes_the_archive() -> None:
    command = [*INTERRUPTIBLE, sys.executable, "-c", ENDS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "cleaned up\n"), done.stderr


def test_a_session_that_ends_as_the_file_is_made_leaves_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "capture.tar.gz"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        # The kernel sends the signal with the call that makes the file, and to this thread, as if it were the only one.
        fcntl.fcntl(folder, F_SETOWN_EX, struct.pack("ii", F_OWNER_TID, threading.get_native_id()))
        fcntl.fcntl(folder, fcntl.F_SETSIG, signal.SIGINT)
        fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_CREATE)
        with pytest.raises(KeyboardInterrupt):
            Collector(Host()).save(str(path))
    finally:
        os.close(folder)
        signal.signal(signal.SIGINT, before)
    assert not path.exists()
    assert f"ended early: {path} is not written" in capsys.readouterr().err
