"""Debian into a folder or a tar file, from the mirror that mmdebstrap knows for its suite."""

from collections.abc import Sequence
from pathlib import Path

from .command import run
from .needs import DEBIAN_KEYS

SLIM = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("doc", "man", "locale", "info")]


def bootstrap(suite: str, packages: Sequence[str], target: Path, variant: str) -> None:
    include = f"--include={','.join(packages)}"
    options = ["--quiet", "--mode=root", f"--variant={variant}", f"--keyring={DEBIAN_KEYS}", include, *SLIM]
    # What it mounts in the tree is then seen by nobody who might clear the tree away.
    run("unshare", "--mount", "mmdebstrap", *options, suite, target)
