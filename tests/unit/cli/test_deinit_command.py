"""`sparkd deinit` names the command that lets go of known good images."""

import os
import subprocess
from pathlib import Path

import pytest

from sparkd.tools.cli.init import REMOVE_KEPT_IMAGES

DOCKER = """#!/bin/sh
case "$1" in
    ps | images) cat "$DOCKER_KEPT/$1" ;;
    *) test $# -gt 1 || exit 1; echo "$@" ;;
esac
"""


@pytest.mark.parametrize(
    ("containers", "names", "removed"),
    [("", "", []), ("c1\nc2\n", "sparkd/known-good:1\n", ["rm c1 c2", "rmi sparkd/known-good:1"])],
)
def test_deinits_command_lets_go_of_what_is_kept_and_of_nothing_where_nothing_is(
    tmp_path: Path,
    containers: str,
    names: str,
    removed: list[str],
) -> None:
    for name, text in (("docker", DOCKER), ("sudo", '#!/bin/sh\nexec "$@"\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "ps").write_text(containers)
    (tmp_path / "images").write_text(names)
    env = {"PATH": f"{tmp_path}:{os.defpath}", "DOCKER_KEPT": str(tmp_path)}
    done = subprocess.run(["sh", "-ec", REMOVE_KEPT_IMAGES], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == removed
    assert REMOVE_KEPT_IMAGES.count("sudo docker") == 4
