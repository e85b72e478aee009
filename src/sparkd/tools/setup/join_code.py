"""The code by which a node gets the cluster's key, and the encryption of the messages in which it does.

The code has the head's fabric address, 90 secret bits and a checksum. Messages are encrypted by ChaCha20-Poly1305. Its
keys are derived by HKDF-SHA256 from an X25519 exchange, with the code's secret as salt; both addresses, both public
keys and the connection's challenge go into the derivation. So each side proves that it has the code; a third party
learns nothing of it except by guessing all 90 bits; and recorded messages can't be read later, even with the code.
"""

from __future__ import annotations

import re
import secrets
from ipaddress import ip_address
from typing import NamedTuple, TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Struct

from sparkd.base.host.network import canonical
from sparkd.base.lib import prepared
from sparkd.base.lib.errors import UsageError

_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's base 32."""
_SECRET_BITS, _CHECK_BITS = 90, 10  # of _COUNT letters, 5 bits each
_COUNT, _GROUP = 20, 5
"""Letters of a code, and of each group of it."""
_PRIME = 1021
"""Largest prime below 32 * 32. The remainder detects each wrong letter or digit, and each swap of two neighbours."""
_NONCE_BYTES, _KEY_BYTES = 12, 32

T = TypeVar("T")


class JoinCode(NamedTuple):
    """A code, which a person reads on the head and types on the node that joins."""

    head: str
    """The head's fabric address."""
    secret: int

    @classmethod
    def new(cls, head: str) -> JoinCode:
        return cls(canonical(head), secrets.randbits(_SECRET_BITS))

    @classmethod
    def parse(cls, text: str) -> JoinCode:
        """Parse what a person typed, in any case and with any blanks. Raises UsageError, which does not quote it."""
        address, _, typed = text.strip().partition("-") if len(text) <= 200 else ("", "", "")
        letters = re.sub(r"[\s-]", "", typed).upper().translate(str.maketrans("OIL", "011"))
        try:
            head, digits = canonical(address), [_LETTERS.index(letter) for letter in letters]
            if len(digits) != _COUNT:
                raise ValueError
        except ValueError:
            hint = "such as 10.0.0.1-XXXXX-XXXXX-XXXXX-XXXXX, from `sparkd init` on the head"
            raise UsageError("this is no join code", hint) from None
        number = sum(digit << (5 * place) for place, digit in enumerate(reversed(digits)))
        code = cls(head, number >> _CHECK_BITS)
        if number & ((1 << _CHECK_BITS) - 1) != code._checksum():
            raise UsageError("the join code has a typo: its checksum does not match", "compare it with the head's")
        return code

    def __str__(self) -> str:
        number = (self.secret << _CHECK_BITS) | self._checksum()
        letters = "".join(_LETTERS[(number >> (5 * place)) & 31] for place in reversed(range(_COUNT)))
        return "-".join([self.head, *(letters[at : at + _GROUP] for at in range(0, _COUNT, _GROUP))])

    def _checksum(self) -> int:
        return (self.secret + int(ip_address(self.head))) % _PRIME


class Ephemeral:
    """One side's X25519 key, which is never stored."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()

    def seals(self, theirs: bytes, code: JoinCode, node: str, challenge: str, *, head: bool) -> tuple[Seal, Seal]:
        """The seals of the node's messages and of the head's, in this order.

        `theirs`: the other side's public key; `node`: the node's address; `head`: whether this side is the head. Raises
        ValueError where `theirs` is no public key.
        """
        shared = self._private.exchange(X25519PublicKey.from_public_bytes(theirs))
        public_keys = (self.public, theirs) if head else (theirs, self.public)
        inputs = (b"sparkd join 1", code.head.encode(), node.encode(), *public_keys, challenge.encode())
        info = b"".join(len(text).to_bytes(4, "big") + text for text in inputs)  # lengths: no byte can move to the next
        salt = code.secret.to_bytes(_NONCE_BYTES, "big")
        material = HKDF(SHA256(), 2 * _KEY_BYTES, salt, info).derive(shared)
        return Seal(material[:_KEY_BYTES]), Seal(material[_KEY_BYTES:])


class Seal:
    """Encryption of the messages in one direction of one exchange."""

    def __init__(self, key: bytes) -> None:
        self._cipher = ChaCha20Poly1305(key)

    def close(self, content: Struct) -> bytes:
        """The message, encrypted."""
        nonce = secrets.token_bytes(_NONCE_BYTES)  # a repeated request has the same key and may have another answer
        return nonce + self._cipher.encrypt(nonce, msgspec.json.encode(content), None)

    def open(self, sealed: bytes, wanted: type[T]) -> T:
        """The message in it. Raises ValueError where it was sealed without the code, or has another form."""
        try:
            plain = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
        except InvalidTag:
            raise ValueError("sealed without the code") from None
        return msgspec.json.decode(plain, type=prepared(wanted))
