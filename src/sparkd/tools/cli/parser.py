"""Command lines: a mistake is a UsageError with the likely option and where the help is. Shared words and options."""

import argparse
import os
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from sparkd.base.lib.errors import UsageError


def name_or_path(word: str) -> str:
    """A recipe's name; or the absolute path of its file, as settings have it, where `word` looks like a path."""
    is_path = "/" in word or word.endswith(".yaml")
    return os.path.abspath(word) if is_path else word  # noqa: PTH100 - without ..


class Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse would print its own lines and exit. Its subparsers are of this class, too."""

    def error(self, message: str) -> NoReturn:
        from sparkd.base.lib.text import sanitize

        raise UsageError(f"{self._make_prefix()}{sanitize(message, 400)}", f"{self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Have each command refuse what it does not know: the parser above it knows none of its options."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._explain_unknown(unknown))
        return parsed, unknown

    def _explain_unknown(self, unknown: Sequence[str]) -> str:
        from sparkd.base.lib.text import did_you_mean

        option = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
        if not option:
            return f"too many words: {' '.join(unknown)}"
        known = re.findall(r"(?<![\w-])--[a-z][a-z-]*", self.format_help())
        return f"there is no option {option}{did_you_mean(option, known)}"

    def _make_prefix(self) -> str:
        """The command before a message, such as `bench: `; empty for sparkd itself."""
        command = self.prog.partition(" ")[2]
        return f"{command}: " if command else ""


def add_action(actions: "argparse._SubParsersAction[Any]", name: str, summary: str) -> Any:
    """Add a command, or an action of one. Returns its parser, whose help begins with the summary."""
    return actions.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")


def add_targets(parser: argparse.ArgumentParser) -> None:
    """Add the options by which a command that copies to other nodes chooses these."""
    parser.add_argument(
        "--to",
        metavar="ADDRESS",
        action="append",
        default=[],
        help="node to copy to, by address or by name in ssh's configuration, given for each one; all others of "
        "cluster.nodes by default",
    )
    parser.add_argument("--user", help="user to log in as there; ssh's own choice by default")
