"""The entry point: the table of commands, whose modules are imported only where used. Errors become exit codes here."""

from __future__ import annotations

import errno
import gc
import io
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from sparkd import __version__
from sparkd.base.lib.errors import AS_ROOT, Cause, ExitCode, SparkdError, UsageError

if TYPE_CHECKING:
    import argparse
    from typing import TextIO

COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("preflight", "preflight", "examine this node, apply the allowed fixes, report what blocks"),
    ("run", "run", "run the node agent (started by systemd)"),
    ("plan", "plan", "show how this node's rank would be launched"),
    ("diff", "switching", "show what differs from the last start that is known good"),
    ("rollback", "switching", "go back to the last plan that is known good, until the configuration changes"),
    ("use", "switching", "change to another recipe, and go back by itself where that does not serve"),
    ("explain", "explain", "say what a known error in a log means, and what to do"),
    ("status", "status", "show what the nodes are doing, from any of them"),
    ("logs", "logs", "show what the nodes have logged, agents and engines together, by time"),
    ("capture", "logs", "put what a helper needs of the nodes into one archive, without secrets"),
    ("endpoint", "endpoint", "say how clients reach the API, with a configuration for some programs"),
    ("smoke", "smoke", "test whether the endpoint's answers make sense, alone and at once"),
    ("warm", "warm", "compile the kernels of the endpoint's requests now, before its clients wait for them"),
    ("drill", "drill", "kill one part of what serves here, on purpose, and watch how it comes back"),
    ("tune-recipe", "tune_recipe", "try a recipe's flags step by step, and write the best values as a recipe"),
    ("bench", "bench", "measure how fast the endpoint answers, beside the recipe's figures and the usual ones"),
    ("fabric", "fabric", "measure how fast the ports between the nodes are"),
    ("history", "history", "show the launches on this node, and what was measured of each"),
    ("reload", "run", "exchange the agent for the installed version, while its engine serves on"),
    ("sweep", "run", "stop the container of an agent that is gone"),
    ("units", "units", "render, install, check or remove what systemd runs"),
    ("recipe", "recipe", "list, show and check recipes"),
    ("model", "model", "check, download or copy the files of a model"),
    ("image", "image", "build an image of the engine, or copy it to the other nodes"),
    ("config", "config", "show or check the configuration"),
    ("tune", "tune", "show, apply or take back settings of the kernel"),
    ("notify", "notify", "send messages to people, or test whether they arrive"),
    ("init", "init", "set up this node: recipe, settings, the cluster's key; invite other nodes, or join them"),
    ("deinit", "init", "take back what `init` wrote"),
    ("demo", "demo", "show status, preflight, explain and the page on example nodes, without a Spark"),
)
"""Name, module and summary.

The module's `add_NAME` sets the options and the default `run`, which is the function of the command. Where root alone
may run the command, it also sets `as_root`: reason and hint of the UsageError for others.
"""

GROUPS = {
    "set up": "init deinit recipe model image config tune notify",
    "serve": "preflight plan use rollback warm reload drill",
    "look": "status logs history diff endpoint explain capture demo",
    "measure": "smoke bench fabric tune-recipe",
    "plumbing": "units run sweep",
}
"""The commands as `--help` shows them, by what a person is about to do."""
WITH_ACTIONS = frozenset(("units", "recipe", "model", "image", "config", "tune", "notify", "fabric"))
LOOKING = frozenset(("--plan", "--list", "--dry-run", "--help", "-h", "--version", "render"))
"""Words with which any command only prints."""
PRINTING = frozenset((*GROUPS["look"].split(), "plan", "recipe", "config"))
"""Commands that only print, or do so once their work is done: their reader may leave without cutting it short."""
COMPLETE = "__complete"
"""The command that the completions of shells call."""
SYSTEMCTL = ("start", "stop", "restart", "enable", "disable")
"""Words for which a person wants systemctl: systemd starts and stops the units."""
EPILOG = """exit codes: 0 good, 1 bug, 2 usage, 10 blocked or another owner,
11 launch failed, 12 not ready in time, 13 engine ended, 14 peer lost,
15 engine stalled, 16 memory guard, 17 the node needs a person,
20 on the way and 21 down (of status), 78 wrong configuration

next: sparkd COMMAND --help; to set up this node: sudo sparkd init --plan"""
HINTS = {errno.ENOSPC: "df -h", errno.EROFS: "findmnt --options ro"}


def build_parser(*used: str) -> argparse.ArgumentParser:
    """The parser. Only the commands that are `used` get their options; the others have just their summaries."""
    from importlib import import_module

    from sparkd.tools.cli.parser import Parser, add_action

    parser = Parser(prog="sparkd")
    parser.add_argument("--version", action="version", version=f"sparkd {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module, summary in COMMANDS:
        command_parser = add_action(commands, name, summary)
        if name in used:
            getattr(import_module(f"sparkd.tools.cli.{module}"), f"add_{name.replace('-', '_')}")(command_parser)
    return parser


def overview() -> str:
    """What `sparkd --help` prints: the commands in groups, within 80 columns."""
    from textwrap import wrap

    summaries = {name: summary for name, _, summary in COMMANDS}
    parts = ["usage: sparkd [COMMAND]   without one: as sparkd status", ""]
    parts += ["Node agent of NVIDIA DGX Spark machines: preflight, launch and watch vLLM."]
    for title, names in GROUPS.items():
        parts += ["", f"{title}:"]
        for name in names.split():
            first, *rest = wrap(summaries[name], 65)
            parts += [f"  {name:<13}{first}", *(f"{'':15}{line}" for line in rest)]
    return "\n".join([*parts, "", EPILOG])


def main(argv: list[str] | None = None) -> int:
    _replace_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8, a path that is not text
    words, code = sys.argv[1:] if argv is None else argv, int(ExitCode.GOOD)
    try:
        code = _run_reported(words)
        sys.stdout.flush()  # a full disk is an error of the command, while it can still be reported
    except BrokenPipeError:
        only_prints = not words or words[0] in PRINTING or not LOOKING.isdisjoint(words)
        code = code or (0 if only_prints else 141)  # as a shell has it for SIGPIPE
        _discard_output(sys.stdout)
    except OSError as error:
        reason = ": ".join(filter(None, (str(error.filename or ""), (error.strerror or str(error)).lower())))
        hint = getattr(error, "hint", HINTS.get(error.errno or 0, ""))  # a FolderError's
        code = _report_error(SparkdError(reason, hint, cause=Cause.SYSTEM_ERROR), words)
        _discard_output(sys.stdout)
    except KeyboardInterrupt:
        code = 130
    return code


def _run_reported(words: list[str]) -> int:
    """Run the command, and report its error: a reader that has left hides none. Returns the exit code."""
    try:
        return _run_command(words)
    except SparkdError as error:
        with suppress(OSError):
            sys.stdout.flush()  # what was printed comes before the error
        return _report_error(_add_help_hint(error, words), words)
    except KeyboardInterrupt:
        return 130


def _replace_closed_streams() -> None:
    """Open /dev/null for each closed stream (<&-, >&-, 2>&-), which is None in Python."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115, PTH123 - until the end


def _add_help_hint(error: SparkdError, words: list[str]) -> SparkdError:
    """Refer to the command's help where a UsageError has no hint of its own, or to the command with sudo."""
    if error.code is not ExitCode.USAGE or (error.hint and AS_ROOT not in error.hint):
        return error
    from shlex import join

    command = words[: 2 if WITH_ACTIONS.intersection(words[:1]) else 1]
    hint = error.hint.replace(AS_ROOT, join(("sudo", "sparkd", *words)))
    return UsageError(error.reason, hint or join(("sparkd", *command, "--help")))


def _report_error(error: SparkdError, words: list[str]) -> int:
    """Report the error on stderr, and with --json also as an object on stdout, where these can be written."""
    try:
        print(error.lines, file=sys.stderr)
    except OSError:
        _discard_output(sys.stderr)
    if "--json" in words:
        from sparkd.tools.cli.console import show_json

        with suppress(OSError):
            show_json(error={"code": error.code, "cause": error.cause, "reason": error.reason, "hint": error.hint})
    return error.code


def _run_command(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if words in (["--version"], ["version"]):
        print(f"sparkd {__version__}")
        return ExitCode.GOOD
    if words in (["--help"], ["-h"]):
        print(overview())
        return ExitCode.GOOD
    words = words or ["status"]
    if words[:1] == [COMPLETE]:  # in no help, and fast
        from sparkd.tools.cli.complete import complete

        complete("".join(words[1:2]))
        return ExitCode.GOOD
    _refuse_unknown(words[0])
    gc.disable()  # imports leave no garbage, and to look for it takes a tenth of their time
    args = build_parser(next((word for word in words if not word.startswith("-")), "")).parse_args(words)
    gc.enable()
    from sparkd.base.lib import log

    log.clean_stderr()
    if "as_root" in args and os.geteuid():
        raise UsageError(*args.as_root)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL and args.command != "run":
        # By the launcher: imports end without a traceback.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with suppress(RuntimeError):  # no room for a thread
            threading.Thread(target=end_where_it_hangs, daemon=True).start()
    return int(args.run(args) or ExitCode.GOOD)


def end_where_it_hangs(seconds: int = 10) -> None:
    """End the command once Ctrl-C has had no effect for so long: the main thread hangs, as at a dead file server.

    For a thread of its own.
    """
    # Else SIGINT would not be listed as pending, and this thread would take what the main thread holds back.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM))
    from pathlib import Path

    hanging_seconds = 0
    while hanging_seconds < seconds:
        time.sleep(1.0)
        state = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[0]  # of the main thread
        hanging_seconds = hanging_seconds + 1 if state == "D" and signal.SIGINT in signal.sigpending() else 0
    if sys.stderr.isatty():
        os.write(2, b"\x1b[?25h\n")  # a progress bar hides the cursor
    os._exit(130)


def _refuse_unknown(word: str) -> None:
    """Raise UsageError for an unknown command; it names the likely one."""
    names = [name for name, _, _ in COMMANDS]
    if word.startswith("-") or word in names:
        return
    from sparkd.base.lib.text import did_you_mean, sanitize

    if word in SYSTEMCTL:
        hint = f"sudo systemctl {word} sparkd-head\non every other node: sudo systemctl {word} sparkd-worker"
        raise UsageError(f"systemd does that: there is no command {word}", hint)
    raise UsageError(f"there is no command {sanitize(word, 40)}{did_you_mean(word, names)}", "sparkd --help")


def _discard_output(stream: TextIO) -> None:
    """Drop what is left in the buffer: else the interpreter would report at its end that it can't be written."""
    with suppress(OSError):  # no file below it
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
