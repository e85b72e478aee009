"""Commands and files that need root: the hint is the command to paste, and root itself is sent to no sudo."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.commands import SPARKD, bash

from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.text_file import read_file

AS_A_USER = """
import os, sys
import sparkd.tools.cli.drill, sparkd.tools.cli.logs, sparkd.tools.cli.run, sparkd.tools.cli.switching
import sparkd.tools.cli.tune, sparkd.tools.cli.tune_recipe
os.geteuid() or os.seteuid(65534)
from sparkd.tools.cli.main import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "words",
    [
        ("use", "/my recipes/x.yaml"),
        ("tune-recipe", "it's", "--knob", "a=$(b)..2"),
        ("rollback", "--end"),  # without its option it would go back, not end that
        ("tune", "apply", "--watchdog"),
        ("logs", "--since", "2d"),
        ("reload",),  # on a worker, too
        ("drill", "core", "--yes"),
    ],
)
def test_the_same_command_as_root_can_be_pasted(words: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-c", AS_A_USER, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    hint = done.stderr.partition("hint: ")[2]
    assert shlex.split(hint) == ["sudo", "sparkd", *words]


def test_a_file_that_only_root_may_read_is_named_with_what_helps(tmp_path: Path) -> None:
    config, user = tmp_path / "sparkd.toml", os.geteuid()
    config.touch(0)
    os.seteuid(user or 65534)
    try:
        with pytest.raises(ConfigError, match="cannot be read: permission denied; try sudo"):
            read_file(config)
    finally:
        os.seteuid(user)


@pytest.mark.skipif(os.geteuid() != 0, reason="is about root")
def test_root_who_may_not_read_a_file_is_not_sent_to_sudo(tmp_path: Path) -> None:
    """As on a share that takes root for nobody."""
    config = tmp_path / "sparkd.toml"
    config.touch(0o600)
    os.chown(config, 65534, 65534)
    without = "setpriv --bounding-set=-all --inh-caps=-all"
    done = bash(f"SPARKD_CONFIG={config} {without} {SPARKD} config show")
    assert done.stderr.splitlines()[0] == f"sparkd: {config}: cannot be read: permission denied"
