"""Completions of bash, zsh and fish: from the command line by shtab, with recipes, models, nodes and checks."""

from __future__ import annotations

from collections.abc import Mapping

import shtab

from manuals import leaves, whole_parser
from sparkd.agent.preflight.runner import CHECKS
from sparkd.tools.cli.main import COMPLETE
from sparkd.tools.measure.knobs import WIDEST_BOUNDS

FILES = {
    "bash": "usr/share/bash-completion/completions/sparkd",
    "zsh": "usr/share/zsh/vendor-completions/_sparkd",
    "fish": "usr/share/fish/vendor_completions.d/sparkd.fish",
}
"""Where each shell of Debian and Ubuntu looks."""


def _command(command: str) -> Mapping[str, object]:
    """In zsh a colon ends a part of _arguments' specification; shtab puts fish's words into double quotes."""
    quoted = command.replace('"', '\\"')
    return {**shtab.cmd(command), "zsh": f"($({command} | sed 's/:/\\\\:/g'))", "fish": f"({quoted})"}


def _words(kind: str) -> Mapping[str, object]:
    return _command(f"sparkd {COMPLETE} {kind} 2>/dev/null")


def _docker(words: str, field: str) -> Mapping[str, object]:
    """What docker lists for this user. Shells expand the words: one with $( ) in it would run."""
    shown = 'grep -xE "[A-Za-z0-9][A-Za-z0-9._/:-]*"'
    return _command(f'timeout 2 docker {words} --format "{field}" 2>/dev/null | {shown}')


COMPLETERS = {
    "RECIPE": _words("recipes"),
    "OTHER": _words("recipes"),
    "MODEL": _words("models"),
    "ADDRESS": _words("nodes"),
    "HOST": _words("nodes"),
    "RANK": _words("ranks"),
    "PLAN": _words("plans"),
    "REF": (IMAGES := _docker("image ls", "{{.Repository}}:{{.Tag}}")),
    "IMAGE": IMAGES,
    "CONTAINER": _docker("ps", "{{.Names}}"),
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
                action.choices = [f"{name}=" for name in WIDEST_BOUNDS]
            elif completer and action.nargs != 0:
                action.complete = completer  # type: ignore[attr-defined]  # shtab reads it
    return str(shtab.complete(parser, shell=shell))
