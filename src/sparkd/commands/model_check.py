"""`sparkd model check`: whether a model's files are whole, and as they were downloaded."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from sparkd.errors import BlockedError, ExitCode

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.files import Files


def arguments(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    folder = folder_of(args.model, host)
    check(folder, host)
    if not args.quick:
        compare(folder, host.files)
    return ExitCode.GOOD


def folder_of(word: str | None, host: Host) -> str:
    """Of a model by name, or the plan's."""
    from sparkd import settings
    from sparkd.roles import context

    if word and word.startswith("/"):
        return word.rstrip("/")
    configured = settings.load(None, os.environ)
    return (
        f"{configured.engine.models_dir}/{word.strip('/')}" if word else context(configured, None, host).plan.model_path
    )


def check(folder: str, host: Host) -> None:
    """Raises BlockedError (10) where the loader would fail."""
    from sparkd.preflight.weights import ModelWeights

    facts, verdict = ModelWeights(folder).look(host)
    if not facts.there:
        raise BlockedError(f"{folder} is missing or empty", "put the model there, or name another folder")
    if verdict.level.blocks:
        raise BlockedError(f"{folder}: {verdict.reason}", verdict.hint)
    print(f"{folder}: {verdict.reason}")


def tell_of_use(folder: str, host: Host) -> None:
    """Say so where a program, such as an engine that loads, has the model's files open."""
    from sparkd.host import shards

    with suppress(OSError):
        if shards.in_use(host.files, host.processes(), shards.of_model(host.files, folder)).found:
            print(f"{folder} is being loaded: that takes longer, and so does this", file=sys.stderr)


def compare(folder: str, files: Files) -> None:
    """Raises BlockedError (10) where a file is another than was downloaded."""
    from sparkd.commands.console import Progress
    from sparkd.host import model_hashes

    wanted = model_hashes.recorded(files, folder, files.names(folder))
    if not wanted:
        print("no hashes to compare with: they are kept by Hugging Face's client, in its cache or beside --local-dir")
        return
    wrong = []
    with Progress(len(wanted), sum(files.stat(f"{folder}/{name}").size_bytes for name in wanted)) as progress:
        for name, sha256 in wanted.items():
            progress.next(name)
            if model_hashes.computed(files, f"{folder}/{name}", progress.done) != sha256:
                wrong.append(name)
    if wrong:
        more = f" and {len(wrong) - 1} more" if wrong[1:] else ""
        hint = "remove them there, and fetch them again: `sparkd model pull` or `sync`; then look at dmesg for the disk"
        raise BlockedError(f"{folder}: {wrong[0]}{more} is not what was downloaded: another SHA-256", hint)
    print(f"as they were downloaded, by SHA-256: {len(wanted)} of its files")
