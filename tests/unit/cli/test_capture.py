"""`sparkd capture`: what gets into the archive, and what does not."""

from __future__ import annotations

import io
import json
import os
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sparkd.cli.capture_archive import Archive
from sparkd.cli.capture_tree import keep_content
from sparkd.host.recorder import RecordingFiles, read_tree
from sparkd.lib.redaction import Redaction

AT = datetime(2026, 11, 23, tzinfo=UTC)
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
        ("/proc/7/environ", b""),
        ("/proc/7/cmdline", b"a\0b\0c\0d\0e\0f\0"),
    ],
)
def test_what_is_known_to_hold_secrets_is_not_copied(path: str, kept: bytes) -> None:
    found = keep_content(path, b"a\0b\0c\0d\0e\0f\0g", "/etc/sparkd/other.key", {"/etc/sparkd/token"})
    assert found == kept


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
    found = {one.path.removeprefix(f"{top}"): one for one in read_tree(seen, ()) if one.path.startswith(str(top))}
    assert found["/a/file"].content == b"content"
    assert found["/a/other"].content == b"", "its name is there"
    assert found["/link"].target == "a"
    assert found["/fifo"].content == b""
    assert found["/key"].content == b"", "not everybody may read it"
    assert found["/pipe"].target == "pipe:[12]"
    resolved = os.path.normpath(os.path.join(str(top), found["/out"].target))
    assert resolved == "/etc/shadow", "below the tree's root, wherever that is"
    assert "/etc/shadow" not in {one.path for one in read_tree(seen, ())}, "what a symlink names was not looked at"
