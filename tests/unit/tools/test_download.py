"""A text from a URL: by https alone, bounded; and `sparkd recipe import URL`, which writes after a yes."""

import os
import pty
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.unit.clock import unstalled

from sparkd.base.lib.errors import ConfigError
from sparkd.tools.cli import main
from sparkd.tools.importers.download import LIMIT_BYTES, download_text

COMPOSE = "services: {a: {image: r/vllm:1, command: vllm serve o/a}, b: {image: r/i:1, command: vllm serve o/b}}\n"
RECIPE = "recipe_version: '2'\nmodel: o/m\ncontainer: r/i:1\nmods: [x]\ncommand: vllm serve o/m\n"


@dataclass
class Site:
    url: str = ""
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of each request."""


@pytest.fixture
def site(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = Site()
    monkeypatch.setenv("SSL_CERT_FILE", f"{certificate}.crt")
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.headers.append(dict(self.headers))
            if self.path == "/slow":
                self.send_line_by_line()
                return
            bodies = {
                "/x.yaml": RECIPE.encode(),
                "/c.yaml": COMPOSE.encode(),
                "/large": b"x" * (LIMIT_BYTES + 1),
                "/binary": b"\xff",
            }
            to = {"/moved": "/x.yaml", "/down": "http://127.0.0.1:1/x", "/loop": "/loop", "/file": "file:///etc/passwd"}
            body = bodies.get(self.path, b"")
            self.send_response(302 if self.path in to else 200 if self.path in bodies else 404)
            self.send_header("Set-Cookie", "a=b")
            if self.path in to:
                self.send_header("Location", to[self.path])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def send_line_by_line(self) -> None:
            """One header each 0.1 s, as long as somebody reads, 10 s at most."""
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            with suppress(OSError):
                for number in range(100):
                    self.wfile.write(f"X-{number}: x\r\n".encode())
                    time.sleep(0.1)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base's name
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    site.url = f"https://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield site
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_text_comes_through_redirects_without_credentials(site: Site) -> None:
    assert download_text(f"{site.url}/moved") == RECIPE
    assert len(site.headers) == 2
    assert not any(name.lower() in ("authorization", "cookie", "referer") for one in site.headers for name in one)


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/none", "HTTP 404"),
        ("/large", f"larger than {LIMIT_BYTES} bytes"),
        ("/down", "http://127.0.0.1:1/x: only https is used"),
        ("/file", "only https is used"),
        ("/loop", "redirected more than"),
        ("/binary", "can't decode"),
    ],
)
def test_anything_else_is_one_fault(site: Site, path: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        download_text(site.url + path)


def test_the_time_counts_from_the_first_byte_on(site: Site) -> None:
    begun = unstalled()
    with pytest.raises(ConfigError, match=r"/slow: took longer than 0\.5 s"):
        download_text(f"{site.url}/slow", total_seconds=0.5)
    assert unstalled() - begun < 5


def test_what_is_no_https_url_is_not_requested(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("http://127.0.0.1:1/x", "ftp://x/y", "https://", "https://[", site.url.replace("//", "//me:secret@")):
        with pytest.raises(ConfigError) as caught:
            download_text(url)
        assert "secret" not in str(caught.value)
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(ConfigError, match="CERTIFICATE_VERIFY_FAILED"):
        download_text(site.url)
    assert site.headers == []


def test_a_recipe_of_a_url_is_shown_and_written_only_after_a_yes(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["recipe", "import", f"{site.url}/x.yaml"]
    assert main.main(words) == 10, "its mod is missing"
    shown = capsys.readouterr()
    assert "# Imported from x.yaml" in shown.out
    assert "x.yaml: line 4: mods: x: it is not beside the recipe" in shown.err
    assert main.main([*words, "--write", str(tmp_path)]) == 2, "nobody is there to answer"
    for answer, there in (("\n", False), ("no\n", False), ("y\n", True)):
        ours, theirs = pty.openpty()
        os.write(ours, answer.encode())
        command = [sys.executable, "-m", "sparkd.tools.cli.main", *words, "--write", str(tmp_path)]
        done = subprocess.run(command, stdin=theirs, capture_output=True, text=True, check=False, timeout=60)
        os.close(ours)
        os.close(theirs)
        assert done.returncode == 10
        assert done.stdout.index("schema: 1") < done.stdout.index("write it to")
        assert (tmp_path / "x.yaml").exists() is there
    assert main.main([*words, "--write", str(tmp_path), "--yes", "--force"]) == 10


def test_a_url_is_read_as_a_file_is_and_alone(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["recipe", "import", f"{site.url}/c.yaml"]
    assert main.main(words) == 78, "two services"
    assert main.main([*words, "--service", "b", "--image", "r/i:2"]) == 0
    shown = capsys.readouterr().out
    assert "repo: o/b" in shown and "ref: r/i:2" in shown
    assert main.main([*words, words[-1]]) == 2, "the second would be lost"
    assert main.main(["recipe", "import", f"{site.url}/x.yaml", "--image", "r/i:2"]) == 2


def test_a_page_of_github_is_answered_with_the_command_for_its_file() -> None:
    with pytest.raises(ConfigError) as refused:
        download_text("https://github.com/org/repo/blob/main/a b.yaml")
    assert refused.value.hint == "sparkd recipe import 'https://raw.githubusercontent.com/org/repo/main/a b.yaml'"


def test_without_a_network_the_way_by_a_proxy_and_by_a_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"the network up.*Save the file") as refused:
        download_text("https://127.0.0.1:1/x.yaml?a&b")
    by_proxy = "sudo env HTTPS_PROXY=URL sparkd recipe import 'https://127.0.0.1:1/x.yaml?a&b'"
    assert refused.value.hint.endswith(f": {by_proxy}"), "sudo keeps no variable"
    assert "[Errno" not in str(refused.value)
