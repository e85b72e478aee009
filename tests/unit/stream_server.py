"""A server of streamed completions as vLLM's, in a process of its own, so that its CPU time is not the client's.

python -m tests.unit.stream_server FIRST EACH: seconds to the first token, and between tokens. Prints its port.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

HEADERS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = {
    "id": "cmpl-0123456789abcdef0123456789abcdef",
    "object": "text_completion",
    "created": 1790000000,
    "model": "tiny",
    "choices": [
        {
            "index": 0,
            "text": " token",
            "logprobs": None,
            "finish_reason": None,
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": None,
        }
    ],
    "usage": None,
}


@contextmanager
def streaming(first_seconds: float, each_seconds: float) -> Iterator[int]:
    """The port."""
    command = (sys.executable, "-m", "tests.unit.stream_server", str(first_seconds), str(each_seconds))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def _event(body: object) -> bytes:
    data = b"data: " + (json.dumps(body).encode() if body else b"[DONE]") + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first_seconds: float, each_seconds: float
) -> None:
    while head := await reader.readuntil(b"\r\n\r\n"):
        if head.startswith(b"GET "):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            continue
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        request = json.loads(await reader.readexactly(length))
        prompt, tokens = len(request["prompt"].split()), request["max_tokens"]
        writer.write(HEADERS)
        due = asyncio.get_running_loop().time() + first_seconds
        for _ in range(tokens):
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            writer.write(_event(TOKEN))
            due += each_seconds
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        writer.write(_event({**TOKEN, "choices": [], "usage": usage}) + _event(None) + b"0\r\n\r\n")


async def _main(first_seconds: float, each_seconds: float) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _answer(reader, writer, first_seconds, each_seconds)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(*map(float, sys.argv[1:])))
