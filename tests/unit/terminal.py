"""What a terminal gets, through a pseudo-terminal."""

import fcntl
import os
import pty
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from threading import Thread

import pytest

from sparkd.base.lib.text import Parts
from sparkd.tools.cli import console


class Received:
    text = ""


def drain(ours: int, pieces: bytearray) -> None:
    """Read all that a terminal gets, a few KiB at a time, until nobody has its other end open."""
    with suppress(OSError):  # EIO
        while piece := os.read(ours, 65536):
            pieces.extend(piece)


@contextmanager
def terminal(columns: int = 80, **env: str) -> Iterator[Received]:
    """stdout and stderr are a terminal; what it got is there afterwards."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    received, pieces = Received(), bytearray()
    reader = Thread(target=drain, args=(ours, pieces))
    reader.start()
    try:
        with open(theirs, "w") as file, pytest.MonkeyPatch.context() as patch:
            for name in ("NO_COLOR", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE"):
                patch.delenv(name, raising=False)
            for name, value in {"TERM": "xterm-256color", "COLUMNS": str(columns), **env}.items():
                patch.setenv(name, value)
            with redirect_stdout(file), redirect_stderr(file):
                yield received
    finally:
        reader.join()
        os.close(ours)
        received.text = pieces.decode().replace("\r\n", "\n")


def shown(parts: Parts, columns: int = 80, **env: str) -> str:
    with terminal(columns, **env) as received:
        console.show(parts)
    return received.text
