"""`sparkd model`: check, download and copy the files of a model."""

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from sparkd.base.config import load_settings
from sparkd.base.host import Host, weights
from sparkd.base.lib.text import counted, sanitize, size
from sparkd.tools.cli import console
from sparkd.tools.cli.parser import add_targets
from sparkd.tools.cli.progress import Progress, Ticker
from sparkd.tools.measure.interrupts import report_progress
from sparkd.tools.models import hub, model_files, model_pull
from sparkd.tools.models.peers import choose_peers, run_on_each

CONFIRM_BYTES = 20 * 10**9
"""On a terminal a person confirms a larger download: it takes most of an hour by a usual line."""
INTERRUPTED = "interrupted; the same command resumes"
_MODEL_HELP = "folder below engine.models_dir, or an absolute path; the plan's where none is named"


def add_model(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="say whether a model's files are whole, and as they were downloaded",
        description="Say whether a model's files are whole and, where Hugging Face's client has kept their hashes, "
        "whether they still have them. That reads them all: 149 GB take minutes.",
    )
    check.set_defaults(run=check_model)
    check.add_argument("model", nargs="?", help=_MODEL_HELP)
    console.add_json(check)
    check.add_argument("--quick", action="store_true", help="names and sizes alone, as preflight does")
    pull = actions.add_parser(
        "pull",
        help="download a model from Hugging Face, or resume a download",
        description="Download a model by Hugging Face's client, or resume an interrupted download; then "
        "look at it as `check` does. HF_ENDPOINT may name a mirror, HTTPS_PROXY a proxy. sudo keeps neither: "
        "sudo env HF_ENDPOINT=URL HTTPS_PROXY=URL sparkd model pull NAME",
    )
    pull.set_defaults(run=pull_model)
    name_help = (
        "such as deepseek-ai/DeepSeek-V4-Flash; or a recipe, by name or file; engine.recipe's where none is named"
    )
    pull.add_argument("name", nargs="?", help=name_help)
    pull.add_argument("--revision", help="a branch, a tag or a commit, instead of the recipe's or the newest files")
    pull.add_argument(
        "--to", metavar="FOLDER", help="download to this folder, instead of the model's own below engine.models_dir"
    )
    pull.add_argument(
        "--exclude", metavar="PATTERN", action="append", default=[], help='files to leave out, such as "original/*"'
    )
    token_help = f"file with Hugging Face's token; else that of {model_pull.TOKEN} under engine.secrets, if any"
    pull.add_argument("--token-file", metavar="FILE", help=token_help)
    pull.add_argument("--yes", action="store_true", help=f"download more than {CONFIRM_BYTES // 10**9} GB unconfirmed")
    sync = actions.add_parser(
        "sync",
        help="copy a model's folder to the other nodes, or resume that",
        description="Copy a model's folder to the same place on the other nodes by rsync over ssh, or resume an "
        "interrupted copy; then look at it there as `check` does. Nothing is deleted there.",
    )
    sync.set_defaults(run=sync_model)
    sync.add_argument("model", nargs="?", help=_MODEL_HELP)
    sync.add_argument("--quick", action="store_true", help="check names and sizes alone there, no hashes")
    add_targets(sync)


def check_model(args: argparse.Namespace) -> None:
    host = Host()
    folder = model_files.find_folder(args.model, host)
    files_text = model_files.describe_files(folder, host)
    if not args.json:
        print(files_text)
    hashes_text = "" if args.quick else _check_hashes(folder, host)
    if args.json:
        console.show_json(folder=folder, files=files_text, hashes=hashes_text)
    elif hashes_text:
        print(hashes_text)


def warn_if_loading(folder: str, host: Host) -> None:
    """Print a line where a program, such as a loading engine, reads the model at the same time."""
    if model_files.is_open(folder, host):
        print(f"{folder} is being loaded: that takes longer, and so does this", file=sys.stderr)


def _check_hashes(folder: str, host: Host) -> str:
    """Read the files, and return a line on how many are as they were downloaded.

    Raises BlockedError (10) where one is not.
    """
    hashes, total_bytes = weights.recorded_hashes(host.files, folder, host.files.names(folder)), 0
    if not hashes:
        return "no hashes to compare with: they are kept by Hugging Face's client, in its cache or beside --local-dir"
    for name in hashes:
        with suppress(OSError):  # it is reported once it is read
            total_bytes += host.files.stat(f"{folder}/{name}").size_bytes
    with Progress(len(hashes), total_bytes) as progress:
        model_files.refuse_changed(folder, hashes, host, progress.start_file, progress.add_bytes)
    return f"as they were downloaded, by SHA-256: {len(hashes)} of its files"


def pull_model(args: argparse.Namespace) -> None:
    host, configured = Host(), load_settings(os.environ)
    source = model_pull.choose_repo(args.name, configured, host)
    folder = model_pull.choose_folder(args.to, args.name, source, configured)
    token = model_pull.read_token(args.token_file or configured.engine.secrets.get(model_pull.TOKEN), host.files)
    repo = hub.find_repo(source.name, args.revision or source.revision, token, tuple(args.exclude))
    print(f"{repo.name} at {sanitize(repo.commit[:12])}: {counted(len(repo.files), 'file')} for {folder}", flush=True)
    need_bytes, room = model_pull.require_download_room(repo, folder, host)
    # Where no bytes are missing, files of another revision may have the size of this one's.
    amount = "an unknown amount" if need_bytes is None else size(need_bytes) if need_bytes else "only changed files"
    print(f"{amount} to download, {size(room.free_bytes)} free on {room.mount}", flush=True)
    is_large = need_bytes is None or need_bytes > CONFIRM_BYTES
    needs_confirmation = is_large and not args.yes and sys.stdin.isatty()
    if needs_confirmation and not console.confirm("download it? [Y/n] ", ("", "y", "yes")):
        print("nothing is downloaded; another folder: --to FOLDER")
        return
    warn_if_loading(folder, host)
    with Progress(1, repo.missing_bytes(Path(folder))) as progress, _end_at_interrupt(progress):
        progress.start_file(repo.name)
        hub.download(repo, Path(folder), token, progress.add_bytes)
    print(model_files.describe_files(folder, host))
    print(_check_hashes(folder, host))


@contextmanager
def _end_at_interrupt(progress: Progress) -> Iterator[None]:
    """End at once at SIGINT; the download's threads would first finish their files. Partial files are kept."""

    def end(signal_number: int, _frame: object) -> None:
        progress.close()  # the cursor is shown again
        report_progress(INTERRUPTED)
        signal.signal(signal_number, signal.SIG_DFL)
        os.kill(os.getpid(), signal_number)

    previous_handler = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)


def sync_model(args: argparse.Namespace) -> int:
    host = Host()
    peers = choose_peers(args.to, args.user, load_settings(os.environ), host)
    folder = model_files.find_folder(args.model, host)
    print(model_files.describe_files(folder, host))
    warn_if_loading(folder, host)
    try:
        with Ticker(f"copies {folder}"):
            send = partial(model_files.send_model, folder, partial(print, flush=True), quick=args.quick)
            return run_on_each(peers, send)
    except KeyboardInterrupt:
        report_progress(INTERRUPTED)
        raise
