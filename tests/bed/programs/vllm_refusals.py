"""In the engine's image: the table of its parser, and what the parser says to lines of words. Lines in, answers out, as
JSON files."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from pathlib import Path

from parser_program import describe, make_parsers  # type: ignore[import-not-found]


def refusal(parser: argparse.ArgumentParser, words: list[str]) -> str:
    """What it says to words that it ends for; empty where it takes them."""
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            parser.parse_args(words)
    except SystemExit as end:
        assert end.code == 2, (words, end.code)
        return stderr.getvalue().strip().splitlines()[-1]
    except Exception as error:  # it has no handler for some of them, and ends as well
        return repr(error)
    return ""


if __name__ == "__main__":
    parser, serve = make_parsers()
    lines = json.loads(Path(sys.argv[1]).read_text())
    answers = {"table": describe(serve), "refusals": [refusal(parser, words) for words in lines]}
    Path(sys.argv[2]).write_text(json.dumps(answers))
