"""The head's own Ed25519 key, which signs what its workers run: the cluster's key, which each node has, proves no head.

`sparkd init` makes `head.key` on the head, and the join brings its public half to each worker as `head.pub`. Both have
the form of the cluster's key: a private half never leaves its node.

The signature covers the MAC of an answer. HMAC-SHA256 has no collisions, not even for somebody who has its key, so the
signature holds for that content, that nonce of the worker and that address alone: an older document is worthless.
"""

from collections.abc import Iterable

from sparkd.base.cluster.auth import MAX_KEYS, read_keys
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import AwaitedError, ConfigError, HeadRefusedError, UnreadableError

PRIVATE, PUBLIC = "/etc/sparkd/head.key", "/etc/sparkd/head.pub"
"""Files of this node alone: the cluster's key may be on a share."""
HEADER = "Sparkd-Head-Signature"
FINDING = "head-key"
REMEDY = "on the head: sudo sparkd init --invite; then on this node: sudo sparkd init --join"
UPDATE = "sudo apt install ./sparkd_*.deb"
_PURPOSE = b"sparkd head 1 "


def read_public_halves(files: Files) -> tuple[bytes, ...]:
    """The public halves of the head's own keys, on the head. Raises ConfigError."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        keys = read_keys(files, PRIVATE)
    except ConfigError as error:
        raise ConfigError(error.reason, f"sudo rm {PRIVATE}; sudo sparkd init --invite") from None
    return tuple(Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw() for key in keys)


def sign(keys: Iterable[bytes], mac: str) -> str:
    """A signature by each key, in hex, since a worker may have the public half of any. `mac`: the answer's."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    message = _PURPOSE + mac.encode()
    return " ".join(Ed25519PrivateKey.from_private_bytes(key).sign(message).hex() for key in keys)


def verify(files: Files, path: str, head: str, mac: str, signatures: str) -> None:
    """Verify the head at this address. Raises HeadRefusedError unless a public half in the file fits one signature."""
    try:
        publics = read_keys(files, path)
    except UnreadableError as error:
        raise HeadRefusedError(error.reason, error.hint) from None
    except AwaitedError:
        raise missing(head) from None
    except ConfigError as error:
        raise HeadRefusedError(error.reason, f"on this node: sudo rm {path}; {REMEDY}") from None
    if not signatures:
        reason = (
            f"no configuration is taken of {head}, which does not sign it as a head: an older sparkd, or an impostor"
        )
        raise HeadRefusedError(reason, f"on all nodes, where it is older: {UPDATE}; {REMEDY}")
    if not any(_is_signer(public, mac, signature) for public in publics for signature in signatures.split()[:MAX_KEYS]):
        reason = f"no configuration is taken of {head}, which is not the head that this node has joined: an impostor?"
        raise HeadRefusedError(reason, f"who has that address? If the head has a new key, {REMEDY}")


class MissingKeyError(HeadRefusedError):
    """A worker has no public key of its head."""


def missing(head: str) -> MissingKeyError:
    """The error of a worker whose head has this address."""
    reason = f"no new configuration is taken of {head}: this node has no public key of its head"
    return MissingKeyError(reason, REMEDY)


def _is_signer(public: bytes, mac: str, signature: str) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(bytes.fromhex(signature), _PURPOSE + mac.encode())
    except (InvalidSignature, ValueError):
        return False
    return True
