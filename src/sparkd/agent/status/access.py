"""The token of `observe.token_file`, which a client of the observers' listener has to send."""

from __future__ import annotations

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

LIMIT_BYTES = 4096
FRESH_SECONDS = 0.5
"""Until a new token counts."""
CHALLENGE = ("WWW-Authenticate", 'Basic realm="sparkd", charset="UTF-8"')
"""With this a browser asks for the password by itself, also without JavaScript."""  # words: keep
_TOKEN = re.compile(rb"[!-~]{16,512}")
_HOW = "(umask 077; openssl rand -hex 32 >{path})"


class TokenFile:
    """Without a good file nobody is admitted: `on_trouble` gets why, from any thread, once while that is so."""

    def __init__(
        self,
        files: Files,
        path: str,
        on_trouble: Callable[[str, str], object],
        owner_uid: int = 0,
        fresh_seconds: float = FRESH_SECONDS,
    ) -> None:
        self._files, self._path, self._owner_uid = files, path, owner_uid
        self._on_trouble = on_trouble
        self._trouble = ""
        self._slow = SlowDocument("observers-token", self._read, fresh_seconds)  # it may lie on a share that hangs
        self._read("")  # what is wrong with it is reported before the first request

    async def admits(self, authorization: str) -> bool:
        """Whether the header has the token: `Bearer TOKEN`, or Basic with the token as any user's password."""
        token = await self._slow.get("")
        return bool(token) and hmac.compare_digest(_sent(authorization), token)

    def _read(self, _query: str) -> bytes:
        """The present token."""
        token, trouble, hint = b"", "", ""
        try:
            token = _parse(read_private(self._files, self._path, LIMIT_BYTES, self._owner_uid).content, self._path)
        except FileNotFoundError:
            trouble, hint = f"{self._path} does not exist", _HOW.format(path=self._path)
        except ConfigError as error:
            trouble, hint = error.reason, error.hint
        if trouble not in ("", self._trouble):
            self._on_trouble(trouble, hint)
        self._trouble = trouble
        return token


def _parse(content: bytes, path: str) -> bytes:
    token = content.strip()
    if not _TOKEN.fullmatch(token):
        reason = f"{path}: has no token, which is one line of 16 to 512 printable ASCII characters without blanks"
        raise ConfigError(reason, _HOW.format(path=path))
    return token


def _sent(authorization: str) -> bytes:
    scheme, _, value = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("utf-8", "surrogatepass")
    if scheme.lower() == "basic":
        with suppress(binascii.Error, ValueError):
            return b64decode(value.strip(), validate=True).partition(b":")[2]
    return b""
