"""`sparkd init` and `deinit`: set up this node, alone or with others, from what is found on it; and undo that."""

import argparse
import os
import shlex
import sys
from functools import partial

from msgspec import convert

from sparkd.base.config import load_settings
from sparkd.base.config.settings import MAX_NODES
from sparkd.base.host import Host
from sparkd.base.lib import prepared
from sparkd.base.lib.errors import UsageError
from sparkd.base.vllm.args import check_path
from sparkd.tools.cli.console import prompt
from sparkd.tools.cli.parser import name_or_path
from sparkd.tools.setup import cluster_key
from sparkd.tools.setup.choice import Wishes
from sparkd.tools.setup.cluster_key import NEW_KEY
from sparkd.tools.setup.node_files import NodeFiles
from sparkd.tools.setup.setup_manifest import Setup
from sparkd.tools.setup.wizard import Wizard


def add_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="write without a question")
    parser.add_argument("--plan", action="store_true", help="show what would be written, and write nothing")
    recipe_help = "serve this one, by name or file, instead of the best that fits"
    parser.add_argument("--recipe", metavar="RECIPE", type=name_or_path, default="", help=recipe_help)
    parser.add_argument("--nodes", metavar="N", type=int, help="how many nodes serve together, this one included")
    parser.add_argument("--invite", action="store_true", help="on a head that is set up: let one more node join")
    parser.add_argument(
        "--join", metavar="CODE", nargs="?", const="", help="join the head that shows CODE; without it, type it in"
    )
    parser.add_argument(
        "--ssh", metavar="HOST", action="append", default=[], help="on a head: have this node join too, by ssh"
    )
    either = argparse.BooleanOptionalAction
    parser.add_argument("--api-key", action=either, help="make a key for the API, or none, without a question")
    parser.add_argument(
        "--webhook-file", metavar="FILE", type=_parse_file, default="", help="send messages to the URL in this file"
    )
    parser.add_argument(NEW_KEY, action="store_true", help="only make the cluster's key; you copy it to the others")
    parser.add_argument("--rotate", action="store_true", help=f"with {NEW_KEY}: put the new key above the one there is")
    parser.set_defaults(run=init)


def _parse_file(text: str) -> str:
    """The file's absolute path, as settings have it."""
    try:
        return text and check_path(os.path.abspath(text))  # noqa: PTH100 - without ..
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def add_deinit(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=deinit, as_root=("only root may change this node", "sudo sparkd deinit"))


def init(args: argparse.Namespace) -> None:
    _refuse_options(args)
    _refuse_place(args)
    if args.new_cluster_key:
        path, setup = load_settings(os.environ).cluster.key_file, Setup()
        with setup.hold_lock():
            print(cluster_key.rotate_key(path, setup) if args.rotate else cluster_key.create_key(path, setup))
        return
    wizard = Wizard(
        convert(vars(args), prepared(Wishes)), NodeFiles(Host(), os.environ), partial(print, flush=True), prompt
    )
    if args.join is None:
        wizard.serve()
    else:
        wizard.join(args.join)


def _refuse_options(args: argparse.Namespace) -> None:
    """Raise UsageError for options that do not go together."""
    if args.rotate and not args.new_cluster_key:
        raise UsageError("--rotate is of the cluster's key", f"sudo sparkd init {NEW_KEY} --rotate")
    if args.plan and args.new_cluster_key:
        raise UsageError(f"--plan writes nothing, and {NEW_KEY} does nothing else", "sparkd init --plan")
    if args.join is not None and any((args.api_key, args.webhook_file)):
        raise UsageError("--api-key and --webhook-file are for the head", "give them to `sparkd init` there")
    if args.nodes is not None and not 1 <= args.nodes <= MAX_NODES:
        raise UsageError(f"--nodes {args.nodes}: 1 to {MAX_NODES} serve together")


def _refuse_place(args: argparse.Namespace) -> None:
    """Raise UsageError where this user, or this terminal, can't do what the options say."""
    if os.geteuid() and not args.plan:
        raise UsageError("only root may set up this node", f"{_make_command(args)}, or only look: sparkd init --plan")
    if not (args.new_cluster_key or args.yes or args.plan or sys.stdin.isatty()):
        raise UsageError(
            "there is no terminal to confirm on",
            f"{_make_command(args, '--yes')}   # writes at once; --plan only shows",
        )


def _make_command(args: argparse.Namespace, *more: str) -> str:
    """This command as root, with `more` options, and without the code of --join, which is a secret."""
    words = sys.argv[1:]
    if args.join:
        words = [word.removesuffix(f"={args.join}") for word in words if word != args.join]
    return shlex.join(["sudo", "sparkd", *words, *more])


REMOVE_KEPT_IMAGES = (
    "sudo docker ps -aqf label=io.sparkd.kept | xargs -r sudo docker rm;"
    " sudo docker images sparkd/known-good --format '{{.Repository}}:{{.Tag}}' | xargs -r sudo docker rmi"
)
"""Command that removes the containers and names that keep known good images; does nothing where there are none."""


def deinit(_args: argparse.Namespace) -> None:
    lines = NodeFiles(Host(), os.environ).take_back()
    print("\n".join(lines) or "nothing to take back: `sparkd init` has written nothing here")
    print("left as they are: models, images, recipes, the state in /var/lib/sparkd, and which units are enabled")
    print(f"so is what keeps known good images, where there are any; to end it: {REMOVE_KEPT_IMAGES}")
