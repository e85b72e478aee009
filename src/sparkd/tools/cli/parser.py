"""A parser of command lines whose mistakes are reported as all others are: the likely option, and where the help is."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from sparkd.base.lib.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse prints its own lines and exits. Its subparsers do, too."""

    def error(self, message: str) -> NoReturn:
        from sparkd.base.lib.text import sanitize

        raise UsageError(f"{self._command()}{sanitize(message, 400)}", f"{self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Each command refuses what it does not know itself: the parser above it knows none of its options."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._refusal(unknown))
        return parsed, unknown

    def _refusal(self, unknown: Sequence[str]) -> str:
        from sparkd.base.lib.text import did_you_mean

        option = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
        if not option:
            return f"too many words: {' '.join(unknown)}"
        known = re.findall(r"(?<![\w-])--[a-z][a-z-]*", self.format_help())
        return f"there is no option {option}{did_you_mean(option, known)}"

    def _command(self) -> str:
        """Empty for sparkd itself."""
        command = self.prog.partition(" ")[2]
        return f"{command}: " if command else ""
