"""What people are shown to paste works for any user: a command that needs root begins with sudo."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkd.base.lib import REINSTALL

SOURCE = Path(__file__).parents[2] / "src/sparkd"
NEEDS_ROOT = re.compile(
    r"""(?<![\w./'`-])(?<!sudo\ )(?<!by\ )(?<!as\ )(?<!which\ )(?<!no\ )(?<!of\ )(?<!"\$@"\ )(?<!\#\ )(?<!=URL\ )(?:
        systemctl\ (?:start|stop|(?:try-)?restart|(?:daemon-)?reload|enable|disable|mask|edit|kill|--user)\b
        | systemctl\ reboot$
        | docker\ (?:pull|stop|rm|rmi|tag|update|rename|run|ps|image|images|system|inspect|logs|unpause)\b
        | (?:modprobe|nvidia-ctk|fwupdmgr)\ \w | loginctl\ enable | sysctl\ -w | swapoff\ - | ip\ link\ set | mount\ -o
        | chown\ (?!the) | chmod\ (?!600\ \{\},\ of\ root\ or\ yourself)
        | apt\ (?:install|remove|update|full-upgrade)\b | (?<=[ ])dmesg\b
        | kill\ \{\} | ss\ -\w*p | fuser\ -v | >\ /proc/
        | (?:rm|mkdir|cat|less)\ (?:-\S+\ )?/(?:run|var|etc|proc/\{\})/
        | update-grub\b | poweroff\b | smartctl\ - | umask\ \d
        | sparkd\ (?:diff|history|preflight(?!\ --))\b
        | sparkd\ (?:warm|model\ pull|rollback|sweep|drill|logs|capture|tune\ \w|units\ (?:install|remove))\b
        | sparkd\ (?:notify\b | deinit\b | use\b | init\b(?!\ --plan))
    )""",
    re.VERBOSE,
)
ITS_OWN = frozenset(("agent/actions/__init__.py: systemctl reboot", "tools/node/fixing.py: sparkd preflight"))
"""What sparkd does itself, and the name of a command that runs."""


def texts(path: Path) -> Iterator[str]:
    """Of a module, without docstrings; a value of an f-string is {}."""
    tree = ast.parse(path.read_text())
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    skipped |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.value


def values(table: object) -> Iterator[str]:
    if isinstance(table, str):
        yield table
    elif isinstance(table, dict | list):
        for value in table.values() if isinstance(table, dict) else table:
            yield from values(value)


def without_sudo(lines: Iterator[str], path: Path) -> list[str]:
    place = path.relative_to(SOURCE)
    return [line for text in lines if NEEDS_ROOT.search(text) and (line := f"{place}: {text}") not in ITS_OWN]


def test_commands_in_messages_have_their_sudo() -> None:
    modules = [line for path in sorted(SOURCE.rglob("*.py")) for line in without_sudo(texts(path), path)]
    tables = {path: values(tomllib.loads(path.read_text())) for path in (SOURCE / "data").glob("*.toml")}
    manual = SOURCE / "data/sparkd-checks.7.md"
    others = [line for path, lines in tables.items() for line in without_sudo(lines, path)]
    assert modules + others + without_sudo(iter(manual.read_text().splitlines()), manual) == []


def test_what_installs_sparkd_again_works_without_a_repository() -> None:
    """There apt only says that it can't, and ends with 0."""
    modules = [text for path in SOURCE.rglob("*.py") for text in texts(path) if "--reinstall sparkd" in text]
    assert modules == [REINSTALL]
    assert "--reinstall ./sparkd_*.deb" in REINSTALL


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("look at: systemctl status docker", False),
        ("docker is away: systemctl start docker", True),
        ("sudo systemctl start docker, and docker pull {}", True),
        ("somebody stopped it, as by docker stop", False),
        ("run `sparkd init` there", False),
    ],
)
def test_prose_is_no_command(text: str, *, needs: bool) -> None:
    assert bool(NEEDS_ROOT.search(text)) is needs
