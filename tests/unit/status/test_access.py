"""Who gets an answer from the observers' listener where it needs a token."""

import asyncio

import pytest
from msgspec.structs import replace
from tests.unit.node_reports import ALONE

from sparkd.agent.status.http_api import PATHS, PROBES, make_handler
from sparkd.base.lib.http_connection import Request, Response
from sparkd.base.status.model import NodeReport, Phase
from sparkd.base.status.publisher import make_public

TOKEN = "0123456789abcdef" * 2


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
