"""`sparkd smoke`: what it says of the KV cache, and what to do about faults."""

import pytest

from sparkd.tools.cli.smoke import describe_cache, list_next


def test_known_texts_that_fail_lead_to_a_download_of_the_model_that_serves() -> None:
    pull = "sudo sparkd model pull org/b --to /srv/models/b"
    assert next(list_next(["known texts 1: odd"], pull, is_too_small=False)) == f"next: {pull}"
    assert not list(list_next(["alone: empty"], pull, is_too_small=False))


@pytest.mark.parametrize(
    ("tokens", "expected", "message", "too_small"),
    [
        (551_107, 612_341, "551,107 tokens, 90% of the recipe's 612,341", False),
        (360_858, 612_341, "59% of the recipe's 612,341; too few", True),
        (360_858, None, "360,858 tokens; nothing known to hold it against", False),
        (None, 612_341, "not reported", False),
    ],
)
def test_a_kv_cache_smaller_than_the_recipes_is_a_fault(
    tokens: int | None, expected: int | None, message: str, too_small: bool
) -> None:
    text, fault = describe_cache(tokens, expected)
    assert message in text
    assert fault is too_small
    assert len("KV cache            " + text) <= 80
