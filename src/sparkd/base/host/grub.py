"""The kernel that GRUB boots next, and the words that GRUB's settings add to its command line."""

import re
import shlex
from contextlib import suppress

from sparkd.base.host.files import Files
from sparkd.base.lib.text import natural_order, sanitize

KERNEL_FILE_PREFIX = "vmlinuz-"
SETTINGS_FILE = "/etc/default/grub"
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_ASSIGNMENT = re.compile(r"^[ \t]*(?:export +)?(GRUB_\w{1,40})(\+?=)(.{0,2000})$", re.MULTILINE | re.ASCII)
_ALTERNATIVE = re.compile(r"\$\{(GRUB_\w+):?([-+])([^{}]*)\}", re.ASCII)
"""`${NAME:-text}` and `${NAME:+$NAME }`, as drop-ins write them that may be read before any value is set."""
_VARIABLE = re.compile(r"\$(?:\{(GRUB_\w+)\}|(GRUB_\w+))", re.ASCII)
_LONGEST_VALUE = 8192
"""Characters; four times the kernel's command line. A value that repeats itself in many drop-ins must end."""


def read_next_boot(files: Files) -> tuple[str, tuple[str, ...]]:
    """The kernel that the next boot takes, and what GRUB's settings add to its command line.

    GRUB takes the highest version in /boot, unless GRUB_DEFAULT names another one. The kernel is empty then, and where
    /boot can't be read.
    """
    with suppress(OSError):
        settings = _read_settings(files)
        # A normal boot has both; the words of GRUB_CMDLINE_LINUX_RECOVERY are for recovery mode alone.
        command_line = (settings.get(key, "") for key in ("GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT"))
        words = tuple(" ".join(command_line).split())
        if (settings.get("GRUB_DEFAULT") or "0") != "0":
            return "", words
        names = (name for name in files.names_if_any("/boot") if name.startswith(KERNEL_FILE_PREFIX))
        releases = (name.removeprefix(KERNEL_FILE_PREFIX) for name in names if not name.endswith((".old", ".bak")))
        return max((sanitize(release, 64) for release in releases), key=natural_order, default=""), words
    return "", ()


def _read_settings(files: Files) -> dict[str, str]:
    """The last value of each variable, as the shell of grub-mkconfig has it; empty for one that can't be parsed."""
    values: dict[str, str] = {}
    drop_ins = (f"{SETTINGS_FILE}.d/{name}" for name in files.names_if_any(f"{SETTINGS_FILE}.d"))
    for path in (SETTINGS_FILE, *(path for path in drop_ins if path.endswith(".cfg"))):
        content = _COMMENT.sub("", files.text_if_any(path) or "").replace("\\\n", "")
        for key, operator, text in _ASSIGNMENT.findall(content):
            value = _parse_value(text, values)
            values[key] = (values.get(key, "") + value if operator == "+=" else value)[:_LONGEST_VALUE]
    return values


def _parse_value(text: str, values: dict[str, str]) -> str:
    try:
        words = shlex.shlex(text, posix=True, punctuation_chars=";")
        words.whitespace_split = True
        value = words.get_token() or ""
    except ValueError:  # a quote that is closed in another line
        return ""
    if text.startswith("'"):
        return value

    def replace_alternative(match: re.Match[str]) -> str:
        present = values.get(match[1], "")
        return match[3] if bool(present) == (match[2] == "+") else present

    value = _VARIABLE.sub(lambda match: values.get(match[1] or match[2], ""), value)
    return _ALTERNATIVE.sub(replace_alternative, value)
