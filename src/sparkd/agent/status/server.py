"""The HTTP server of people and monitors, on `observe.listen`."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from sparkd.agent.status.http_api import make_handler
from sparkd.agent.status.page_history import PageHistory
from sparkd.agent.status.token_file import TokenFile
from sparkd.base.config.settings import Observe
from sparkd.base.host.files import Files
from sparkd.base.host.sockets import find_peer
from sparkd.base.lib.http_server import HttpServer
from sparkd.base.lib.log import Events
from sparkd.base.status.publisher import Published

LISTEN_AGAIN_SECONDS = 10.0
"""Pause before the next try, where the address is not there yet, or another program has the port."""


def start_status_server(
    observe: Observe,
    files: Files,
    published: Callable[[], Published],
    keepalive_age: Callable[[], float],
    spawn: Callable[[Coroutine[Any, Any, None]], object],
    events: Events,
    history: PageHistory,
) -> None:
    """Start the server, unless the settings turn it off. `keepalive_age`: as for `make_handler`.

    `spawn` runs a coroutine that never ends by itself. A failure is only logged, and the address tried again, since no
    engine depends on it.
    """
    if observe.address is None:
        return
    host, port = observe.address

    def on_error(trouble: str) -> None:
        events.warning("status.server.failed", reason=trouble)

    def on_bad_token(trouble: str, hint: str) -> None:
        events.warning("status.token.unusable", reason=trouble, hint=hint)

    token = TokenFile(files, observe.token_file, on_bad_token) if observe.token_file else None
    handle = make_handler(published, keepalive_age, token.admits if token else None, history)

    async def serve() -> None:
        reported = ""
        if token is not None:
            await token.admits("")  # what is wrong with its file is reported before the first request
        while True:
            try:
                server = HttpServer(host, port, handle, on_error=on_error, find_user=_find_user)
            except OSError as error:
                trouble = f"{host} port {port} can't be had: {error.strerror}"
                if trouble != reported:
                    on_error(trouble)
                reported = trouble
                await asyncio.sleep(LISTEN_AGAIN_SECONDS)
            else:
                await server.serve()

    spawn(serve())
    spawn(history.follow(published))


def _find_user(connection: socket.socket) -> str:
    """The local user who made a connection, since all users have the same address. Empty where it is not known."""
    with suppress(OSError):
        if (peer := find_peer(connection)) is not None:
            return f"uid {peer.uid}"
    return ""
