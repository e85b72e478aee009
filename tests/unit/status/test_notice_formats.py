"""A message in each receiver's form, and texts that would do more there than be read."""

import json

import pytest

from sparkd.agent.status.notice_formats import render
from sparkd.base.status.notices import TEXT_LIMIT, Notice

LOST = Notice("lost", "spark1", "tiny no longer serves: <b> & more", "tiny", "engine-ended", 1767268800.0)
HOSTILE = "<!channel> <@U1> @everyone @here <https://x.example|click> [click](https://x.example) **a** `b` &amp; \\"


def fields(template: str, notice: Notice) -> dict[str, object]:
    content, headers = render(template, notice)
    assert headers == {"Content-Type": "application/json"}
    document: dict[str, object] = json.loads(content)
    return document


def test_json_has_every_field_of_the_notice_and_its_title() -> None:
    assert fields("json", LOST) == {
        "schema": 1,
        "event": "lost",
        "title": "spark1: lost",
        "text": "tiny no longer serves: <b> & more",
        "node": "spark1",
        "recipe": "tiny",
        "cause": "engine-ended",
        "at": "2026-01-01T12:00:00+00:00",
    }


def test_ntfy_gets_plain_text_and_a_high_priority_where_a_person_is_needed() -> None:
    content, headers = render("ntfy", LOST)
    assert content == b"tiny no longer serves: <b> & more"
    assert headers == {"Title": "sparkd spark1: lost", "Priority": "high"}
    assert render("ntfy", Notice("serving", "spark1", ""))[1]["Priority"] == "default"


def test_slack_gets_escaped_text_without_markup_or_previews() -> None:
    assert fields("slack", LOST) == {
        "text": "spark1: lost: tiny no longer serves: &lt;b&gt; &amp; more",
        "mrkdwn": False,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def test_discord_gets_escaped_text_that_mentions_nobody() -> None:
    assert fields("discord", LOST) == {
        "content": "spark1\\: lost\\: tiny no longer serves\\: \\<b\\> & more",
        "allowed_mentions": {"parse": []},
        "flags": 4,
    }


@pytest.mark.parametrize("sign", ["<!channel>", "<@U1>", "<https://", "@everyone", "@here", "|click>"])
def test_no_text_calls_people_or_hides_a_link_in_slack(sign: str) -> None:
    text = str(fields("slack", Notice("lost", "spark1", HOSTILE))["text"])
    assert sign not in text and "<" not in text and ">" not in text


@pytest.mark.parametrize("sign", ["<!channel>", "<@U1>", "](", "**", "`b`", "https://"])
def test_no_text_calls_people_or_hides_a_link_in_discord(sign: str) -> None:
    assert sign not in str(fields("discord", Notice("lost", "spark1", HOSTILE))["content"]).replace("\\\\", "")


def test_the_largest_text_fits_into_a_discord_message() -> None:
    notice = Notice("memory-guard", "*" * 64, "*" * TEXT_LIMIT)
    assert len(str(fields("discord", notice)["content"])) <= 2000


def test_a_header_of_ntfy_is_ascii_on_one_line() -> None:
    title = render("ntfy", Notice("lost", "späärk✨", ""))[1]["Title"]
    assert title == "sparkd sp??rk?: lost"
