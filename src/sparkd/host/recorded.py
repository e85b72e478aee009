"""What a tree of files carries of a machine beside its files: answers of docker and of the GPU's driver.

`/.sparkd/docker/PATH.json` is the body of docker's answer to GET PATH, without its query; `/.sparkd/nvml.json` is what
the driver says. They are read by the same code that reads the living ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sparkd.host.files import Files

FOLDER = "/.sparkd"


class Reply(NamedTuple):
    status: int
    body: bytes


class RecordedDocker:
    """Answers as docker did when the machine was recorded. What was not asked then is unknown to it: 404."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def get(self, path: str, timeout_seconds: float, params: Mapping[str, str] | None = None) -> Reply:  # noqa: ARG002
        try:
            return Reply(200, self._files.bytes(f"{FOLDER}/docker{path}.json"))
        except (FileNotFoundError, NotADirectoryError):
            return Reply(404, b"")

    def close(self) -> None: ...
