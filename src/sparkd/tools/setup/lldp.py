"""Names of the machines at the other end of a cable, where lldpd runs: LLDP frames carry them, unsigned."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from sparkd.base.lib.text import parse_json, sanitize

if TYPE_CHECKING:
    from sparkd.base.host import Host

SOCKET = "/run/lldpd.socket"
COMMAND = ("lldpcli", "-f", "json0", "show", "neighbors")
TIMEOUT_SECONDS = 2.0
MOST, NAME_LIMIT = 32, 64


def read_names(host: Host) -> dict[str, tuple[str, ...]]:
    """By interface; empty where lldpd does not run, or this user may not query it."""
    if not host.live or not host.files.exists(SOCKET):
        return {}
    try:
        done = subprocess.run(COMMAND, capture_output=True, timeout=TIMEOUT_SECONDS, check=True)
        return parse_names(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}


def parse_names(answer: bytes) -> dict[str, tuple[str, ...]]:
    """Of lldpcli's json0. What has another form is left out. Raises ValueError where it is no JSON."""
    found: dict[str, tuple[str, ...]] = {}
    match parse_json(answer):
        case {"lldp": [{"interface": [*interfaces]}]}:
            for one in interfaces[:MOST]:
                match one:
                    case {"name": str(port), "chassis": [{"name": [{"value": str(name)}]}]}:
                        found[port] = (*found.get(port, ()), sanitize(name, NAME_LIMIT))
    return found
