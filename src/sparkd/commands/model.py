"""`sparkd model`: the files of a model on this node."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

from sparkd.errors import BlockedError, ExitCode

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.files import Files

PAUSE_SECONDS = 0.5
"""Between two lines of progress."""
GIB = 1 << 30


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="say whether a model's files are whole, and as they were downloaded",
        description="Say whether a model's files are whole and, where Hugging Face's client has kept their hashes, "
        "whether they still have them. That reads them all: 149 GB take minutes.",
    )
    check.add_argument(
        "model", nargs="?", help="folder below engine.models_dir, or an absolute path; the plan's where none is named"
    )
    check.add_argument("--quick", action="store_true", help="names and sizes alone, as preflight does")


def run(args: argparse.Namespace) -> int:
    from sparkd.host import Host

    host = Host()
    folder = _folder(args.model, host)
    _check(folder, host)
    if not args.quick:
        _compare(folder, host.files)
    return ExitCode.GOOD


def _folder(word: str | None, host: Host) -> str:
    from sparkd import settings
    from sparkd.roles import context

    if word and word.startswith("/"):
        return word.rstrip("/")
    configured = settings.load(None, os.environ)
    return (
        f"{configured.engine.models_dir}/{word.strip('/')}" if word else context(configured, None, host).plan.model_path
    )


def _check(folder: str, host: Host) -> None:
    """Raises BlockedError (10) where the loader would fail."""
    from sparkd.preflight.weights import ModelWeights

    facts, verdict = ModelWeights(folder).look(host)
    if not facts.there:
        raise BlockedError(f"{folder} is missing or empty", "put the model there, or name another folder")
    if verdict.level.blocks:
        raise BlockedError(f"{folder}: {verdict.reason}", verdict.hint)
    print(f"{folder}: {verdict.reason}")


def _compare(folder: str, files: Files) -> None:
    """Raises BlockedError (10) where a file is another than was downloaded."""
    from sparkd.host import model_hashes

    wanted = model_hashes.recorded(files, folder, files.names(folder))
    if not wanted:
        print("no hashes to compare with: they are kept by Hugging Face's client, in its cache or beside --local-dir")
        return
    progress = _Progress(len(wanted), sum(files.stat(f"{folder}/{name}").size_bytes for name in wanted))
    wrong = []
    for name, sha256 in wanted.items():
        progress.next(name)
        if model_hashes.computed(files, f"{folder}/{name}", progress.read) != sha256:
            wrong.append(name)
    progress.end()
    if wrong:
        more = f" and {len(wrong) - 1} more" if wrong[1:] else ""
        hint = (
            f"remove them and fetch them again: hf download REPO --local-dir {folder}; then look at dmesg for the disk"
        )
        raise BlockedError(f"{folder}: {wrong[0]}{more} is not what was downloaded: another SHA-256", hint)
    print(f"as they were downloaded, by SHA-256: {len(wanted)} of its files")


class _Progress:
    """A line that is written anew while a person looks on."""

    def __init__(self, files: int, total_bytes: int) -> None:
        self._shown = sys.stderr.isatty()
        self._files, self._total_bytes = files, total_bytes
        self._number, self._name, self._bytes = 0, "", 0
        self._began = self._told = time.monotonic()

    def next(self, name: str) -> None:
        self._number, self._name = self._number + 1, name

    def read(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        now = time.monotonic()
        if not self._shown or now - self._told < PAUSE_SECONDS:
            return
        self._told = now
        left = (now - self._began) * (self._total_bytes - self._bytes) / self._bytes
        amount = f"{self._bytes / GIB:.1f} of {self._total_bytes / GIB:.1f} GiB"
        line = f"{self._number}/{self._files} {self._name}: {amount}, about {left:.0f} s left"
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
