"""`make audit`: every pin and every crate is looked up, and what can't be looked up is no good news."""

import json
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import audit

LOCK = "h11==0.1 --hash=sha256:00\nidna==2.0 --hash=sha256:00\n"
BAD = "pkg:cargo/openssl@0.9"


class Database(HTTPServer):
    """Knows one advisory."""

    answer = b""
    requested: list[str]


class _Handler(BaseHTTPRequestHandler):
    server: Database

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        requested = [one["package"]["purl"] for one in body["queries"]]
        self.server.requested += requested
        results = [{"vulns": [{"id": "RUSTSEC-1"}]} if one == BAD else {} for one in requested]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.answer or json.dumps({"results": results}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def database() -> Iterator[Database]:
    with Database(("127.0.0.1", 0), _Handler) as server:
        server.requested = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def address(server: Database) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def test_pins_and_crates_are_looked_up_and_advisories_named(tmp_path: Path, database: Database) -> None:
    with zipfile.ZipFile(tmp_path / "x-1-py3-none-any.whl", "w") as wheel:
        components = [{"purl": f"{BAD}?source=x"}, {"purl": "pkg:generic/other@1"}, {"name": "bare"}]
        wheel.writestr("x-1.dist-info/sboms/x.json", json.dumps({"components": components}))
    packages = audit.find_packages(LOCK, tmp_path)
    assert packages == [BAD, "pkg:pypi/h11@0.1", "pkg:pypi/idna@2.0"]
    assert audit.find_advisories(packages, address(database)) == {BAD: ["RUSTSEC-1"]}
    assert database.requested == packages


def test_the_lock_of_this_checkout_is_looked_up_whole(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(["--osv", address(database)]) == 0
    assert {"pkg:pypi/cryptography", "pkg:pypi/httpx"} <= {one.partition("@")[0] for one in database.requested}
    assert capsys.readouterr().out == f"{len(database.requested)} packages, 0 with advisories\n"


@pytest.mark.parametrize("answer", [b"", b"<html>", b'{"results": []}', b"[]", b'{"results": null}'])
def test_a_database_that_gives_no_answer_is_no_good_news(database: Database, answer: bytes) -> None:
    database.answer = answer
    assert audit.main(["--osv", address(database) if answer else "http://127.0.0.1:1"]) == 2
