"""`sparkd image`: build a recipe's image on this node, and copy an image to the other nodes."""

import argparse
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from sparkd.agent.actions.image_archive import save
from sparkd.base.config import load_settings
from sparkd.base.host import Host
from sparkd.base.lib.errors import AS_ROOT
from sparkd.base.lib.text import size
from sparkd.tools.cli import console
from sparkd.tools.cli.parser import add_targets, name_or_path
from sparkd.tools.cli.progress import Progress, Ticker
from sparkd.tools.models import image_build
from sparkd.tools.models.image_copy import Image, find_image, send_image
from sparkd.tools.models.peers import choose_peers
from sparkd.tools.node.command_lock import hold_command_lock


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
    build.set_defaults(run=build_image, as_root=("only root may build what root's docker runs", AS_ROOT))
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
    with hold_command_lock(Path("/"), "run/sparkd/image-build.lock", "`sparkd image build`"):
        images = image_build.find_images(sources, host)
        memory_bytes = image_build.find_memory(host, load_settings(os.environ).memory)
        show(f"each step has at most {size(memory_bytes)} of memory, of what is available now")
        for change in sources.built_from(images.base).changes(images.built_from) if images.built_from else ():
            show(f"other than in {images.built_name}: {change}")
        hint = f"sudo sparkd image build {shlex.quote(args.recipe)} --yes"
        if not console.confirm_unless(args.yes, "build it? [y/N] ", hint, "a build runs these steps as root"):
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
        progress.start_file(image.ref)
        save(image.ref, image.file, progress.add_bytes)
