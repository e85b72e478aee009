"""Commands. Each is a module of this package, imported when used; errors become exit codes here."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from sparkd import __version__
from sparkd.lib.errors import ExitCode, SparkdError

if TYPE_CHECKING:
    import argparse

COMMANDS: tuple[tuple[str, str], ...] = (
    ("preflight", "examine this node, apply the allowed fixes, report what blocks"),
    ("run", "run the node agent (started by systemd)"),
    ("plan", "show how this node's rank would be launched"),
    ("diff", "show what differs from the last start that is known good"),
    ("rollback", "go back to the last plan that is known good, until the configuration changes"),
    ("status", "show what the nodes are doing, from any of them"),
    ("sweep", "stop the container of an agent that is gone"),
    ("units", "render, install, check or remove what systemd runs"),
    ("recipe", "list, show and check recipes"),
    ("model", "check, download or copy the files of a model"),
    ("image", "copy an image of the engine to the other nodes"),
    ("config", "show or check the configuration"),
    ("tune", "show, apply or take back settings of the kernel"),
    ("init", "make the key that the nodes of a cluster sign with"),
)

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
    for name, summary in COMMANDS:
        sub = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == command:
            import_module(f"sparkd.cli.{name}").arguments(sub)
    return parser


def main(argv: list[str] | None = None) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8, a path that is not text
    words = sys.argv[1:] if argv is None else argv
    if words == ["--version"]:
        print(f"sparkd {__version__}")
        return ExitCode.GOOD
    command = next((word for word in words if not word.startswith("-")), None)
    args = _parser(command).parse_args(words)
    from importlib import import_module

    from sparkd.lib import log

    log.clean_stderr()
    try:
        return int(import_module(f"sparkd.cli.{args.command}").run(args))
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
