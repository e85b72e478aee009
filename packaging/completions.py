"""Completions of bash, zsh and fish: from the command line by shtab, with recipes, models, nodes and checks."""

from __future__ import annotations

from collections.abc import Mapping

import shtab

from manuals import leaves, whole_parser
from sparkd.agent.preflight.runner import CHECKS
from sparkd.tools.cli.main import COMPLETE
from sparkd.tools.measure.ladder import BOUNDS

FILES = {
    "bash": "usr/share/bash-completion/completions/sparkd",
    "zsh": "usr/share/zsh/vendor-completions/_sparkd",
    "fish": "usr/share/fish/vendor_completions.d/sparkd.fish",
}
"""Where each shell of Debian and Ubuntu looks."""


def _words(kind: str) -> Mapping[str, object]:
    """In zsh a colon ends a part of _arguments' specification, also one of an image's name or of an IPv6 address."""
    command = f"sparkd {COMPLETE} {kind} 2>/dev/null"
    return {**shtab.cmd(command), "zsh": f"($({command} | sed 's/:/\\\\:/g'))"}


COMPLETERS = {
    "RECIPE": _words("recipes"),
    "OTHER": _words("recipes"),
    "MODEL": _words("models"),
    "ADDRESS": _words("nodes"),
    "HOST": _words("nodes"),
    "RANK": _words("ranks"),
    "PLAN": _words("plans"),
    "REF": _words("images"),
    "IMAGE": _words("images"),
    "CONTAINER": _words("containers"),
    "FILE": shtab.FILE,
    "FILE|DIR|URL": shtab.FILE,
    "FOLDER": shtab.DIRECTORY,
    "TREE": shtab.DIRECTORY,
}
"""By the name of what an option or argument takes, or by its own."""
PULLED = (("model", "pull"), "name")
"""A recipe, or a name at Hugging Face."""


def render(shell: str) -> str:
    """The script for this shell."""
    parser = whole_parser()
    for words, command in leaves(parser):
        for action in command._actions:
            names = (str(action.metavar).upper(), action.dest.upper())
            if (words, action.dest) == PULLED:
                names = ("RECIPE", "")
            completer = next((COMPLETERS[name] for name in names if name in COMPLETERS), None)
            if "ID" in names:
                action.choices = [check.id for check in CHECKS]
            elif "KNOB" in names:
                action.choices = [f"{name}=" for name in BOUNDS]
            elif completer and action.nargs != 0:
                action.complete = completer  # type: ignore[attr-defined]  # shtab reads it
    return str(shtab.complete(parser, shell=shell))
