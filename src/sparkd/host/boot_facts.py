"""What this boot of the machine gives an engine to live with: command line, memory, swap, settings of the kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from sparkd.host import Host, kernel, swaps, sysctl
from sparkd.lib.text import sanitize

PLACES = ("BOOT_IMAGE=", "initrd=")
"""Words of the command line that say where the kernel lay: its version says that better."""
LIMIT = 2000


def read(host: Host, sysctls: Iterable[str]) -> Mapping[str, str]:
    """By name; what can't be told is left out. `sysctls` names the settings that are wanted."""
    found: dict[str, str] = {}
    words = [word for word in kernel.command_line(host.files) if not word.startswith(PLACES)]
    if words:
        found["boot.command_line"] = " ".join(words)
    with suppress(OSError, ValueError):
        found["boot.memory"] = _gib(host.meminfo().total_bytes)
    with suppress(OSError, ValueError):
        found["boot.swap"] = ", ".join(f"{one.path} {_gib(one.bytes)}" for one in swaps.read(host.files)) or "off"
    for name in sysctls:
        with suppress(OSError):
            if (value := sysctl.read(host.files, name)) is not None:
                found[f"sysctl.{name}"] = value
    return {name: sanitize(text, LIMIT) for name, text in found.items()}


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
