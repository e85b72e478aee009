"""Files of state: read as input that is not trusted."""

import json
import os
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from tests.tree import Tree
from tests.unit.limits import files_left

from sparkd.agent.actions.files import compare_and_swap
from sparkd.base.config import Engine
from sparkd.base.host import Host
from sparkd.base.lib.errors import UsageError
from sparkd.base.state.file import LIMIT_BYTES, FolderError, StateFile, ignore_report


class Document(Struct, frozen=True):
    names: tuple[str, ...]
    engine: Engine = Engine()


FILE = StateFile(Document, "document.json")
GOOD = Document(("a", "\udcff"), Engine(env={"A": "hunter2"}))


def read(tree: Tree) -> tuple[Document | None, list[str]]:
    reports: list[str] = []
    return FILE.read(Host(tree.root).files, reports.append), reports


def test_unknown_fields_are_ignored(tree: Tree) -> None:
    tree.file(FILE.path, json.dumps({**json.loads(FILE.encode(GOOD)), "new": 1}))
    assert read(tree) == (GOOD, [])


def test_no_file_is_no_error(tree: Tree) -> None:
    assert read(tree) == (None, [])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"), ("[]", "no object of schema 1"),
        ('{"schema": 2, "names": []}', "no object of schema 1"),
        ('{"schema": 1}', "names"), ('{"schema": 1, "names": ["a", 1]}', "Expected `str`, got `int`"),
        ("[" * 100_000, "nested too deep"), (FILE.encode(GOOD)[:-5], "delimiter"),
        (" " * (LIMIT_BYTES + 1), "larger than"),
        (FILE.encode(GOOD).replace('"env"', '"nev"'), "does not accept it as Engine"),
    ],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_bad_content_is_reported_without_its_values_and_counts_as_absent(tree: Tree, text: str, reason: str) -> None:
    tree.file(FILE.path, text)
    content, (line,) = read(tree)
    assert content is None
    assert line.startswith("/var/lib/sparkd/document.json can't be read: ")
    assert reason in line
    assert "hunter2" not in line


@given(st.binary() | st.text().map(str.encode))
def test_random_content_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError):
        FILE.decode(content)


def test_neither_a_link_nor_a_folder_nor_a_pipe_is_read(tree: Tree) -> None:
    path = tree.root / FILE.path.lstrip("/")
    tree.file("/elsewhere", FILE.encode(GOOD))
    tree.link(FILE.path, "/elsewhere")
    assert read(tree)[0] is None
    path.unlink()
    os.mkfifo(path)
    assert read(tree)[0] is None
    path.unlink()
    path.mkdir()
    assert read(tree)[0] is None


def test_a_folder_in_place_of_a_file_is_left_alone_and_named_with_what_moves_it_away(tree: Tree) -> None:
    path = tree.root / FILE.path.lstrip("/")
    path.mkdir(parents=True)
    with pytest.raises(FolderError, match=r"^/var/lib/sparkd/document\.json is a folder") as raised:
        FILE.load(Host(tree.root).files, ignore_report)
    command = shlex.split(raised.value.hint.replace(FILE.path, str(path)).removeprefix("sudo "))
    subprocess.run(command, check=True)
    assert read(tree) == (None, [])


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_user_needs_root(tree: Tree) -> None:
    tree.file(FILE.path, FILE.encode(GOOD), 0)
    os.seteuid(65534)
    try:
        with pytest.raises(UsageError, match="by root alone"):
            read(tree)
    finally:
        os.seteuid(0)


def test_what_cannot_be_read_now_is_not_written_over(tree: Tree) -> None:
    path = tree.file(FILE.path, FILE.encode(GOOD))
    files = Host(tree.root).files
    with files_left(2), pytest.raises(OSError, match=r"document\.json can't be read: Too many open files"):
        compare_and_swap(files, FILE, None, Document(()))  # its lock, and the file's name, but not its content
    assert read(tree) == (GOOD, [])
    assert {*path.parent.iterdir()} == {path, path.with_name(".document.json.lock")}
