"""Requests documents of another node, signed with the cluster key, and verifies its answers."""

from collections.abc import Callable

from msgspec import Struct

from sparkd.base.cluster import auth
from sparkd.base.lib import slow_document
from sparkd.base.lib.http_client import BODY_LIMIT_BYTES, HttpClient, HttpError, ReceivedResponse

CONNECT_SECONDS = 2.0
"""The kernel repeats a SYN after one second: with 20 % packet loss, 4 % of connections need a third one."""
ANSWER_SECONDS = 3.0
"""Time on top of the hold time: four TCP retransmissions. After that a new connection is faster."""
SLOW_ANSWER_SECONDS = slow_document.ANSWER_SECONDS + 2
"""The same for a document that the peer reads first: its own limit, and the travel time."""


class UnsignedError(Exception):
    """The answer is not signed with our key, or the server refused ours."""


class Source(Struct, frozen=True):
    """One peer. `hold_seconds`: how long it may hold an answer back."""

    rank: int
    address: str
    port: int
    own_address: str
    hold_seconds: float
    answer_seconds: float = ANSWER_SECONDS

    @property
    def patience_seconds(self) -> float:
        """Limit for one answer."""
        return self.hold_seconds + self.answer_seconds


class SignedClient:
    """Requests documents of one peer, one at a time."""

    def __init__(self, source: Source, keys: Callable[[], tuple[bytes, ...]]) -> None:
        host = f"[{source.address}]" if ":" in source.address else source.address
        self._client = HttpClient(f"http://{host}:{source.port}", local_address=source.own_address)
        self.close = self._client.close
        self._source = source
        self._keys = keys
        self._challenge = ""
        """The server's challenge for the last connection."""

    async def request(self, path: str, limit_bytes: int = BODY_LIMIT_BYTES) -> ReceivedResponse:
        """An answer verified to be this peer's, to this request. Raises HttpError or UnsignedError."""
        for key in self._keys():  # while keys change, the peer may have only the old one
            answer = await self._request_with(key, path, limit_bytes)
            if answer.status == 401 and self._take_challenge(answer):
                answer = await self._request_with(key, path, limit_bytes)
            if answer.status != 401:
                return answer
        differing = "cluster.key_file" if self._challenge else "cluster.nodes and the version of sparkd"
        raise UnsignedError(f"it refuses this node: {differing} must be the same on all nodes")

    def _take_challenge(self, refusal: ReceivedResponse) -> bool:
        """Take the challenge of a refusal. Returns whether it is a new one: then the reason was a new connection."""
        previous, self._challenge = self._challenge, refusal.headers.get(auth.CHALLENGE_HEADER.lower(), "")
        return self._challenge not in ("", previous)

    async def _request_with(self, key: bytes, path: str, limit_bytes: int) -> ReceivedResponse:
        nonce, address = auth.new_nonce(), self._source.address
        signature = auth.sign_request(key, self._challenge, nonce, address, path)
        answer = await self._client.request(
            path,
            self._source.patience_seconds,
            headers={auth.NONCE_HEADER: nonce, auth.SIGNATURE_HEADER: signature},
            connect_seconds=CONNECT_SECONDS,
            limit_bytes=limit_bytes,
        )
        expected = auth.sign_answer(key, nonce, address, path, answer.status, answer.body)
        received = answer.headers.get(auth.SIGNATURE_HEADER.lower(), "")
        if answer.status != 401 and not auth.signatures_match(expected, received):
            remedy = "cluster.key_file must be the same on all nodes"
            raise UnsignedError(f"its answer is not signed with this node's key; {remedy}")
        return answer


async def fetch(source: Source, keys: Callable[[], tuple[bytes, ...]], path: str) -> ReceivedResponse:
    """A document of the peer with its headers, by a connection of its own. Raises HttpError or UnsignedError."""
    client = SignedClient(source, keys)
    try:
        answer = await client.request(path)
    finally:
        await client.close()
    if answer.status != 200:
        raise HttpError(f"HTTP {answer.status}")
    return answer
