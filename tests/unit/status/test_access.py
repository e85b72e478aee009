"""Who gets an answer from the observers' listener where it needs a token."""

import asyncio
import os
from base64 import b64encode
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.node_reports import ALONE
from tests.unit.nodes import network, until

from sparkd.agent.status.http_api import PATHS, PROBES, make_handler, start_status_server
from sparkd.agent.status.page_history import PageHistory
from sparkd.agent.status.token_file import TokenFile
from sparkd.base.config.settings import Observe
from sparkd.base.host.files import Files
from sparkd.base.lib.http_connection import Request, Response
from sparkd.base.lib.log import events
from sparkd.base.lib.redaction import Redaction
from sparkd.base.status.model import NodeReport, Phase
from sparkd.base.status.publisher import make_public

PATH = "/etc/sparkd/observe.token"
TOKEN, NEW = "0123456789abcdef" * 2, "fedcba9876543210:"
OWNER = os.geteuid()  # the tests' own files stand for root's


def basic(userinfo: str) -> str:
    return f"Basic {b64encode(userinfo.encode()).decode()}"


class Token(TokenFile):
    """The token of a file, which each request reads, and what is reported of it."""

    def __init__(self, tree: Tree, owner_uid: int = OWNER, path: str = PATH) -> None:
        self.troubles, self.hints = list[str](), list[str]()
        super().__init__(Files(str(tree.root), owner_uid), path, self._note, fresh_seconds=0)

    def _note(self, trouble: str, hint: str) -> None:
        self.troubles.append(trouble)
        self.hints.append(hint)

    def let_in(self, authorization: str) -> bool:
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
    assert Token(tree).let_in(authorization) is admitted


def test_a_token_may_hold_colons(tree: Tree) -> None:
    write(tree, NEW)
    assert Token(tree).let_in(basic(f"a:{NEW}"))


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
        assert not token.let_in(sent)
    (trouble,), (hint,) = token.troubles, token.hints
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
    assert not Token(tree, OWNER + 1).let_in(f"Bearer {TOKEN}")
    tree.link("/etc/sparkd/link", PATH)
    assert not Token(tree, path="/etc/sparkd/link").let_in(f"Bearer {TOKEN}")


def test_a_new_token_in_the_file_holds_from_the_next_request(tree: Tree) -> None:
    token = Token(tree)
    assert not token.let_in(f"Bearer {TOKEN}")
    path = write(tree, TOKEN)
    assert token.let_in(f"Bearer {TOKEN}")
    tree.file("/etc/sparkd/new", NEW, 0o600).replace(path)
    assert token.let_in(f"Bearer {NEW}")
    assert not token.let_in(f"Bearer {TOKEN}")
    path.unlink()
    assert not token.let_in(f"Bearer {NEW}")
    assert len(token.troubles) == 2


async def has_token(authorization: str) -> bool:
    return authorization == f"Bearer {TOKEN}"


def respond(
    path: str, authorization: str | None, host: str = "spark1.lan:29511", report: NodeReport = ALONE
) -> Response:
    headers = {"host": host} | ({} if authorization is None else {"authorization": authorization})
    handle = make_handler(lambda: make_public(report), lambda: 0.1, has_token)
    return asyncio.run(handle(Request("127.0.0.1", path, headers)))


@pytest.mark.parametrize("authorization", [None, "", f"Bearer {TOKEN[1:]}"])
@pytest.mark.parametrize("path", ["/", "/report?x=1", "/metrics", "/nothing", "/livez/", "//livez"])
def test_without_the_token_nothing_is_known_from_any_address_not_even_what_exists(
    path: str, authorization: str | None
) -> None:
    answer = respond(path, authorization)
    assert answer.status == 401
    assert [value for name, value in answer.headers if name == "WWW-Authenticate"] == [
        'Basic realm="sparkd", charset="UTF-8"'
    ]
    assert ALONE.node.encode() not in answer.body


@pytest.mark.parametrize("path", PROBES)
def test_load_balancers_need_no_token_and_keep_no_connection(path: str) -> None:
    stranger = respond(path, None)
    assert stranger.status == 200
    assert ("Connection", "close") in stranger.headers
    assert len(stranger.body) < 20
    assert ("Connection", "close") not in respond(path, f"Bearer {TOKEN}").headers


def test_what_is_awaited_needs_the_token() -> None:
    blocked = replace(ALONE, phase=Phase.BLOCKED, message="what is awaited")
    assert respond("/readyz", None, report=blocked).body == b"blocked\n"
    assert respond("/readyz", f"Bearer {TOKEN}", report=blocked).body == b"blocked: what is awaited\n"


@pytest.mark.parametrize("path", PATHS)
def test_a_client_with_the_token_may_use_any_name_of_the_node(path: str) -> None:
    assert respond(path, f"Bearer {TOKEN}").status == 200
