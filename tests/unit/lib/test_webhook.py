"""A message to a URL that is itself a secret."""

import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.http_receivers import Receiver, receiver
from tests.unit.wire import reserved_port

from sparkd.base.lib.errors import LaunchError
from sparkd.base.lib.webhook import RefusedError, check_url, post


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def near() -> Iterator[Receiver]:
    with receiver() as receiving:
        yield receiving


def test_a_message_arrives_with_its_headers(near: Receiver) -> None:
    post(near.url, b"text", {"Title": "sparkd"})
    assert near.bodies == [b"text"]
    assert near.headers[0]["Title"] == near.headers[0]["User-Agent"] == "sparkd"


def test_tls_is_verified(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver(certificate) as receiving:
        with pytest.raises(LaunchError, match="certificate verify failed: self-signed"):
            post(receiving.url, b"text", {})
        assert receiving.bodies == []
        monkeypatch.setenv("SSL_CERT_FILE", f"{certificate}.crt")
        post(receiving.url, b"text", {})
        assert receiving.bodies == [b"text"]


@pytest.mark.parametrize(
    ("status", "kind", "reason"),
    [
        (500, LaunchError, "HTTP 500"),
        (429, LaunchError, "HTTP 429"),
        (404, LaunchError, "HTTP 404"),
        (400, RefusedError, "HTTP 400"),
        (302, LaunchError, "HTTP 302: redirects are not followed"),
    ],
)
def test_what_is_no_success_is_an_error(near: Receiver, status: int, kind: type[LaunchError], reason: str) -> None:
    near.status = status
    with pytest.raises(LaunchError) as caught:
        post(near.url, b"text", {})
    assert type(caught.value) is kind
    assert caught.value.reason == reason
    assert len(near.bodies) == 1


def test_the_deadline_covers_an_answer_that_drips(near: Receiver) -> None:
    near.slow, began = True, time.monotonic()
    with pytest.raises(LaunchError, match=r"no answer within 0\.5 s"):
        post(near.url, b"text", {}, 0.5)
    assert time.monotonic() - began < 3


def test_neither_an_error_nor_the_log_has_the_url(near: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    errors = []
    for url in (
        near.url,
        near.url.replace("127.0.0.1", "no-such-host.invalid"),
        "http://127.0.0.1:1/topic-that-is-secret",
    ):
        near.status = 404
        with pytest.raises(LaunchError) as caught:
            post(url, b"text", {})
        errors.append(str(caught.value))
    assert not any("secret" in text or "auth" in text for text in (*errors, caplog.text))


def test_a_proxy_comes_from_the_environment_alone(near: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as proxy:
        proxy.bind(("127.0.0.1", 0))
        proxy.listen()
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        with pytest.raises(LaunchError):
            post(near.url, b"text", {}, 0.5)
        connection, _ = proxy.accept()
        connection.close()
    assert near.bodies == []


@pytest.mark.parametrize(
    "proxy", ["socks5://user:pass-word@127.0.0.1:1", "ftp://user:pass-word@127.0.0.1:1", "http://["]
)
def test_a_proxy_that_cannot_be_used_is_a_reason(near: Receiver, monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(LaunchError) as caught:
        post(near.url, b"text", {})
    assert not any(secret in str(caught.value) for secret in ("secret", "pass-word"))


def test_nobody_listens() -> None:
    with reserved_port() as number, pytest.raises(LaunchError, match="Connection refused"):
        post(f"http://127.0.0.1:{number}/", b"text", {})


@pytest.mark.parametrize(
    "url",
    ["https://hooks.example/T/B/x", "https://u:p@ntfy.example/topic", "http://127.0.0.1:9/x", "http://[::1]/x",
     "http://localhost/x", "http://192.168.1.5:8080/topic", "http://10.0.0.9/t"],
)  # fmt: skip
def test_a_url_is_https_or_near(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    "url",
    ["", "hooks.example/x", "ftp://h/x", "file:///etc/passwd", "https://", "https://h/a b", "https://h/a\nb", "https://hé/",
     "https://h:99999/", "https://h:-5/", "https://xn--a/", "https://[::1/", "http://hooks.example/secret", "http://8.8.8.8/secret"],
)  # fmt: skip
def test_any_other_url_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(ValueError, match="https") as caught:
        check_url(url)
    assert "secret" not in str(caught.value)
