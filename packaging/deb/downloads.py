"""Fetches what the lock pins, with pip, which checks the hashes; each file is checked again when it is used."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

from deb.errors import BuildError
from deb.lock import Pin
from deb.targets import ARCHITECTURES, PYTHONS, Architecture

NATIVE = frozenset({"cffi", "cryptography", "msgspec", "psutil", "py-spy", "pydantic-core", "pyyaml"})
"""Compiled: a wheel for each architecture, and for each Python too. pip fails where another one has no pure wheel."""
STABLE_ABI = frozenset({"cryptography", "psutil", "py-spy"})
"""Of those, the ones whose single wheel serves every Python."""
SOURCES = frozenset({"sdnotify"})
"""Published as source alone: pure Python, taken as it is and never built."""
PURE = ("--platform", "any", "--implementation", "py", "--abi", "none", "--python-version", PYTHONS[0])


def fetch(pins: Iterable[Pin], folder: Path) -> None:
    """Have every file of `pins` in `folder`. Downloads only the missing ones, one process at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # pip writes a file under its name; half of it is taken for a forged one
        _fetch(pins, folder)


def _fetch(pins: Iterable[Pin], folder: Path) -> None:
    wanted = [pin for pin in pins if not _complete(pin, folder)]
    sources = [pin for pin in wanted if pin.name in SOURCES]
    native = [pin for pin in wanted if pin.name in NATIVE]
    _pip(sources, folder, "--no-binary=:all:")
    _pip([pin for pin in wanted if pin not in sources + native], folder, "--only-binary=:all:", *PURE)
    for architecture in ARCHITECTURES:
        platforms = [word for platform in architecture.platforms for word in ("--platform", platform)]
        for python in PYTHONS:
            version = ("--implementation", "cp", "--python-version", python)
            _pip(native, folder, "--only-binary=:all:", *platforms, *version)


def files(pin: Pin, folder: Path, architecture: Architecture) -> tuple[Path, ...]:
    """The files of `pin` that serve `architecture`, their content checked."""
    matches = tuple(file for file in _all(pin, folder) if _serves(file, architecture))
    for file in matches:
        pin.check(file)
    if not matches:
        raise BuildError(f"{pin.name} {pin.version} is not in {folder}")
    return matches


def _complete(pin: Pin, folder: Path) -> bool:
    return len(_all(pin, folder)) == _count(pin)


def _count(pin: Pin) -> int:
    if pin.name not in NATIVE:
        return 1
    return len(ARCHITECTURES) * (1 if pin.name in STABLE_ABI else len(PYTHONS))


def _all(pin: Pin, folder: Path) -> list[Path]:
    return [file for file in sorted(folder.iterdir()) if _identity(file) == (pin.name, pin.version)]


def _identity(file: Path) -> tuple[str, str]:
    if file.suffix == ".whl":
        name, version, _, _ = parse_wheel_filename(file.name)
    elif file.name.endswith(".tar.gz"):
        name, version = parse_sdist_filename(file.name)
    else:
        return "", ""
    return canonicalize_name(name), str(version)


def _serves(file: Path, architecture: Architecture) -> bool:
    if file.suffix != ".whl":
        return True
    _, _, _, tags = parse_wheel_filename(file.name)
    return any(tag.platform in ("any", *architecture.platforms) for tag in tags)


def _pip(pins: list[Pin], folder: Path, *options: str) -> None:
    if not pins:
        return
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("".join(f"{pin.requirement}\n" for pin in pins))
        requirements.flush()
        command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", "download"]
        command += ["--no-deps", "--require-hashes", "-r", requirements.name, "-d", str(folder), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        names = ", ".join(f"{pin.name} {pin.version}" for pin in pins)
        raise BuildError(f"pip could not fetch {names}: {done.stderr.strip()}")
