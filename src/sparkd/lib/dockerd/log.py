"""The log of a container, followed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from urllib.parse import quote

from sparkd.lib.dockerd.client import APIClient, APIError, Response, SdkClient, docker_errors
from sparkd.lib.dockerd.reader import SOCKET, DockerError, DockerUnreadableError

CONNECT_SECONDS = 10.0
FRAME = struct.Struct(">BxxxL")
"""Stream number and length of each piece."""
FRAME_LIMIT_BYTES = 16 << 20
"""dockerd's pieces are log messages of at most 16 KiB; more is not docker."""


def follow(container_id: str, since: float, socket_path: str = SOCKET) -> Iterator[tuple[int, bytes]]:
    """(stream, bytes) from `since` on (wall clock; 0: all) until the container ends: 1 is stdout, 2 stderr.

    It waits for more without a limit. Raises DockerUnreadableError, also where dockerd goes away.

    The SDK's own logs() reads in the same way, but leaves out the stream number, without which the pieces of long lines
    of both streams would be joined; and it takes a broken connection for the end of the log.
    """
    params = {"follow": "1", "stdout": "1", "stderr": "1", "tail": "all", "since": f"{since:.9f}" if since else "0"}

    def begin(api: APIClient) -> Response:
        url = f"{api.base_url}/v{api.api_version}/containers/{quote(container_id, safe='')}/logs"
        answer = api.get(url, params=params, stream=True, timeout=(CONNECT_SECONDS, None))
        if answer.status_code != 200:
            raise APIError(f"HTTP {answer.status_code}", answer, answer.text)
        return answer

    with closing(SdkClient(socket_path, CONNECT_SECONDS)) as client:
        try:
            with docker_errors(), closing(client.call(begin)) as answer:
                yield from frames(answer.raw.read)
        except DockerError as error:
            raise DockerUnreadableError(error.brief) from None


def frames(read: Callable[[int], bytes]) -> Iterator[tuple[int, bytes]]:
    """Take docker's stream apart: `read(count)` gives so many bytes, less at the end. A frame cut off by it is none."""
    while len(header := read(FRAME.size)) == FRAME.size:
        stream, length = FRAME.unpack(header)
        if length > FRAME_LIMIT_BYTES:
            raise DockerUnreadableError(f"a log frame of {length} bytes")
        data = read(length)
        if len(data) < length:
            return
        yield stream, data
