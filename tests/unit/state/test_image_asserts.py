"""Results of image.assert: kept by image and assertions, bounded, and never a reason to fail."""

from __future__ import annotations

import os

import pytest
from tests.tree import Tree

from sparkd.host import Host
from sparkd.state.image_asserts import FAULT_LIMIT, FILE, KEPT, ImageAsserts, Result, read_result, result_key

GOOD = Result("", 1.5, "2026-11-22T18:00:00Z")


def test_a_result_holds_for_one_image_and_its_assertions(tree: Tree) -> None:
    tree.file(FILE.path, FILE.encode(ImageAsserts().record(result_key("sha256:1", "true"), GOOD)))
    files = Host(tree.root).files
    assert read_result(files, "sha256:1", "true") == GOOD
    assert read_result(files, "sha256:2", "true") is None
    assert read_result(files, "sha256:1", "false") is None


def test_the_oldest_results_go() -> None:
    kept = ImageAsserts()
    for number in range(KEPT + 3):
        kept = kept.record(str(number), GOOD)
    kept = kept.record("3", GOOD)
    assert list(kept.results) == [*map(str, range(4, KEPT + 3)), "3"]


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 1, "results": {"x": 7}}'])
def test_a_file_that_is_wrong_means_that_nothing_was_checked(tree: Tree, content: str) -> None:
    tree.file(FILE.path, content)
    assert read_result(Host(tree.root).files, "sha256:1", "true") is None


def test_a_fault_is_shown_on_one_line_of_bounded_length(tree: Tree) -> None:
    result = Result("a\nb\x1b[31m" + "c" * 5000, 1.5, "")
    tree.file(FILE.path, FILE.encode(ImageAsserts().record(result_key("i", "p"), result)))
    found = read_result(Host(tree.root).files, "i", "p")
    assert found is not None
    assert found.fault.isprintable()
    assert len(found.fault) <= FAULT_LIMIT
    assert os.linesep not in found.fault
