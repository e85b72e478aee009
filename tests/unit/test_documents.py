"""The documents lead to each other, list every event and cause, and stay short enough to be read."""

import re
from pathlib import Path

import pytest

from sparkd.base.lib.errors import Cause

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULE = re.compile(r"`((?:src/sparkd|base|agent|tools|tests|packaging)/[a-z0-9_/]+\.py)`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_each_link_of_a_document_leads_to_a_file_and_a_heading(path: Path) -> None:
    links = [(path.parent / file if file else path, anchor) for file, anchor in LINK.findall(path.read_text())]
    assert [str(target) for target, _ in links if not target.exists()] == []
    assert [(target.name, anchor) for target, anchor in links if anchor and anchor not in anchors(target)] == []


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path.parent.name != "adr"], ids=lambda path: path.name)
def test_each_module_that_a_document_names_is_there(path: Path) -> None:
    modules = set(MODULE.findall(path.read_text()))
    assert [name for name in modules if not any((ROOT / place / name).exists() for place in ("", "src/sparkd"))] == []


def test_readme_and_the_overview_of_the_manual_are_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 9000
    assert len((ROOT / "docs/sparkd.8.md").read_text().splitlines()) <= 320


def test_each_page_of_the_docs_is_named_by_the_readme_or_a_page_that_it_names() -> None:
    named, unread = {DOCUMENTS[0]}, [DOCUMENTS[0]]
    while unread:
        page = unread.pop()
        targets = {(page.parent / file).resolve() for file, _ in LINK.findall(page.read_text()) if file.endswith(".md")}
        unread += targets - named
        named |= targets
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= {path.name for path in named}


def test_the_manual_lists_every_event_of_the_source() -> None:
    sources = (path.read_text() for path in (ROOT / "src/sparkd").rglob("*.py"))
    named = {name for text in sources for name in re.findall(r'"([a-z_]+\.[a-z_]+\.[a-z_]+)"', text)}
    section = (ROOT / "docs/sparkd-events.7.md").read_text().partition("# JOURNAL EVENTS")[2].partition("\n# ")[0]
    listed = set(re.findall(r"^`(\S+)`\n: \S", section, re.MULTILINE))
    made_of_a_state = {"preflight.fix.applied"}
    others = {"sparkd.service.in", *(name for name in named if name.startswith("vllm."))}  # modules in its image
    assert listed == (named - others) | made_of_a_state


def test_the_manual_lists_every_cause() -> None:
    section = (ROOT / "docs/sparkd-events.7.md").read_text().partition("# CAUSES")[2].partition("\n# ")[0]
    heads = re.findall(r"^(`.+`)\n: \S", section, re.MULTILINE)
    assert sorted(name for head in heads for name in re.findall(r"`([a-z-]+)`", head)) == sorted(Cause)
