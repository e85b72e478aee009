"""Joining a cluster, on the new node: it gets the cluster's key by the head's code, and reports that it is on disk."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from sparkd import __version__
from sparkd.agent.cluster import inventory
from sparkd.agent.cluster.inventory import Inventory
from sparkd.base.cluster.auth import MAX_KEYS
from sparkd.base.config.settings import MAX_NODES
from sparkd.base.host.files import Files
from sparkd.base.host.network import canonical, subnet_of
from sparkd.base.lib import prepared
from sparkd.base.lib.errors import BlockedError, UsageError
from sparkd.base.lib.http_client import ConnectRefused, HttpClient, HttpError
from sparkd.base.lib.text import sanitize
from sparkd.tools.setup.join import AGAIN, MOST_INVENTORY_BYTES, PORT, Hello, Offer, Welcome
from sparkd.tools.setup.join_code import Ephemeral, JoinCode


class Joined(NamedTuple):
    """The head's answer to a node that may join."""

    keys: tuple[bytes, ...]
    """The cluster's keys, the one that signs first."""
    head_address: str
    own_address: str
    nodes: tuple[str, ...]
    """The nodes so far, the head first, with this one."""
    head_keys: tuple[bytes, ...]
    """Public halves of the head's own key."""


def fetch_keys(code_text: str, *, port: int = PORT) -> Joined:
    """Get the keys from the head by a code. Raises UsageError for a wrong code, BlockedError without a valid answer."""
    code = JoinCode.parse(code_text)
    own_address = _find_own_address(code.head, port)
    if own_address == code.head:
        raise UsageError(f"{own_address} is this node itself: the code is for the others")
    with _explain_errors(code.head, port):
        welcome = asyncio.run(_exchange(code, own_address, port, Hello(socket.gethostname(), __version__)))
        keys, head_keys = (tuple(map(bytes.fromhex, texts)) for texts in (welcome.keys, welcome.head_keys))
        nodes = tuple(map(canonical, welcome.nodes))
        for received in (keys, head_keys):
            if not 1 <= len(received) <= MAX_KEYS or any(len(key) != 32 for key in received):
                raise ValueError("no keys")
        if len(nodes) > MAX_NODES or nodes[:1] != (code.head,) or own_address not in nodes:
            raise ValueError("no nodes")
        return Joined(keys, code.head, own_address, nodes, head_keys)


def confirm(code_text: str, own_inventory: Inventory, *, port: int = PORT) -> None:
    """Report to the head that the keys are on disk, with the inventory of this node. Raises as `fetch_keys`."""
    code, body = JoinCode.parse(code_text), inventory.CODEC.encode(own_inventory).encode()
    hello = Hello(socket.gethostname(), __version__, True, body if len(body) <= MOST_INVENTORY_BYTES else b"")
    with _explain_errors(code.head, port):
        asyncio.run(_exchange(code, _find_own_address(code.head, port), port, hello))


@contextmanager
def _explain_errors(head: str, port: int) -> Iterator[None]:
    """Raises BlockedError with a remedy for HttpError, and for ValueError."""
    try:
        yield
    except ConnectRefused:
        reason = f"nothing waits at {head} port {port}: the code has expired, or all its nodes have joined"
        raise BlockedError(reason, AGAIN) from None
    except HttpError as error:
        hint = "is the fabric connected, `sparkd init` waiting on the head, and no firewall there? sudo ufw status"
        if ":" not in head and not subnet_of(Files(), head):
            hint = "this node has no address there: give it one, as in the head's /etc/netplan, and: sudo netplan apply"
        raise BlockedError(f"{head} port {port} does not answer: {error}", hint) from None
    except ValueError:
        raise BlockedError(f"the answer of {head} port {port} is not from a sparkd with this code", AGAIN) from None


async def _exchange(code: JoinCode, own_address: str, port: int, hello: Hello) -> Welcome:
    """Send `hello`, and return the head's answer.

    Raises HttpError, ValueError for an answer that no head gives, UsageError and BlockedError for a refusal.
    """
    ephemeral = Ephemeral()
    host = f"[{code.head}]" if ":" in code.head else code.head
    client = HttpClient(f"http://{host}:{port}", local_address=own_address)
    try:
        offer = msgspec.json.decode(await _get(client, "/join", code.head), type=prepared(Offer))
        to_head, from_head = ephemeral.seals(bytes.fromhex(offer.key), code, own_address, offer.challenge, head=False)
        sealed = to_head.close(hello)
        answer = await _get(client, f"/join?key={ephemeral.public.hex()}&sealed={sealed.hex()}", code.head)
    finally:
        await client.close()
    welcome = from_head.open(answer, Welcome)
    if welcome.refused:
        raise BlockedError(f"the head refuses: {sanitize(welcome.refused)}", AGAIN)
    return welcome


async def _get(client: HttpClient, path: str, head: str) -> bytes:
    """The answer's body. Raises HttpError, UsageError for a wrong code, BlockedError for one that is over."""
    answer = await client.request(path, 10.0, connect_seconds=5.0)
    if answer.status == 401:
        raise UsageError(f"{head} refuses the code: it is not the one that is valid there now", AGAIN)
    if answer.status == 410:
        raise BlockedError(f"{head}: the code is not valid any more", AGAIN)
    if answer.status != 200:
        raise HttpError(f"HTTP {answer.status}")
    return answer.body


def _find_own_address(head: str, port: int) -> str:
    """This node's address on the route to the head; nothing is sent. Raises BlockedError without a route."""
    with socket.socket(socket.AF_INET6 if ":" in head else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((head, port))
        except OSError as error:
            raise BlockedError(f"{head}: {error.strerror}", "is the fabric connected? ip -brief address") from None
        return canonical(probe.getsockname()[0])
