"""A message as each receiver takes it: our JSON, ntfy, Slack and Discord.

Texts may come from a client of the endpoint: none of them may call people, hide a link or break a header.
"""

import json
import re
from collections.abc import Mapping
from html import escape
from typing import TypeAlias

from msgspec.structs import asdict

from sparkd.base.status.notices import LOST, MEMORY_GUARD, NEEDS_PERSON, Notice

_DISCORD_MARKS = re.compile(r"([\\*_~`|<>\[\]()#:@-])")
NO_EMBEDS = 4
"""SUPPRESS_EMBEDS of a Discord message."""
NO_BREAK = "\u2060"
"""Word joiner: invisible, and what follows an @ is no name any more."""

Body: TypeAlias = tuple[bytes, Mapping[str, str]]
"""Content and headers."""


def as_json(notice: Notice) -> bytes:
    return json.dumps({"schema": 1, **asdict(notice), "title": notice.title, "at": notice.stamp}).encode()


def render(template: str, notice: Notice) -> Body:
    """`template`: json, ntfy, slack or discord."""
    match template:
        case "ntfy":
            # The text is the body: no markdown unless a header requests it. Headers are ASCII.
            title = notice.title.encode("ascii", "replace").decode()
            priority = "high" if notice.event in (LOST, MEMORY_GUARD, NEEDS_PERSON) else "default"
            return notice.text.encode(), {"Title": f"sparkd {title}", "Priority": priority}
        case "slack":
            # Receivers that take Slack's format, such as Mattermost, call people at a bare @, too.
            text = escape(f"{notice.title}: {notice.text}", quote=False).replace("@", f"@{NO_BREAK}")
            return _json({"text": text, "mrkdwn": False, "unfurl_links": False, "unfurl_media": False})
        case "discord":
            text = _DISCORD_MARKS.sub(r"\\\1", f"{notice.title}: {notice.text}")
            return _json({"content": text, "allowed_mentions": {"parse": []}, "flags": NO_EMBEDS})
    return as_json(notice), {"Content-Type": "application/json"}


def _json(fields: Mapping[str, object]) -> Body:
    return json.dumps(fields).encode(), {"Content-Type": "application/json"}
