"""Which names of images an entry of `cluster.allow.images` permits."""

import pytest

from sparkd.base.plan.allowed import is_permitted

DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("entry", "permitted", "refused"),
    [
        ("x/y", ("x/y", "x/y:1", "x/y/z:1", f"x/y@{DIGEST}"), ("x/yz", "x/y-evil:1")),
        ("x/y:1", ("x/y:1",), ("x/y:11", "x/y:2", f"x/y:1@{DIGEST}")),
        ("host:5000", ("host:5000/y:1", f"host:5000/y@{DIGEST}"), ("host:50001/y",)),
        ("x/", ("x/y", "x/y:1", f"x/y@{DIGEST}"), ("xy/z",)),
        ("x/y@", (f"x/y@{DIGEST}",), ("x/y", "x/y:1")),
        (f"x/y@{DIGEST}", (f"x/y@{DIGEST}",), (f"x/y@sha256:{'b' * 64}", f"x/y:1@{DIGEST}")),
    ],
)
def test_an_entry_permits_names_that_continue_where_a_part_of_it_ends_and_a_tag_permits_no_digest(
    entry: str, permitted: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    assert [image for image in permitted if not is_permitted(image, entry)] == []
    assert [image for image in refused if is_permitted(image, entry)] == []
