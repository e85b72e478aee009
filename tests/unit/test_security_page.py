"""The tests, events and files that docs/security.md names are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text()


def test_each_test_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"\btests/[\w/]+\.py", PAGE))
    assert len(named) > 10
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []


def test_each_event_and_file_that_the_page_names_is_in_the_manual() -> None:
    manual = (ROOT / "docs/sparkd.8.md").read_text() + (ROOT / "docs/sparkd-events.7.md").read_text()
    named = re.findall(r"`([a-z]+\.[a-z]+\.foreign|/run/sparkd/[\w/]+|[\w-]+\.json)`", PAGE)
    assert len(named) > 3
    assert [name for name in named if name not in manual] == []
