"""What is slow to make is kept outside the repository, named by a hash of the recipe that makes it."""

import fcntl
import hashlib
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

KEY_LENGTH = 16
REPORT_SECONDS = 5.0
DOWNLOADS = {
    "litellm": ("LiteLLM", 45),
    "node-trixie": ("Debian packages", 150),
    "node-bookworm": ("Debian packages", 70),
    "node-docker-bookworm": ("Debian packages", 120),
    "engine": ("vLLM, PyTorch for the CPU and what they need, and Debian packages", 1100),
    "ray": ("Ray", 85),
    "sparkrun": ("sparkrun and what it imports", 5),
    "qemu": ("Debian packages and a kernel", 200),
    "arm64": ("Debian packages of arm64 and a kernel", 200),
}
"""What each build downloads, and about how many MB of it. Not beside its recipe: the recipe's text is its key."""


def home() -> Path:
    """The cache; BED_CACHE moves it. Here too are the locks and the pool of disks."""
    path = Path(os.environ.get("BED_CACHE", "/var/cache/sparkd-bed"))
    path.mkdir(parents=True, exist_ok=True)
    return path


def recipe_key(*ingredients: Path | str) -> str:
    """A key that changes with the text of any builder file, or with any other ingredient."""
    digest = hashlib.sha256()
    for ingredient in ingredients:
        text = ingredient.read_bytes() if isinstance(ingredient, Path) else ingredient.encode()
        digest.update(len(text).to_bytes(8, "big") + text)
    return digest.hexdigest()[:KEY_LENGTH]


@contextmanager
def lock(name: str) -> Iterator[None]:
    """Held by one process on this machine at a time; freed by the kernel when its holder dies."""
    with (home() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def artefact(name: str, key: str, suffix: str, build: Callable[[Path], None], pause: float = REPORT_SECONDS) -> Path:
    """The file `name-key.suffix` of the cache, built first when it is not there. `build` gets the path to write."""
    path = home() / f"{name}-{key}{suffix}"
    with lock(name):
        if not path.exists():
            partial = home() / f"{name}.partial"
            remove(partial)
            started = time.monotonic()
            what, megabytes = DOWNLOADS.get(name, ("", 0))
            say(f"building {path.name}" + (f": downloads {what}, about {megabytes:,} MB" if what else ""))
            with progress(name, megabytes, pause):
                build(partial)
            partial.replace(path)
            say(f"built {path.name} in {time.monotonic() - started:.0f} s, {path.stat().st_size >> 20} MiB")
        prune(home(), name, keep=path)
    return path


@contextmanager
def progress(name: str, megabytes: int = 0, pause: float = REPORT_SECONDS) -> Iterator[None]:
    """Report each `pause` seconds what this machine has received and written meanwhile."""
    over, began = threading.Event(), time.monotonic()
    received_before, used_before = _received_bytes(), shutil.disk_usage(home()).used

    def report() -> None:
        while not over.wait(pause):
            received = (_received_bytes() - received_before) // 1_000_000
            written = max(0, shutil.disk_usage(home()).used - used_before) // 1_000_000
            of = f" of about {megabytes:,}" if received <= megabytes else ""
            say(f"{name}: {received:,}{of} MB received, {written:,} MB written, {time.monotonic() - began:.0f} s")

    thread = threading.Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _received_bytes() -> int:
    """By the interface that has received most: a bridge repeats what came by a cable."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    fields = [line.replace(":", " ").split() for line in lines]
    return max((int(field[1]) for field in fields if field[0] != "lo"), default=0)


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A folder to build in, under the lock of that artefact: what a killed build left in it is removed first."""
    folder = home() / f"{name}.scratch"
    remove(folder)
    folder.mkdir()
    try:
        yield folder
    finally:
        remove(folder)


def prune(folder: Path, name: str, keep: Path) -> None:
    """Remove the same artefact under older keys."""
    ours = re.compile(rf"{re.escape(name)}-[0-9a-f]{{{KEY_LENGTH}}}(\..*)?")
    for path in folder.iterdir():
        if path != keep and ours.fullmatch(path.name):
            remove(path)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def say(text: str) -> None:
    print(f"bed: {text}", file=sys.stderr, flush=True)
