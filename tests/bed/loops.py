"""Disk images, mounted through loop devices that vanish with their last mount."""

import time
from collections.abc import Sequence
from pathlib import Path

from .command import BedError, run


def devices(image: Path) -> list[str]:
    return run("losetup", "--noheadings", "--output", "NAME", "--associated", image).stdout.split()


def attach(image: Path) -> str:
    """Direct, so that nothing is cached twice; some file systems (tmpfs) cannot do that."""
    direct = run("losetup", "--find", "--show", "--direct-io=on", image, check=False)
    done = direct if direct.returncode == 0 else run("losetup", "--find", "--show", image)
    return done.stdout.strip()


def mount(image: Path, at: Path, options: Sequence[str] = (), seconds: float = 15) -> None:
    """Mount `image`. Where a loop device of it still exists (the pool, held by another bed), the same device is
    mounted once more: it is one file system. Two devices on one image would destroy it."""
    at.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    flags = ["-o", ",".join(options)] if options else []
    while True:
        existing = devices(image)
        device = existing[0] if existing else attach(image)
        done = run("mount", *flags, device, at, check=False)
        if not existing:
            run("losetup", "--detach", device, check=False)  # lazily: when its last mount is gone
        if done.returncode == 0:
            return
        if time.monotonic() > deadline:
            raise BedError(f"cannot mount {image}: {done.stderr.strip()}")
        time.sleep(0.1)


def unmount(at: Path, seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while (done := run("umount", at, check=False)).returncode:
        if time.monotonic() > deadline:
            raise BedError(f"cannot unmount {at}: {done.stderr.strip()}")
        time.sleep(0.1)
