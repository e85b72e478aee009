"""A receiver of messages on a node, and what it has received."""

import json
from dataclasses import dataclass

from .node import Node
from .processes import wait_for
from .sparkd_node import SparkdNode

PORT, RECEIVED, UNIT = 9099, "/root/messages", "receiver.service"
SERVER = f"""\
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open("{RECEIVED}", "ab") as file:
            file.write(body + b"\\n")
        self.send_response(204)
        self.end_headers()
http.server.ThreadingHTTPServer(("", {PORT}), Handler).serve_forever()
"""
SETTINGS = '[notify]\nwebhook_file = "/etc/sparkd/webhook"\n'
DROP_IN = "/etc/sparkd/conf.d/50-notify.toml"


@dataclass(frozen=True)
class Receiver:
    node: Node

    def listen(self) -> None:
        self.node.write("/root/receiver.py", SERVER)
        self.node.run("systemd-run", f"--unit={UNIT}", "python3", "/root/receiver.py")
        wait_for(lambda: self.node.listens(PORT), 20, "the receiver to listen")

    def hang_up(self) -> None:
        self.node.run("systemctl", "stop", UNIT)

    def configure(self, *members: SparkdNode) -> None:
        """From their next start on."""
        for member in members:
            address = "127.0.0.1" if member.node is self.node else self.node.fabric_address
            member.node.sh("umask 077 && cat > /etc/sparkd/webhook", input=f"http://{address}:{PORT}/\n")
            member.node.write(DROP_IN, SETTINGS)

    def forget(self, *members: SparkdNode) -> None:
        for member in members:
            member.node.run("rm", "-f", DROP_IN)

    @property
    def messages(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.node.run("cat", RECEIVED, check=False).stdout.splitlines()]

    @property
    def events(self) -> list[tuple[object, object]]:
        """Event and node of each."""
        return [(one["event"], one["node"]) for one in self.messages]
