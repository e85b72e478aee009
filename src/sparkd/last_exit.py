"""last-exit.json: why the life before this one ended. Anybody may read it, so what goes in is redacted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from sparkd.errors import ExitCode, SparkdError
from sparkd.report.node_report import Phase, utc_now

FILE = "last-exit.json"
KILLED = "its agent ended without a word: killed, a bug, or a power cut"
STOPPED = "a stop was asked for"


def untold() -> str:
    """The file's text from the start of a life until its end can be told: nobody else would tell of a power cut."""
    return _text(None, KILLED)


def stopped() -> str:
    return _text(int(ExitCode.GOOD), STOPPED)


def failed(error: SparkdError, phase: Phase, redact: Callable[[str], str]) -> str:
    return _text(int(error.code), redact(error.reason), redact(error.hint), phase.value)


def _text(code: int | None, reason: str, hint: str = "", phase: str = "") -> str:
    fields = {"schema": 1, "code": code, "reason": reason, "hint": hint, "phase": phase, "at": utc_now()}
    return json.dumps(fields, indent=1) + "\n"


def cause(state: Path) -> str:
    """Why the last life ended; empty where it was asked to stop, or where the file says nothing."""
    try:
        text = (state / FILE).read_text(encoding="utf-8", errors="replace")
        match json.loads(text):
            case {"schema": 1, "code": None, "reason": str(reason)}:
                return reason
            case {"schema": 1, "code": int(code), "reason": str(reason)} if code != ExitCode.GOOD:
                return f"{reason} (exit {code})"
    except (OSError, ValueError, RecursionError):
        pass
    return ""
