"""Requests to a local port that wait for their answer, by what the kernel counts on each TCP connection."""

import socket

from msgspec import Struct

from sparkd.base.host.sock_diag import TCP_CLOSE_WAIT, TCP_ESTABLISHED, dump_tcp

BEGIN_MILLISECONDS = 1000
"""Time in which a server that streams sends its headers: at once, or when it has tokenized the prompt. What is sent
after that is the answer itself."""


class PendingRequest(Struct, frozen=True):
    """A request, `seconds` after its last byte came. `begun`: its answer may have begun, by headers or some text."""

    seconds: float
    begun: bool = False


UNKNOWN_REQUEST = PendingRequest(2.0)
"""Stands for requests that can't be listed. It is old enough that the health monitor sends a test request, a canary
(`health.DOUBT_SECONDS`)."""


def read_pending(port: int) -> tuple[PendingRequest, ...]:
    """Requests to this local port that have no answer yet, or at most its beginning.

    The kernel reports when data last came and was sent on each TCP connection of this network namespace, not what. A
    request is pending while nothing was sent since its last byte, or only within BEGIN_MILLISECONDS after it. So a
    stream is not pending. A slow upload is, and an idle connection whose answer came at once: as begun. Raises OSError.
    """
    pending: list[PendingRequest] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        for connection in dump_tcp(family, 1 << TCP_ESTABLISHED | 1 << TCP_CLOSE_WAIT, info=True, port=port):
            info = connection.info
            if info is None or not info.segments_received:
                continue
            # From the last byte that came to the last data sent; below 0 where nothing was sent since.
            answer_ms = info.ms_since_received - info.ms_since_sent if info.segments_sent else -1
            if answer_ms <= BEGIN_MILLISECONDS:
                pending.append(PendingRequest(info.ms_since_received / 1000, begun=answer_ms >= 0))
    return tuple(pending)
