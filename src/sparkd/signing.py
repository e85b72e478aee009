"""Signatures of what nodes ask and answer each other: HMAC-SHA256 with the cluster key. No clock takes part.

Whoever asks makes a nonce, so an answer of earlier is worth nothing to it. The address of the node asked is signed too:
one node's answer can't be passed off as another's.
"""

from __future__ import annotations

import hmac
import os

NONCE_HEADER = "Sparkd-Nonce"
SIGNATURE_HEADER = "Sparkd-Signature"

# Each is signed as a part of its own: no request can be read as an answer, whatever it asks for.
_REQUEST = "sparkd request 1"
_ANSWER = "sparkd answer 1"


def new_nonce() -> str:
    """32 hex digits that were never used before."""
    return os.urandom(16).hex()


def sign_request(key: bytes, nonce: str, to: str, path: str) -> str:
    """`to` is the fabric address of the node asked, as the settings write it; `path` includes the query. Hex."""
    return _mac(key, _REQUEST, nonce, to, path)


def sign_answer(key: bytes, nonce: str, by: str, path: str, status: int, body: bytes) -> str:
    """`nonce` and `path` are those of the request, `by` is the fabric address of the node that answers. Hex."""
    return _mac(key, _ANSWER, nonce, by, path, str(status), body)


def matches(expected: str, found: str) -> bool:
    """Compares in constant time. `found` may be any text that came by a header."""
    return hmac.compare_digest(expected.encode(), found.encode("utf-8", "surrogatepass"))


def _mac(key: bytes, *parts: str | bytes) -> str:
    mac = hmac.new(key, digestmod="sha256")
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        # The length comes first: nothing can be shifted from one part to the next.
        mac.update(len(data).to_bytes(8, "big") + data)
    return mac.hexdigest()
