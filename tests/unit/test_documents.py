"""The documents lead to each other, and stay short enough to be read."""

import re
from pathlib import Path

import pytest

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
