"""requirements.lock: exact versions, and the hashes that their files may have."""

from __future__ import annotations

import hashlib
from pathlib import Path

from msgspec import Struct
from packaging.utils import NormalizedName, canonicalize_name

from deb.errors import BuildError


class Pin(Struct, frozen=True):
    name: NormalizedName
    version: str
    sha256: frozenset[str]

    @property
    def requirement(self) -> str:
        """One line for pip, which refuses what has another hash."""
        return " ".join([f"{self.name}=={self.version}", *(f"--hash=sha256:{one}" for one in sorted(self.sha256))])

    def check(self, file: Path) -> None:
        """Raises BuildError where the file's content is not what the lock pins."""
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found not in self.sha256:
            raise BuildError(f"{file}: sha256 {found} is none of those that requirements.lock has for {self.name}")


class Lock(Struct, frozen=True):
    pins: tuple[Pin, ...]

    def pin(self, name: NormalizedName) -> Pin:
        for one in self.pins:
            if one.name == name:
                return one
        raise BuildError(f"requirements.lock has no {name}: make lock")


def read(text: str) -> Lock:
    """A requirements file as `make lock` writes it."""
    pins = []
    for line in text.replace("\\\n", " ").splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, _, version = words[0].partition("==")
        hashes = frozenset(word.removeprefix("--hash=sha256:") for word in words if word.startswith("--hash=sha256:"))
        if not version or not hashes:
            raise BuildError(f"requirements.lock: {words[0]} has no exact version, or no hash")
        pins.append(Pin(canonicalize_name(name), version, hashes))
    return Lock(tuple(pins))
