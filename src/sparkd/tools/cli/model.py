"""`sparkd model` and `sparkd image`: check, download, build and copy what the engine needs."""

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from sparkd.agent.actions import dockerd
from sparkd.agent.actions.files import locked
from sparkd.base.config import load_settings
from sparkd.base.host import Host, weights
from sparkd.base.host.files import Files
from sparkd.base.lib.text import sanitize, size
from sparkd.tools.cli import console
from sparkd.tools.cli.console import Progress, Ticker
from sparkd.tools.cli.parser import name_or_path
from sparkd.tools.models import hub, image_build, model_files, model_pull
from sparkd.tools.models.image_copy import Image, find_image, send_image
from sparkd.tools.models.peers import choose_peers, run_on_each

CONFIRM_BYTES = 20 * 10**9
"""On a terminal a person confirms a larger download: it takes most of an hour by a usual line."""
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
        "--to", metavar="FOLDER", help="folder of the named model, instead of its own below engine.models_dir"
    )
    pull.add_argument(
        "--exclude", metavar="PATTERN", action="append", default=[], help='files to leave out, such as "original/*"'
    )
    token_help = f"file of a token; else that of {model_pull.TOKEN} under engine.secrets, if any"
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
    show = (lambda _line: None) if args.json else print
    show(described := model_files.describe_files(folder, host))
    if not args.quick:
        show(compared := _check_hashes(folder, host.files))
    if args.json:
        console.show_json(folder=folder, files=described, hashes="" if args.quick else compared)


def _warn_if_loading(folder: str, host: Host) -> None:
    if model_files.is_open(folder, host):
        print(f"{folder} is being loaded: that takes longer, and so does this", file=sys.stderr)


def _check_hashes(folder: str, files: Files) -> str:
    """A line that says how many files are as they were downloaded. Raises BlockedError (10) where one is not."""
    hashes = weights.recorded_hashes(files, folder, files.names(folder))
    if not hashes:
        return "no hashes to compare with: they are kept by Hugging Face's client, in its cache or beside --local-dir"
    with Progress(len(hashes), sum(files.stat(f"{folder}/{name}").size_bytes for name in hashes)) as progress:
        model_files.refuse_changed(folder, hashes, files, progress.next, progress.done)
    return f"as they were downloaded, by SHA-256: {len(hashes)} of its files"


def pull_model(args: argparse.Namespace) -> None:
    host, configured = Host(), load_settings(os.environ)
    source = model_pull.choose_repo(args.name, configured, host)
    folder = model_pull.choose_folder(args.to, args.name, source, configured)
    token = model_pull.read_token(args.token_file or configured.engine.secrets.get(model_pull.TOKEN), host.files)
    repo = hub.find_repo(source.name, args.revision or source.revision, token, tuple(args.exclude))
    print(f"{repo.name} at {sanitize(repo.commit[:12])}: {len(repo.files)} files for {folder}", flush=True)
    need_bytes, room = model_pull.require_download_room(repo, folder, host)
    # Where no bytes are missing, files of another revision may have the size of this one's.
    amount = "an unknown amount" if need_bytes is None else size(need_bytes) if need_bytes else "only changed files"
    print(f"{amount} to download, {size(room.free_bytes)} free on {room.mount}", flush=True)
    unconfirmed = (need_bytes is None or need_bytes > CONFIRM_BYTES) and not args.yes and sys.stdin.isatty()
    if unconfirmed and not console.confirm("download it? [Y/n] ", ("", "y", "yes")):
        print("nothing is downloaded; another folder: --to FOLDER")
        return
    _warn_if_loading(folder, host)
    with Progress(1, repo.missing_bytes(Path(folder))) as progress, _end_at_interrupt(progress):
        progress.next(repo.name)
        hub.download(repo, Path(folder), token, progress.done)
    print(model_files.describe_files(folder, host))
    print(_check_hashes(folder, host.files))


@contextmanager
def _end_at_interrupt(progress: Progress) -> Iterator[None]:
    """End at once at SIGINT; the download's threads would first finish their files. Partial files are kept."""

    def end(number: int, _frame: object) -> None:
        progress.close()  # the cursor is shown again
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

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
    _warn_if_loading(folder, host)
    with Ticker(f"copies {folder}"):
        return run_on_each(peers, partial(model_files.send_model, folder, partial(print, flush=True), quick=args.quick))


def add_image(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    build = actions.add_parser(
        "build",
        help="build a recipe's image on this node, by its image.build",
        description="Show what the recipe's image.build does, and on a yes have this node's docker do it, as root and "
        "with access to the network. The image is checked as the recipe asserts before it gets its name.",
    )
    build.add_argument("recipe", type=name_or_path, help="name or file")
    build.add_argument("--yes", action="store_true", help="build without a question")
    build.add_argument("--no-cache", action="store_true", help="repeat steps that docker has done before, too")
    same_command = shlex.join(["sudo", "sparkd", *sys.argv[1:]])
    build.set_defaults(run=build_image, as_root=("only root may build what root's docker runs", same_command))
    sync = actions.add_parser(
        "sync",
        help="copy an image to the other nodes, or resume that",
        description="Give the other nodes the image that this one has, by docker save, rsync over ssh and docker load. "
        "A node that has it already is left alone.",
    )
    sync.add_argument("ref", nargs="?", metavar="IMAGE", help="such as name:tag; the plan's where none is named")
    sync.set_defaults(run=sync_image)
    add_targets(sync)


def build_image(args: argparse.Namespace) -> None:
    host, show = Host(), partial(print, flush=True)
    sources = image_build.read_sources(args.recipe, host)
    show("\n".join(sources.describe()))
    # A build may take all memory that is available as it begins, and would end another build's check of the same image.
    with locked(Path("/"), "run/sparkd/image-build.lock", "`sparkd image build`"):
        images = image_build.find_images(sources, host)
        memory_bytes = image_build.find_memory(host, load_settings(os.environ).memory)
        show(f"each step has at most {size(memory_bytes)} of memory, of what is available now")
        for change in sources.built_from(images.base).changes(images.built_from) if images.built_from else ():
            show(f"other than in {images.built_name}: {change}")
        confirmed_command = f"sudo sparkd image build {shlex.quote(args.recipe)} --yes"
        if not console.is_confirmed(
            "build it? [y/N] ", confirmed_command, yes=args.yes, why="a build runs these steps as root"
        ):
            show("nothing is built; nothing is to be done")
            return
        with (
            explain_interrupt(args.recipe),
            Ticker("builds") as ticker,
            image_build.explain_full_disk(images.room, host),
        ):
            progress = show if console.on_terminal() else ticker.show
            image = image_build.build(sources, images.base, memory_bytes, cached=not args.no_cache, show=progress)
            image_build.check(sources, image)
            lines = tuple(image_build.give_name(sources, image, images.replaced_id))
    show("\n".join(lines))
    if sources.recipe.nodes.max > 1:
        show(f"sparkd image sync {sources.recipe.image.ref}   # to the other nodes, if any")
    show("sudo sparkd preflight --dry-run   # says what is left to do")


@contextmanager
def explain_interrupt(recipe: str) -> Iterator[None]:
    """Print what a build leaves where it is interrupted, and how to resume it."""
    try:
        yield
    except KeyboardInterrupt:
        print("\ninterrupted: no image has got or lost a name; steps that are done are kept", file=sys.stderr)
        print(f"sudo sparkd image build {shlex.quote(recipe)}   # to resume", file=sys.stderr)
        raise


def sync_image(args: argparse.Namespace) -> int:
    from sparkd.tools.measure.interrupts import catch_ends

    host, configured = Host(), load_settings(os.environ)
    peers = choose_peers(args.to, args.user, configured, host)
    catch_ends()  # a part of the archive, of some 20 GB, is of no use
    with Ticker("copies the image"):
        return send_image(find_image(args.ref, configured, host), peers, host, _save_image, partial(print, flush=True))


def _save_image(image: Image) -> None:
    print(f"docker writes {image.ref} to {image.file}", flush=True)
    with Progress(1, image.sizes.archive_bytes) as progress:
        progress.next(image.ref)
        dockerd.save(image.ref, image.file, progress.done)


def add_targets(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to",
        metavar="ADDRESS",
        action="append",
        default=[],
        help="node to copy to, by address or by name in ssh's configuration, given for each one; all others of "
        "cluster.nodes by default",
    )
    parser.add_argument("--user", help="user to log in as there; ssh's own choice by default")
