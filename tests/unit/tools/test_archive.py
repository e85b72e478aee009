"""The archive of a capture: every text in it is redacted, and its length is bounded."""

import io
import json
import os
import tarfile
from datetime import UTC, datetime

from sparkd.base.lib.redaction import Redaction
from sparkd.tools.support.archive import Archive

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
    with opened(out.close()) as tar:
        members = tar.getmembers()
        texts = [file.read() for member in members if member.isfile() and (file := tar.extractfile(member))]
    assert not any(PLANT in member.name + member.linkname for member in members)
    assert texts == [b'{\n "x": "***"\n}', b"{}", b""]


def test_json_without_end_is_redacted_as_text() -> None:
    out = Archive("capture", AT, Redaction((PLANT,)))
    out.add("config.json", "[" * 900 + f'"{PLANT}"' + "]" * 900)
    with opened(out.close()) as tar:
        (file,) = map(tar.extractfile, tar.getmembers())
        assert file is not None
        assert file.read().count(b"[") == 900


def test_an_archive_is_bounded() -> None:
    out = Archive("capture", AT, Redaction(()))
    for number in range(40):
        out.add(f"{number}", os.urandom(1 << 19).hex())
    assert out.left_out > 0
    assert len(out.close()) < 21e6
