"""`sparkd history`: the launches of this node, and what was measured of each."""

import argparse
from collections.abc import Sequence

from sparkd.agent.actions import history
from sparkd.base.host import Host
from sparkd.base.lib.errors import AS_ROOT, UsageError
from sparkd.base.lib.text import Table, sanitize
from sparkd.base.state.history import PATH, Launch, Row, Smoke
from sparkd.tools.cli import console
from sparkd.tools.measure.past import describe_decline, history_as_json

HEADINGS = ("STARTED (UTC)", "RECIPE", "LOAD", "TOKENS/S", "BAD", "END")
LAST = 20
NONE = "-"


def add_history(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--last", metavar="N", type=int, default=LAST, help=f"show this many launches ({LAST})")
    parser.add_argument("--json", action="store_true", help="print one JSON object, with the facts of each launch")
    parser.set_defaults(run=show_history)


def show_history(args: argparse.Namespace) -> None:
    if not 1 <= args.last <= history.ROWS_KEPT:
        raise UsageError(f"--last: needed is a number from 1 to {history.ROWS_KEPT}")
    files = Host().files
    try:
        rows, totals = history.read(files), history.read_totals(files)
    except PermissionError:
        raise UsageError(f"{PATH} may be read by root and its group alone", AS_ROOT) from None
    except OSError as error:
        raise UsageError(
            f"the history can't be read: {error}", "a broken file is set aside at the next launch"
        ) from None
    launches = [row for row in rows if isinstance(row, Launch)][-args.last :]
    if args.json:
        print(history_as_json(rows, totals, args.last))
    elif launches:
        console.show(
            (Table(table_rows(launches, rows), heading=True, flexible=1, one_line=True), *describe_decline(rows))
        )
    else:
        print("no launch on this node yet")


def table_rows(launches: Sequence[Launch], rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The heading and a row for each launch, the newest first, within 80 columns."""
    smokes = {row.launch: row for row in rows if isinstance(row, Smoke)}
    table: list[tuple[str, ...]] = [HEADINGS]
    for launch in reversed(launches):
        rate, smoke = launch.last_tokens_per_second, smokes.get(launch.id)
        end = (launch.end.cause or launch.end.reason) if launch.end else NONE
        table.append(
            (
                sanitize(launch.at[:16].replace("T", " ")),
                sanitize(launch.recipe, 16),
                NONE if launch.load_seconds is None else f"{launch.load_seconds:,.0f} s",
                NONE if rate is None else f"{rate:,.1f}",
                NONE if smoke is None else str(smoke.bad),
                sanitize(end, 19),
            )
        )
    return table
