"""The launch script: what bash runs in the container. Its text holds no secret."""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote

from sparkd.launch.plan import Assertion, LineCount, Secret

SCRIPT_TARGET = "/run/sparkd-launch.sh"
USER_SCRIPT_TARGET = "/run/sparkd-user-script"
SECRETS_TARGET = "/run/sparkd-secrets"
ASSERT_FAILED = 64
"""Exit code of a script whose image is not what the recipe needs."""

NOT_AS_NEEDED = "the image is not what the recipe needs"
"""How the line begins that tells of it."""
_COUNT = (
    # grep ends with 1 where it finds nothing, and with 2 where it can't look.
    'found=$(grep -c -e "$1" -- "$2") || test $? = 1 || found=unread; test "$found" = "$3" || '
    f'{{ echo "{NOT_AS_NEEDED}: lines of $2 that match $1: $found, and $3 needed" >&2; exit 1; }}'
)
"""Program for bash: $1 is the pattern, $2 the file, $3 how often."""

_HEAD = """\
#!/bin/bash
# {title}
# Made by sparkd at every start: changes here are lost.
set -euo pipefail

# One function, so that bash has read all of it before a variable below can change how bash reads.
launch() {{
"""


def render(
    title: str,
    commands: Iterable[str],
    env: Iterable[tuple[str, str]],
    secrets: Iterable[Secret],
    asserts: Iterable[Assertion] = (),
    secrets_folder: str = SECRETS_TARGET,
) -> str:
    """Text of a bash script that runs `commands`, lines of bash, with `env` and the secrets in its environment."""
    lines = [f"  export {name}={quote(value)}" for name, value in env]
    for secret in secrets:
        lines.append(f"  {secret.name}=$(<{quote(f'{secrets_folder}/{secret.name}')})")
        lines.append(f'  : "${{{secret.name}:?the file of this secret is empty}}"')
        lines.append(f"  export {secret.name}")
    lines += [_asserted(one) for one in asserts]
    lines += [f"  {line}" for line in commands]
    title = " ".join(title.split())
    return _HEAD.format(title=title) + "\n".join(lines) + "\n}\n\nlaunch\n"


def engine(argv: Iterable[str]) -> list[str]:
    """The line that execs exactly these words."""
    return [f"exec -- {_folded(argv)}"]


def _asserted(wanted: Assertion) -> str:
    if isinstance(wanted, LineCount):
        words = " ".join(quote(word) for word in (wanted.pattern, wanted.file, str(wanted.times)))
        return f"  bash -c {quote(_COUNT)} count {words} || exit {ASSERT_FAILED}"
    said = quote(f"{NOT_AS_NEEDED}: {wanted}")
    return f"  bash -c -- {quote(wanted)} >/dev/null || {{ echo {said} >&2; exit {ASSERT_FAILED}; }}"


def _folded(argv: Iterable[str]) -> str:
    """Quoted words, each flag on a line of its own with its values."""
    text = ""
    for word in argv:
        text += (" \\\n    " if word.startswith("--") else " ") + quote(word)
    return text.lstrip()
