"""Commands under conditions in which each works, or says in one line why not: as commands of a node's shell."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sparkd.base.lib.errors import ExitCode
from sparkd.tools.cli.main import COMMANDS, build_parser

from .node import Node

FULL = """\
mount --make-rprivate /
mkdir -p /var/lib/sparkd  # systemd makes it at the agent's first start
for place in /etc /var/lib/sparkd /root; do
  cp -a $place /run/copy
  mount -t tmpfs -o size=$(($(du -sk /run/copy | cut -f1) + 256))k tmpfs $place
  cp -a /run/copy/. $place
  rm -r /run/copy
  cat /dev/zero >$place/full 2>/dev/null || true
done
exec "$@"
"""
READ_ONLY = 'mount --make-rprivate /; mount --bind /etc /etc; mount -o remount,bind,ro /etc; exec "$@"'
ALONE = ("unshare", "--mount", "sh", "-ec")
"""In mounts of its own: nothing of it is left behind."""
CONDITIONS: Mapping[str, Sequence[str]] = {
    "as it is": (),
    "not root": ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    "a full disk": (*ALONE, FULL, "sh"),
    "a read-only /etc": (*ALONE, READ_ONLY, "sh"),
    "80 columns": ("script", "--quiet", "--return", "--command"),
}
"""What stands before the command; of the last one, its words are one."""
ARGUMENTS = {
    "preflight": "--dry-run",
    "explain": "EADDRINUSE",
    "recipe show": "tiny-cpu",
    "recipe diff": "tiny-cpu tiny-cpu-pair",
    "recipe import": "/nowhere.yaml",
    "model check": "--quick tiny",
    "model pull": "nobody/nothing",
    "init": "--plan",
    "use": "--list",
    "rollback": "--list",
    "demo": "--once",
}
"""Else none: where a command needs one, its usage is what it says."""
TABLES = ("status", "endpoint", "use", "preflight", "explain", "recipe list")
"""Drawn to the terminal's width."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LEFT_OUT = ("run",)
"""An agent is no command of a person's."""
SILENT = (ExitCode.GOOD, ExitCode.ON_THE_WAY, ExitCode.DOWN)
COLUMNS = 80


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    def problem(self, name: str, condition: str) -> str:
        """Empty where the command works, or says why not."""
        text = self.out + self.err
        if "Traceback" in text or "Exception ignored" in text:
            return "a traceback"
        if self.code not in [one.value for one in ExitCode]:
            return f"exit code {self.code}"
        if self.code == ExitCode.BUG and self.err.count("sparkd: ") != 1:
            return "exit code 1 without one line that says why"
        if self.code not in SILENT and not text.strip():
            return f"exit code {self.code} without any output"
        lines = COLOUR.sub("", self.out.replace("\r", "")).splitlines()
        if condition == "80 columns" and name in TABLES and any(len(line) > COLUMNS for line in lines):
            return f"a line of {max(map(len, lines))} columns"
        return ""


def every_command() -> list[str]:
    """Each with its action, such as `recipe list`."""

    def leaves(parser: object, words: tuple[str, ...]) -> list[str]:
        inner = [choices for one in parser._actions if isinstance(choices := one.choices, dict)]  # type: ignore[attr-defined]
        if not inner:
            return [" ".join(words)]
        return [leaf for name, sub in inner[0].items() for leaf in leaves(sub, (*words, name))]

    found = leaves(build_parser(*(name for name, *_ in COMMANDS)), ())
    return [name for name in found if name not in LEFT_OUT]


def run_command(node: Node, name: str, condition: str) -> Outcome:
    words = ["sparkd", *name.split(), *ARGUMENTS.get(name, "").split()]
    if condition == "80 columns":
        words = [f"stty cols {COLUMNS} rows 24; exec {shlex.join(words)}", "/dev/null"]
    done = node.run(*CONDITIONS[condition], *words, check=False, timeout=60)
    return Outcome(done.returncode, done.stdout, done.stderr)
