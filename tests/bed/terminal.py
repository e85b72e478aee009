"""A command on a node as a person runs it: on a terminal, where it may request something."""

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from .command import BedError
from .node import Node


class Session:
    """One command, from its start. Ended with the `with`, if it runs on."""

    def __init__(self, node: Node, command: str) -> None:
        self.text = ""
        """All that it has printed."""
        self._command = f"{node.name}: {command}"
        self._answered = 0
        self._ours, theirs = pty.openpty()
        line = node.entered("sh", "-c", f"stty cols 128; cd /root; {command}")
        self._process = subprocess.Popen(line, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._ours)

    def await_text(self, pattern: str, answers: Mapping[str, str], timeout: float) -> str:
        """What the pattern finds; each prompt on the way gets its line."""
        deadline = time.monotonic() + timeout
        while not (found := re.search(pattern, self.text)):
            if not self._read(deadline, answers):
                raise BedError(f"{self._command}: ended without {pattern}:\n{self.text}")
        return found[0]

    def await_end(self, answers: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
        deadline = time.monotonic() + timeout
        while self._read(deadline, answers):
            pass
        code = self._process.wait(max(0.0, deadline - time.monotonic()))
        return subprocess.CompletedProcess(self._command, code, self.text, "")

    def _read(self, deadline: float, answers: Mapping[str, str]) -> bool:
        """False at its end."""
        if not select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise BedError(f"{self._command}: not at its end in time:\n{self.text}")
        chunk = b""
        with suppress(OSError):  # EIO: nobody has the other end open
            chunk = os.read(self._ours, 65536)
        self.text += chunk.decode("utf-8", "replace").replace("\r\n", "\n")
        for prompt, line in answers.items():
            at = self.text.find(prompt, self._answered)
            if at >= 0:
                self._answered = at + len(prompt)
                os.write(self._ours, f"{line}\n".encode())
        return bool(chunk)
