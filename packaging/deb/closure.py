"""Which pinned libraries the program needs: its own dependencies, and theirs, on any system that a package serves."""

from __future__ import annotations

from collections.abc import Iterable
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deb import downloads
from deb.archive import read
from deb.errors import BuildError
from deb.lock import Lock, Pin
from deb.targets import ARCHITECTURES

LEFT_OUT = frozenset({"hf-xet", "pycparser"})
"""Required by name, and never imported: huggingface_hub downloads by HTTP without hf-xet, which resumes a file that was
cut off. 11 MB, and on arm64 no release of it is for glibc 2.17. pycparser serves to build modules by cffi."""


def fetch(dependencies: Iterable[str], lock: Lock, folder: Path) -> tuple[Pin, ...]:
    """Walk the dependencies level by level; in the end all their files are in `folder`."""
    pinned: dict[str, Pin] = {}
    level = _needed(dependencies)
    while level:
        pins = [lock.pin(canonicalize_name(requirement.name)) for requirement in level]
        for requirement, pin in zip(level, pins, strict=True):
            if not requirement.specifier.contains(pin.version, prereleases=True):
                raise BuildError(f"requirements.lock has {pin.name} {pin.version}, needed is {requirement}: make lock")
            pinned[pin.name] = pin
        downloads.fetch(pins, folder)
        texts = (text for pin in pins for text in _requires(pin, folder))
        level = [requirement for requirement in _needed(texts) if canonicalize_name(requirement.name) not in pinned]
    return tuple(pinned[name] for name in sorted(pinned))


def _needed(texts: Iterable[str]) -> list[Requirement]:
    """Those that some Python on some architecture needs."""
    environments = [environment for architecture in ARCHITECTURES for environment in architecture.environments()]
    needed = []
    for requirement in map(Requirement, texts):
        marker = requirement.marker
        if canonicalize_name(requirement.name) in LEFT_OUT:
            continue
        if marker is not None and not any(marker.evaluate(environment) for environment in environments):
            continue
        if requirement.extras:
            raise BuildError(f"{requirement}: extras are not followed")
        needed.append(requirement)
    return needed


def _requires(pin: Pin, folder: Path) -> list[str]:
    """`Requires-Dist` of every file: wheels of one release may differ."""
    lines: set[str] = set()
    for architecture in ARCHITECTURES:
        for file in downloads.files(pin, folder, architecture):
            metadata = Parser().parsestr(read(file).metadata, headersonly=True)
            lines.update(metadata.get_all("Requires-Dist", []))
    return sorted(lines)
