"""Units are merged as systemd itself merges them: `systemd-analyze verify` names the first program it misses."""

import re
import subprocess
from pathlib import Path

import pytest

from sparkd.base.host import Host

NAME = "sparkd-head.service"
ETC, RUN, LIB = "etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system"
_MISSED = re.compile(r"Command (\S+) is not executable")


def pre(program: str) -> str:
    return f"[Service]\nExecStartPre={program}\n"


CASES = {
    "order of names, not of folders": {f"{ETC}/{NAME}.d/20.conf": pre("/b"), f"{LIB}/{NAME}.d/10.conf": pre("/a")},
    "etc over lib": {f"{ETC}/{NAME}.d/50.conf": pre("/a"), f"{LIB}/{NAME}.d/50.conf": pre("/b")},
    "run over lib": {f"{RUN}/{NAME}.d/50.conf": pre("/a"), f"{LIB}/{NAME}.d/50.conf": pre("/b")},
    "etc over run": {f"{ETC}/{NAME}.d/50.conf": pre("/a"), f"{RUN}/{NAME}.d/50.conf": pre("/b")},
    "specific over prefix": {f"{LIB}/{NAME}.d/50.conf": pre("/a"), f"{LIB}/sparkd-.service.d/50.conf": pre("/b")},
    "etc's prefix over lib's specific": {
        f"{ETC}/sparkd-.service.d/50.conf": pre("/a"),
        f"{LIB}/{NAME}.d/50.conf": pre("/b"),
    },
    "lib's specific over etc's service.d": {
        f"{ETC}/service.d/50.conf": pre("/a"),
        f"{LIB}/{NAME}.d/50.conf": pre("/b"),
    },
    "service.d": {f"{ETC}/service.d/50.conf": pre("/a")},
    "empty masks": {f"{ETC}/{NAME}.d/50.conf": "", f"{LIB}/{NAME}.d/50.conf": pre("/b")},
    "empty takes away": {
        f"{LIB}/{NAME}.d/50.conf": pre("/a"),
        f"{LIB}/{NAME}.d/60.conf": f"{pre('')}ExecStartPre=/b\n",
    },
    "quotes": {f"{LIB}/{NAME}.d/50.conf": pre('"/a\\x62" c')},
    "two commands": {f"{LIB}/{NAME}.d/50.conf": pre("/bin/sh ; /b")},
    "continued": {f"{LIB}/{NAME}.d/50.conf": "[Service]\nExecStartPre= \\\n# no\n /a \\\n b\n"},
    "argv0": {f"{LIB}/{NAME}.d/50.conf": pre("@/a b")},
    "prefixes": {f"{LIB}/{NAME}.d/50.conf": pre("+:/a b")},
    "wrong section": {f"{LIB}/{NAME}.d/50.conf": "[Unit]\nExecStartPre=/a\n"},
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_program_that_is_missing_is_the_same(tmp_path: Path, case: str) -> None:
    files = {f"{LIB}/{NAME}": "[Service]\nExecStart=/start\n", **CASES[case]}
    for path, text in files.items():
        real = tmp_path / path
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_text(text)
    assert missed_by_us(tmp_path) == missed_by_systemd(tmp_path)
    assert "/start" in missed_by_us(tmp_path)


def missed_by_systemd(root: Path) -> set[str]:
    """Of each Exec key systemd names the first program that it misses."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", f"--root={root}", NAME], capture_output=True, text=True, timeout=60
    )
    return set(_MISSED.findall(done.stderr))


def missed_by_us(root: Path) -> set[str]:
    unit = Host(root).unit(NAME)
    assert unit is not None
    first: dict[str, str] = {}
    for entry in unit.commands:
        if not (root / entry.command.words[0].lstrip("/")).exists():
            first.setdefault(entry.key, entry.command.words[0])
    return set(first.values())
