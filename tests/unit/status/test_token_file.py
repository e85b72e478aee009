"""The token of observe.token_file: who has it, and what a bad file means."""

import asyncio
import os
from base64 import b64encode
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.node_reports import ALONE
from tests.unit.nodes import network, until

from sparkd.agent.status.http_api import start_status_server
from sparkd.agent.status.page_history import PageHistory
from sparkd.agent.status.token_file import TokenFile
from sparkd.base.config.settings import Observe
from sparkd.base.host.files import Files
from sparkd.base.lib.log import events
from sparkd.base.lib.redaction import Redaction
from sparkd.base.status.publisher import make_public

PATH = "/etc/sparkd/observe.token"
TOKEN, WITH_COLON = "0123456789abcdef" * 2, "fedcba9876543210:"
OWNER = os.geteuid()  # the tests' own files stand for root's


def basic(userinfo: str) -> str:
    return f"Basic {b64encode(userinfo.encode()).decode()}"


class Token(TokenFile):
    """The token of a file, which each request reads, and what is reported of it."""

    def __init__(self, tree: Tree, owner_uid: int = OWNER, path: str = PATH) -> None:
        self.troubles = list[tuple[str, str]]()
        files = Files(str(tree.root), owner_uid)
        super().__init__(files, path, lambda *trouble: self.troubles.append(trouble), fresh_seconds=0)

    def admits_now(self, authorization: str) -> bool:
        return asyncio.run(self.admits(authorization))


def write(tree: Tree, text: str, mode: int = 0o600) -> Path:
    return tree.file(PATH, text, mode)


@pytest.mark.parametrize(
    ("authorization", "admitted"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer  {TOKEN} ", True),
        (basic(f"anybody:{TOKEN}"), True),
        (basic(f":{TOKEN}"), True),
        (basic(TOKEN), False),
        (basic(f"{TOKEN}:"), False),
        (f"Bearer {TOKEN[:-1]}", False),
        (f"Bearer {TOKEN}0", False),
        (f"Bearer {TOKEN.upper()}", False),
        (f"Digest {TOKEN}", False),
        (TOKEN, False),
        ("Basic \xff", False),
        ("Basic ====", False),
        ("Bearer \udcff", False),
        ("Bearer", False),
        ("Bearer ", False),
        ("", False),
    ],
)
def test_the_token_is_sent_as_bearer_or_as_any_users_password(
    tree: Tree, authorization: str, *, admitted: bool
) -> None:
    write(tree, f"{TOKEN}\n")
    assert Token(tree).admits_now(authorization) is admitted


def test_a_token_may_hold_colons(tree: Tree) -> None:
    write(tree, WITH_COLON)
    assert Token(tree).admits_now(basic(f"a:{WITH_COLON}"))


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [
        (None, 0o600, "does not exist"),
        (TOKEN, 0o640, "has mode 0640, needed is 0600"),
        (TOKEN, 0o604, "has mode 0604, needed is 0600"),
        ("", 0o600, "has no token"),
        ("\n", 0o600, "has no token"),
        (TOKEN[:15], 0o600, "has no token"),
        (f"{TOKEN}\n{TOKEN}", 0o600, "has no token"),
        (f"{TOKEN} é", 0o600, "has no token"),
        ("a" * 5000, 0o600, "larger than 4096 bytes"),
    ],
)
def test_a_bad_file_admits_nobody_and_is_reported_once(tree: Tree, text: str | None, mode: int, reason: str) -> None:
    if text is not None:
        write(tree, text, mode)
    token = Token(tree)
    for sent in ("", "Bearer ", basic("a:"), f"Bearer {TOKEN}", f"Bearer {text}"):
        assert not token.admits_now(sent)
    ((trouble, hint),) = token.troubles
    assert reason in trouble
    assert PATH in hint
    assert TOKEN[:15] not in trouble + hint


def test_a_bad_file_is_reported_before_the_first_request(tree: Tree, port: int) -> None:
    observe, files, lines = Observe(listen=f"127.0.0.1:{port}", token_file=PATH), Files(str(tree.root)), list[str]()
    journal = events(lambda _, line: lines.append(line), Redaction())
    with network() as loop:
        start_status_server(observe, files, lambda: make_public(ALONE), lambda: 0.0, loop.spawn, journal, PageHistory())
        until(lambda: lines)
    assert lines[0].startswith("status.token.unusable ")


def test_a_file_of_another_user_or_a_symlink_admits_nobody(tree: Tree) -> None:
    write(tree, TOKEN)
    assert not Token(tree, OWNER + 1).admits_now(f"Bearer {TOKEN}")
    tree.link("/etc/sparkd/link", PATH)
    assert not Token(tree, path="/etc/sparkd/link").admits_now(f"Bearer {TOKEN}")


def test_a_new_token_in_the_file_holds_from_the_next_request(tree: Tree) -> None:
    token = Token(tree)
    assert not token.admits_now(f"Bearer {TOKEN}")
    path = write(tree, TOKEN)
    assert token.admits_now(f"Bearer {TOKEN}")
    tree.file("/etc/sparkd/new", WITH_COLON, 0o600).replace(path)
    assert token.admits_now(f"Bearer {WITH_COLON}")
    assert not token.admits_now(f"Bearer {TOKEN}")
    path.unlink()
    assert not token.admits_now(f"Bearer {WITH_COLON}")
    assert len(token.troubles) == 2, "once before the file was there, and once after"
