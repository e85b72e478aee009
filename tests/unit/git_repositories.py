"""Git repositories in a folder, for the git step of an image's build, which takes them from the internet."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

URL = "https://example.invalid/"


def served_from(folder: str) -> Mapping[str, str]:
    """Variables by which git takes the repositories of the folder in place of those below URL."""
    settings = {f"url.file://{folder}/.insteadOf": URL, "protocol.file.allow": "always"}
    keys = {f"GIT_CONFIG_KEY_{number}": key for number, key in enumerate(settings)}
    values = {f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(settings.values())}
    return {**keys, **values, "GIT_CONFIG_COUNT": str(len(settings))}


def make_repositories(folder: Path) -> str:
    """`outer`, with `inner` as a submodule. The hash of a commit of `outer` that no branch ends with."""
    for name in ("inner", "outer"):
        (folder / name).mkdir(parents=True)
        _git(folder / name, "init", "--quiet")
    _commit(folder / "inner", "below")
    _git(folder / "outer", "submodule", "--quiet", "add", f"{URL}inner")
    commit = _commit(folder / "outer", "wanted")
    _commit(folder / "outer", "later")
    return commit


def _commit(folder: Path, text: str) -> str:
    (folder / "file").write_text(text)
    _git(folder, "add", "--all")
    _git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", text)
    return _git(folder, "rev-parse", "HEAD")


def _git(folder: Path, *words: str) -> str:
    env = {**os.environ, **served_from(str(folder.parent))}
    return subprocess.run(
        ["git", *words], cwd=folder, env=env, check=True, capture_output=True, text=True
    ).stdout.strip()
