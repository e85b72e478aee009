"""The commands, each with the module that is imported when it is used; errors become exit codes here."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from sparkd import __version__
from sparkd.lib.errors import ExitCode, SparkdError

if TYPE_CHECKING:
    import argparse

COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("preflight", "preflight", "examine this node, apply the allowed fixes, report what blocks"),
    ("run", "run", "run the node agent (started by systemd)"),
    ("plan", "config", "show how this node's rank would be launched"),
    ("diff", "known_good", "show what differs from the last start that is known good"),
    ("rollback", "known_good", "go back to the last plan that is known good, until the configuration changes"),
    ("explain", "explain", "say what a known error in a log means, and what to do"),
    ("status", "status", "show what the nodes are doing, from any of them"),
    ("sweep", "run", "stop the container of an agent that is gone"),
    ("units", "setup", "render, install, check or remove what systemd runs"),
    ("recipe", "recipe", "list, show and check recipes"),
    ("model", "model", "check, download or copy the files of a model"),
    ("image", "sync", "copy an image of the engine to the other nodes"),
    ("config", "config", "show or check the configuration"),
    ("tune", "setup", "show, apply or take back settings of the kernel"),
    ("init", "setup", "make the key that the nodes of a cluster sign with"),
)
"""Name, module and summary; the module's `add_NAME` declares the options and the function that runs."""

EPILOG = """exit codes: 0 good, 1 bug, 2 usage, 10 blocked or another owner, 11 launch failed, 12 not ready in time,
13 engine ended, 14 peer lost, 15 engine stalled, 16 memory guard, 17 the node needs a person, 78 wrong configuration"""


def _parser(command: str | None) -> argparse.ArgumentParser:
    import argparse
    from importlib import import_module

    parser = argparse.ArgumentParser(
        prog="sparkd",
        description="Node agent of NVIDIA DGX Spark machines: preflight, launch and watch a vLLM rank.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sparkd {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module, summary in COMMANDS:
        sub = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == command:
            getattr(import_module(f"sparkd.cli.{module}"), f"add_{name}")(sub)
    return parser


def main(argv: list[str] | None = None) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8, a path that is not text
    words = sys.argv[1:] if argv is None else argv
    if words == ["--version"]:
        print(f"sparkd {__version__}")
        return ExitCode.GOOD
    command = next((word for word in words if not word.startswith("-")), None)
    try:
        args = _parser(command).parse_args(words)
        from sparkd.lib import log

        log.clean_stderr()
        return int(args.run(args) or ExitCode.GOOD)
    except SparkdError as error:
        for line in str(error).splitlines():
            print(f"sparkd: {line}", file=sys.stderr)
        return error.code
    except BrokenPipeError:
        sys.stderr.close()
        return ExitCode.GOOD
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
