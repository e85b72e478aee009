"""The observers' listener beside a local user who takes all of it that he can get."""

import http.client
from contextlib import closing

from tests.integration.stranger import Stranger
from tests.unit.node_reports import ALONE
from tests.unit.nodes import network
from tests.unit.wire import reserved_port

from sparkd.agent.status.http_api import start_status_server
from sparkd.agent.status.page_history import PageHistory
from sparkd.base.config.settings import Observe
from sparkd.base.host.files import Files
from sparkd.base.lib.log import ProcessLog
from sparkd.base.lib.redaction import Redaction
from sparkd.base.status.publisher import make_public

GREEDY = """\
import socket, sys, time
port = int(sys.argv[1])
request = b"GET /livez HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"
held = []
for number in range(200):  # each ends its own half of the connection, and can still read the answer
    with socket.create_connection(("127.0.0.1", port), source_address=(f"127.0.1.{number + 1}", 0)) as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        answer = client.recv(4096)
        status = answer.split()[1].decode() if answer else ""
        print("half-closed", status, flush=True)
        if status == "429":
            break
for number in range(100):  # of as many addresses: all of 127/8 is a user's
    client = socket.create_connection(("127.0.0.1", port), source_address=(f"127.0.0.{number % 20 + 1}", 0))
    held.append(client)
    for _ in range(10):
        try:
            client.sendall(request)
            answer = client.recv(4096)
        except OSError:
            break
        print(answer.split()[1].decode() if answer else "closed", flush=True)
        if not answer:
            break
print("holds", flush=True)
time.sleep(20)
"""


def test_a_user_who_takes_all_that_he_can_get_keeps_no_other_from_an_answer() -> None:
    events = ProcessLog(lambda *_: None).events(Redaction())
    with reserved_port() as port, network() as loop:
        start_status_server(
            Observe(listen=f"127.0.0.1:{port}"),
            Files(),
            published=lambda: make_public(ALONE),
            keepalive_age=lambda: 0.0,
            spawn=loop.spawn,
            events=events,
            history=PageHistory(),
        )
        with Stranger(GREEDY, str(port)) as stranger:
            stranger.wait_for("half-closed 429")
            stranger.wait_for("429")  # more than his share of requests
            stranger.wait_for("closed")  # more than his share of connections
            for _ in range(20):
                assert read_status(port) == 200
            stranger.wait_for("holds")
            assert read_status(port) == 200


def read_status(port: int) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
