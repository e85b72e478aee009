"""A hub on loopback: its API and its files, from a table, over connections that it may cut."""

import json
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

REPO = "org/name"
COMMIT = "c" * 40


@dataclass
class Hub:
    """`files` as bytes by path. Weights are known by SHA-256, other files by a git hash, as on the real one."""

    files: dict[str, bytes]
    port: int = 0
    token: str = ""
    """Required to read; empty: none."""
    cut_at: int | None = None
    """The first answer of each file that is longer ends after so many bytes."""
    stalls: bool = False
    """It stays open there instead, and sends nothing more."""
    answers: int | None = None
    """It answers so many requests, then hangs up."""
    expired: bool = False
    """Refuses the first request for the rest of a file, as an expired address does."""
    freed: threading.Event = field(default_factory=threading.Event)
    moved_to: str = ""
    """Where its shards are, as at another host that stores them; empty: here."""
    sizes: bool = True
    """Whether its list of files has their sizes."""
    spaces_behind: int = 0
    """Bytes of white space behind each answer, which goes over the wire compressed."""
    ranges: bool = True
    """Whether it can send the rest of a file alone."""
    listing: object = None
    """Its list of files, in place of the true one."""
    etags: dict[str, str] = field(default_factory=dict)
    """ETags by path that it sends in place of the files' own."""
    announced_bytes: dict[str, int] = field(default_factory=dict)
    """Sizes by path that its list of files has in place of the files' own."""
    on_request: Callable[[str], None] = lambda _: None
    """Called with each request, before it is answered."""
    requests: list[str] = field(default_factory=list)
    """Method, path and range of each request."""
    tokens: set[str] = field(default_factory=set)
    """That came with them."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def reset(self, files: dict[str, bytes]) -> None:
        """As a new one at the same place."""
        self.freed.set()
        for name, value in vars(Hub(files, self.port)).items():
            setattr(self, name, value)

    def info(self) -> bytes:
        if self.listing is not None:
            return json.dumps(self.listing).encode()
        siblings = [
            self.described(path, self.announced_bytes.get(path, len(content))) for path, content in self.files.items()
        ]
        return json.dumps({"_id": "1", "id": REPO, "sha": COMMIT, "siblings": siblings}).encode()

    def described(self, path: str, size_bytes: int) -> dict[str, object]:
        fields: dict[str, object] = {"rfilename": path, "blobId": sha1(path.encode()).hexdigest()}
        if not self.sizes:
            return fields
        fields["size"] = size_bytes
        if path.endswith(".safetensors"):
            return {**fields, "lfs": {"sha256": self.etag(path), "size": size_bytes, "pointerSize": 135}}
        return {**fields, "blobId": self.etag(path)}

    def etag(self, path: str) -> str:
        content = self.files[path]
        return sha256(content).hexdigest() if path.endswith(".safetensors") else sha1(content).hexdigest()


def compress(body: bytes, spaces: int) -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    return (
        packer.compress(body)
        + b"".join(packer.compress(b" " * (1 << 20)) for _ in range(spaces >> 20))
        + packer.flush()
    )


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # each answer is two writes: the second would wait 40 ms

        def do_GET(self) -> None:
            request = f"{self.command} {self.path} {self.headers.get('Range', '')}".rstrip()
            hub.requests.append(request)
            hub.on_request(request)
            hub.tokens.add(self.headers.get("Authorization") or "")
            if hub.answers is not None:
                hub.answers -= 1
                if hub.answers < 0:
                    self.close_connection = True
                    return
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                self.respond(401, b"", {"X-Error-Code": "GatedRepo"})
            elif self.path.startswith(f"/api/models/{REPO}"):
                self.respond(200, hub.info(), {"Content-Type": "application/json"})
            elif self.path.startswith(start := f"/{REPO}/resolve/{COMMIT}/"):
                self.file(unquote(self.path.removeprefix(start)))
            else:
                self.respond(404, b"", {"X-Error-Code": "RepoNotFound"})

        do_HEAD = do_GET  # noqa: N815 - the names that http.server calls

        def file(self, path: str) -> None:
            content = hub.files[path]
            begin = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
            if begin and hub.expired:
                hub.expired = False
                self.respond(403, b"", {})
                return
            begin = begin if hub.ranges else 0
            headers = {"ETag": f'"{hub.etags.get(path, hub.etag(path))}"', "X-Repo-Commit": COMMIT}
            if hub.moved_to and path.endswith(".safetensors"):
                linked = {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(len(content))}
                self.respond(302, b"", {**headers, **linked, "Location": hub.moved_to + self.path})
                return
            if begin:
                headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
            self.respond(206 if begin else 200, content[begin:], headers)

        def respond(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            if hub.spaces_behind and self.command == "GET":
                body = compress(body, hub.spaces_behind)
                headers["Content-Encoding"] = "gzip"
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            if hub.cut_at is not None and len(body) > hub.cut_at and status == 200:
                self.wfile.write(body[: hub.cut_at])
                self.wfile.flush()
                if hub.stalls:
                    hub.freed.wait(60)
                self.close_connection = True
            else:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base's name
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        hub.freed.set()
        server.shutdown()
        thread.join()
        server.server_close()
