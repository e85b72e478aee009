"""systemd-logind, as far as it touches what outlives a session: RemoveIPC= of logind.conf(5), and lingering."""

from __future__ import annotations

from sparkd.host.files import Files
from sparkd.host.unit_syntax import assignments

MAIN = ("/etc/systemd/logind.conf", "/run/systemd/logind.conf", "/usr/lib/systemd/logind.conf")
"""The first that there is counts."""
FOLDERS = ("/etc/systemd/logind.conf.d", "/run/systemd/logind.conf.d", "/usr/lib/systemd/logind.conf.d")
BINARY = "/usr/lib/systemd/systemd-logind"
LINGERING = "/var/lib/systemd/linger"
FALSE = ("no", "false", "off", "0", "n", "f")


def removes_ipc(files: Files) -> bool:
    """Whether a user's segments and semaphores go with the last session. By itself, logind does so."""
    if not files.exists(BINARY):
        return False
    said = "yes"
    for path in (*_main(files), *_drop_ins(files)):
        for one in assignments(files.text(path, limit=1 << 20)):
            if (one.section, one.key) == ("Login", "RemoveIPC") and one.value:
                said = one.value
    return said.lower() not in FALSE


def lingers(files: Files, user: str) -> bool:
    """Whether the user counts as logged in for good."""
    return files.exists(f"{LINGERING}/{user}")


def _main(files: Files) -> tuple[str, ...]:
    return tuple(path for path in MAIN if files.exists(path))[:1]


def _drop_ins(files: Files) -> tuple[str, ...]:
    by_name: dict[str, str] = {}
    for folder in FOLDERS:
        try:
            names = files.names(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        for name in names:
            if name.endswith(".conf"):
                by_name.setdefault(name, f"{folder}/{name}")
    # A link to /dev/null takes its name away.
    return tuple(path for _, path in sorted(by_name.items()) if files.exists(path) and files.stat(path).size_bytes)
