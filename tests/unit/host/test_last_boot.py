"""The last boot's end in the journal: whose lines count, and that no loud unit crowds them out."""

import json
import os
from pathlib import Path

import pytest
from tests.unit.verdicts import present

from sparkd.base.host.files import Files
from sparkd.base.host.last_boot import BootLine, parse_boot_line, read_last_boot
from sparkd.base.lib.redactor import Redactor

END = 1_790_000_000.0


def line(message: str, **fields: str) -> bytes:
    return json.dumps({"MESSAGE": message, "__REALTIME_TIMESTAMP": "1790000000000000", **fields}).encode()


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0"}, "kernel"),
        ({"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "1"}, None),
        ({"_TRANSPORT": "kernel"}, None),
        ({"_TRANSPORT": "driver"}, "journald"),
        ({"_TRANSPORT": "journal", "_PID": "1"}, "systemd"),
        ({"_TRANSPORT": "syslog", "_PID": "1", "SYSLOG_FACILITY": "0"}, None),
        ({"_TRANSPORT": "journal", "_PID": "812", "SYSLOG_IDENTIFIER": "kernel"}, None),
        ({"_TRANSPORT": "stdout", "_UID": "0", "_SYSTEMD_UNIT": "sparkd-head.service"}, "sparkd"),
        ({"_TRANSPORT": "stdout", "_UID": "64000", "_SYSTEMD_UNIT": "sparkd-head.service"}, None),
        ({"_TRANSPORT": "stdout", "_UID": "0", "_SYSTEMD_UNIT": "evil.service"}, None),
    ],
)
def test_a_user_forges_no_line_of_the_last_boot(fields: dict[str, str], source: str | None) -> None:
    expected = source and BootLine(END, source, "Journal stopped")
    assert parse_boot_line(line("Journal stopped", **fields), str) == expected


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"\xff" * 100])
def test_nonsense_in_the_journal_is_no_line(document: bytes) -> None:
    assert parse_boot_line(document, str) is None


def test_a_message_that_is_no_text_is_empty() -> None:
    assert present(parse_boot_line(b'{"_TRANSPORT": "driver", "MESSAGE": {}}', str)).text == ""


def test_what_a_line_says_is_public_without_its_secrets() -> None:
    printed = line("agent.run.failed reason=token=abcdefgh12345", _UID="0", _SYSTEMD_UNIT="sparkd-head.service")
    assert present(parse_boot_line(printed, Redactor())).text == "agent.run.failed reason=token=***"


JOURNALCTL = """#!/bin/sh
case "$*" in
*_TRANSPORT*SYSTEMD_UNIT*) exit 1;;
*--lines=300*) cat {0}/machine;;
*--lines=100*) cat {0}/own;;
esac
"""


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name, to be written."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "journalctl"


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_a_loud_engine_crowds_out_no_line_of_the_kernel_or_systemd(journalctl: Path) -> None:
    write_program(journalctl, JOURNALCTL.format(journalctl.parent))
    own = line("engine| token=abcdefgh12345", _UID="0", _SYSTEMD_UNIT="sparkd-head.service") + b"\n"
    (journalctl.parent / "own").write_bytes(own.replace(b"1790000000000000", b"1790000001000000") + own)
    stopped = line("Journal stopped", _TRANSPORT="driver") + b"\n"
    (journalctl.parent / "machine").write_bytes(stopped.replace(b"1790000000000000", b"1790000000500000"))
    lines = read_last_boot(Files())
    assert [(line.source, line.at_seconds - END) for line in lines] == [("sparkd", 1), ("journald", 0.5), ("sparkd", 0)]
    assert "abcdefgh12345" not in str(lines)


def test_a_journal_that_is_too_slow_is_not_one_that_is_not_kept(journalctl: Path) -> None:
    write_program(journalctl, "#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(OSError, match=r"found nothing in 0\.2 s"):
        read_last_boot(Files(), 0.2)
    write_program(journalctl, "#!/bin/sh\nexit 1\n")
    assert read_last_boot(Files()) == (), "no such boot"


def test_a_machine_without_journalctl_keeps_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_last_boot(Files()) == ()
