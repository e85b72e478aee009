"""A stand-in for dockerd: a process of that name on /run/docker.sock, whose containers are processes of this machine.

python -I -S dockerd_alike.py ENGINE: ENGINE is the program that each container runs as its init. POST /alike sets the
behaviour of later calls: {"hang": {"create": 20}, "engine": ["8000", "loading"], "user": 1000}, and {"signal": 10}
signals the inits.
A call that hangs is carried out afterwards, also when its client has gone meanwhile.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from itertools import count
from socketserver import ThreadingMixIn, UnixStreamServer
from urllib.parse import parse_qs, urlsplit

SOCKET, PID_FILE = "/run/docker.sock", "/run/docker.pid"
PR_SET_NAME = 15
IMAGE = {
    "Id": "sha256:" + "d" * 64,
    "Architecture": "amd64",
    "Os": "linux",
    "RootFS": {"Layers": ["sha256:1"]},
    "Config": {},
}
ROUTE = re.compile(r"(?:/v\d+\.\d+)?/(\w+)(?:/(.+?))?(?:/(json|start|stop|logs|wait))?")


class Container:
    def __init__(self, number: int, name: str, body: dict[str, object]) -> None:
        self.id, self.name, self.labels = f"{number:064x}", name, body.get("Labels")
        self.process: subprocess.Popen[bytes] | None = None
        self.log: list[bytes] = []
        self.changed = threading.Condition()
        self.ended = False

    def start(self, command: list[str], uid: int) -> None:
        if uid:
            command = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *command]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._note(line)
        process.wait()
        self.ended = True
        self._note(b"")

    def _note(self, line: bytes) -> None:
        with self.changed:
            self.log.append(line)
            self.changed.notify_all()

    def describe(self) -> dict[str, object]:
        process = self.process
        runs = process is not None and not self.ended
        code = 0 if process is None or not self.ended else process.returncode
        state = {"Running": runs, "Pid": process.pid if process and runs else 0}
        return {
            "Id": self.id,
            "Name": f"/{self.name}",
            "Image": IMAGE["Id"],
            "Config": {"Labels": self.labels, "Image": "engine"},
            "State": {**state, "ExitCode": code if code >= 0 else 128 - code},
            "HostConfig": {"RestartPolicy": {"Name": "no"}},
        }

    def end(self, number: int, seconds: float) -> None:
        if self.process is None:
            return
        self.process.send_signal(number)
        deadline = time.monotonic() + seconds
        while not self.ended and time.monotonic() < deadline:
            time.sleep(0.01)


class Daemon:
    """What there is, and how calls behave."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.containers: dict[str, Container] = {}
        self.hang: dict[str, float] = {}
        self.arguments = ["8000", "serving"]
        self.uid = 0
        self.numbers = count(1)
        self.calls: list[str] = []

    def control(self, wanted: dict[str, object]) -> dict[str, object]:
        if isinstance(hang := wanted.get("hang"), dict):
            self.hang.update(hang)
        if isinstance(arguments := wanted.get("engine"), list):
            self.arguments = arguments
        if isinstance(uid := wanted.get("user"), int):
            self.uid = uid
        if isinstance(number := wanted.get("signal"), int):
            for container in self.containers.values():
                if container.process is not None:
                    container.process.send_signal(number)
        return {"calls": self.calls}

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: dict[str, object]) -> object:
        """None: there is no such thing."""
        if path == "/alike":
            return self.control(body)
        matched = ROUTE.fullmatch(path)
        subject, name, action = matched.groups() if matched else ("", None, None)
        call = "remove" if method == "DELETE" else action or name or subject
        self.calls.append(call)
        time.sleep(self.hang.get(call, 0))
        if subject in ("version", "info"):
            return {"Version": "29.0.0", "ApiVersion": "1.44", "LiveRestoreEnabled": True, "Runtimes": {"nvidia": {}}}
        if subject == "images":
            return IMAGE if action else [IMAGE]
        if call == "create":
            container = Container(next(self.numbers), query["name"][0], body)
            self.containers[container.id] = container
            return {"Id": container.id}
        if call == "json" and action is None:
            return [{"Id": container_id} for container_id in list(self.containers)]
        return self._act(call, self.containers.get(name or ""))

    def _act(self, call: str, container: Container | None) -> object:
        if container is None:
            return None
        if call == "start":
            container.start([sys.executable, "-I", "-S", "-u", self.engine, *self.arguments], self.uid)
        elif call == "stop":
            container.end(signal.SIGTERM, 1)
            container.end(signal.SIGKILL, 10)
        elif call == "remove":
            container.end(signal.SIGKILL, 10)
            self.containers.pop(container.id, None)
        elif call == "json":
            return container.describe()
        return {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    daemon: Daemon

    def handle_request(self) -> None:
        url = urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        container = self.daemon.containers.get(url.path.split("/")[-2]) if url.path.endswith("/logs") else None
        if container is not None:
            self.stream(container)
            return
        answer = self.daemon.answer(self.command, url.path, parse_qs(url.query), json.loads(raw) if raw else {})
        body = json.dumps({"message": "no such thing"} if answer is None else answer).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_DELETE = handle_request  # noqa: N815 - the names that http.server calls

    def stream(self, container: Container) -> None:
        """Frames of the log, up to the container's end; where logs hang, no end."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in count():
            with container.changed:
                while number >= len(container.log):
                    container.changed.wait()
            line = container.log[number]
            if not line:
                break
            piece = f"2026-11-27T01:02:03.{number:09}Z ".encode() + line
            frame = bytes([1, 0, 0, 0]) + len(piece).to_bytes(4, "big") + piece
            self.wfile.write(b"%x\r\n%s\r\n" % (len(frame), frame))
        time.sleep(self.daemon.hang.get("logs", 0))
        self.wfile.write(b"0\r\n\r\n")

    def address_string(self) -> str:
        return "client"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone is no error."""


def main(engine: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_NAME, b"dockerd", 0, 0, 0)
    Handler.daemon = Daemon(engine)
    server = Server(SOCKET, Handler)
    with open(PID_FILE, "w") as file:
        file.write(f"{os.getpid()}\n")
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
