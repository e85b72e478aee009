"""Another node as `ssh` reaches it: its shell is this one's."""

import os
from pathlib import Path

from sparkd.tools.models.image_copy import SCRATCH
from sparkd.tools.models.ssh import SshHost


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def make_peer(bin_folder: Path, **scripts: str) -> SshHost:
    """A node whose shell is this one's, in a home of its own, with programs of its own."""
    home = bin_folder.parent / "far"
    (home / SCRATCH).mkdir(parents=True)
    write_program(bin_folder / "ssh", f'PATH={home}:{os.defpath}; cd {home}; for last; do :; done; eval "$last"')
    for name, text in scripts.items():
        write_program(home / name, text)
    return SshHost("far")
