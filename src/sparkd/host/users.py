"""Names of users, from /etc/passwd alone: a network directory must not hang a probe."""

from __future__ import annotations

from sparkd.host.files import Files


def name(files: Files, uid: int) -> str:
    """The user's name, or `uid N`."""
    try:
        lines = files.text("/etc/passwd").splitlines()
    except OSError:
        lines = []
    for line in lines:
        fields = line.split(":")
        if len(fields) > 2 and fields[2] == str(uid):
            return fields[0]
    return f"uid {uid}"
