"""Results of image.assert: by image and assertions; bounded."""

from msgspec.structs import replace
from tests.unit.verdicts import present

from sparkd.base.state.launch_history import FAULT_LIMIT, IMAGES_KEPT, AssertResult, LaunchHistory

EMPTY = LaunchHistory()
CHECKED = AssertResult("no deep_gemm", 1.5, "2026-11-22T18:00:00Z")


def test_a_result_holds_for_one_image_and_its_assertions() -> None:
    history = EMPTY.record_asserts("sha256:1", "true", CHECKED)
    assert history.assert_result("sha256:1", "true") == CHECKED
    assert history.assert_result("sha256:2", "true") is None
    assert history.assert_result("sha256:1", "false") is None


def test_the_oldest_results_go() -> None:
    history = EMPTY
    for number in (*range(IMAGES_KEPT + 3), 3):
        history = history.record_asserts(str(number), "true", CHECKED)
    checked = [number for number in range(IMAGES_KEPT + 3) if history.assert_result(str(number), "true")]
    assert checked == [3, *range(4, IMAGES_KEPT + 3)]
    assert history.record_asserts("new", "true", CHECKED).assert_result("3", "true"), "it was checked again"


def test_a_fault_is_shown_on_one_line_of_bounded_length() -> None:
    history = EMPTY.record_asserts("i", "p", replace(CHECKED, fault="a\nb\x1b[31m" + "c" * 5000))
    result = present(history.assert_result("i", "p"))
    assert result.fault.isprintable()
    assert len(result.fault) <= FAULT_LIMIT
