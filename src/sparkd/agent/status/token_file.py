"""The token of observe.token_file, which requests of people and monitors carry."""

import binascii
import hmac
import re
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress

from sparkd.base.host.files import Files
from sparkd.base.host.ownership import read_private
from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.slow_document import SlowDocument

FRESH_SECONDS = 0.5
"""Longest time until a new token counts."""
_TOKEN = re.compile(rb"[!-~]{16,512}")
_CREATION_HINT = "sudo sh -c 'umask 077; openssl rand -hex 32 >{path}'"


class TokenFile:
    """The token of observe.token_file. Without a good file nobody is admitted.

    `on_trouble` gets reason and hint, from any thread, once as long as the reason stays the same.
    """

    def __init__(
        self, files: Files, path: str, on_trouble: Callable[[str, str], object], fresh_seconds: float = FRESH_SECONDS
    ) -> None:
        self._files, self._path = files, path
        self._on_trouble = on_trouble
        self._trouble = ""
        self._slow = SlowDocument("observers-token", self._read, fresh_seconds)  # it may lie on a share that hangs

    async def admits(self, authorization: str) -> bool:
        """Whether the header has the token: `Bearer TOKEN`, or Basic with the token as any user's password."""
        token = await self._slow.get("") or b""
        return bool(token) and hmac.compare_digest(_parse_token(authorization), token)

    def _read(self, _query: str) -> bytes:
        """The token in the file; empty without a good one, which is reported."""
        token, trouble, hint = b"", "", ""
        try:
            token = read_token(self._files, self._path)
        except ConfigError as error:
            trouble, hint = error.reason, error.hint
        if trouble not in ("", self._trouble):
            self._on_trouble(trouble, hint)
        self._trouble = trouble
        return token


def read_token(files: Files, path: str) -> bytes:
    """Read the token. Raises ConfigError where there is none, or others than its owner may read the file."""
    try:
        token = read_private(files, path, 4096).content.strip()
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist", _CREATION_HINT.format(path=path)) from None
    if not _TOKEN.fullmatch(token):
        reason = f"{path}: has no token, which is one line of 16 to 512 printable ASCII characters without blanks"
        raise ConfigError(reason, _CREATION_HINT.format(path=path))
    return token


def _parse_token(authorization: str) -> bytes:
    """The token in an Authorization header; empty where it has none."""
    scheme, _, value = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("utf-8", "surrogatepass")
    if scheme.lower() == "basic":
        with suppress(binascii.Error, ValueError):
            return b64decode(value.strip(), validate=True).partition(b":")[2]
    return b""
