"""image-asserts.json: which images have what their recipes assert of them. An image is checked once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256

from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.host.files import Files
from sparkd.lib.text import sanitize
from sparkd.state.file import StateFile, ignore_report

KEPT = 32
"""Images; the oldest results go first."""
FAULT_LIMIT = 400


class Result(Struct, frozen=True):
    fault: str
    """What the first assertion that failed has found; empty where all hold."""
    seconds: float
    at: str
    """UTC, ISO 8601."""


class ImageAsserts(Struct, frozen=True):
    results: Mapping[str, Result] = field(default_factory=dict)
    """By `result_key`, the newest last."""

    def record(self, key: str, result: Result) -> ImageAsserts:
        known = {**{name: one for name, one in self.results.items() if name != key}, key: result}
        return replace(self, results=dict(list(known.items())[-KEPT:]))


FILE = StateFile("image-asserts.json", ImageAsserts)


def result_key(image_id: str, program: str) -> str:
    """Another image or another assertion is checked again. `program`: the assertions as bash."""
    return sha256(f"{image_id}\n{program}".encode()).hexdigest()


def read_asserts(files: Files) -> ImageAsserts:
    """Empty where the file is missing, wrong, or readable by root alone: the image is checked again."""
    with suppress(OSError):
        return FILE.load(files, ignore_report) or ImageAsserts()
    return ImageAsserts()


def read_result(files: Files, image_id: str, program: str) -> Result | None:
    """None where this image was not checked yet. The text is safe to show."""
    found = read_asserts(files).results.get(result_key(image_id, program))
    return found and replace(found, fault=sanitize(found.fault, FAULT_LIMIT))
