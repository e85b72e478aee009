"""config.json of a model, as far as it is a table."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sparkd.host.files import Files

LIMIT_BYTES = 4 << 20


def read(files: Files, folder: str) -> Mapping[str, object]:
    """Empty where there is none, or none that can be read: whether a model is whole is told elsewhere."""
    try:
        found = json.loads(files.bytes(f"{folder}/config.json", LIMIT_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
