"""A node that nobody has set up: every command says so, or what it does, and ends with what to do."""

import re
import shlex
import subprocess
import sys

import pytest

UNSET = "this node is not set up: engine.recipe names no recipe"
TO_DO = "sudo sparkd init --plan"
CHOSEN = """
from sparkd.base.cluster.membership import fingerprint_config
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.state.switch import FILE, Stage, Switch
from sparkd.tools.node.switching import load_chosen, write_switch
config, host = Settings(), Host()
to = load_chosen("tiny-cpu", 0, config, host)
write_switch(None, Switch(fingerprint_config(config, host), Stage.IN_FORCE, to, (), 0, 30, "1"), host)
"""
"""A plan that was chosen, as by `sparkd rollback`, on a node without a recipe of its own."""
REFUSED = """
from pathlib import Path
from sparkd.base.status.model import NodeReport, Phase, dump
folder = Path("/run/sparkd")
report = NodeReport("spark1", "head", 0, Phase.FAILED, "now", "", "i", "1", message="no tea")
(folder / "report.json").write_text(dump(report))
(folder / "systemctl").write_text("#!/bin/sh\\nprintf 'ActiveState=failed\\\\nStatusText=no such key (try y)\\\\n'\\n")
(folder / "systemctl").chmod(0o755)
"""
"""A node whose agent ended, and whose next start was refused."""
EMPTY = """
for folder in /etc/sparkd /var/lib/sparkd /run/sparkd; do mkdir -p $folder; mount -t tmpfs none $folder; done
"$0" -c "$1"; shift
exec "$@"
"""


def run(command: str, before: str = "", under: tuple[str, ...] = ()) -> tuple[int, list[str]]:
    """As root, on this machine's kernel without its network, with nothing of sparkd's on the disk. Code and lines."""
    program = [*under, sys.executable, "-m", "sparkd.tools.cli.main", *shlex.split(command)]
    done = subprocess.run(
        ["unshare", "--mount", "--net", "bash", "-euc", EMPTY, sys.executable, before, *program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(
    "command",
    [
        *("plan", "endpoint", "smoke", "bench", "preflight", "use --list", "use tiny-cpu", "run --role head"),
        *("model check", "model pull", "model sync --to x", "image sync --to x", "tune show", "tune apply"),
    ],
)
def test_a_command_that_needs_a_plan_says_only_that_the_node_is_not_set_up(command: str) -> None:
    code, lines = run(command)
    assert (code, len(lines)) == (78, 1 if command.startswith("run ") else 2)
    assert UNSET in lines[0]
    assert TO_DO in lines[-1]


@pytest.mark.parametrize(("command", "code"), [("config check", 0), ("status", 21), ("preflight --dry-run", 78)])
def test_a_command_that_needs_no_plan_says_last_that_the_node_is_not_set_up(command: str, code: int) -> None:
    exit_code, lines = run(command)
    assert exit_code == code
    assert lines[-1] == f"next: {TO_DO}"


@pytest.mark.parametrize(
    ("command", "code", "to_do"),
    [
        ("", 21, f"next: {TO_DO}"),
        (
            "start",
            2,
            r"hint: sudo systemctl start sparkd-head\nhint: on every other node: sudo .* start sparkd-worker$",
        ),
        ("stauts", 2, r"did you mean status\?\nhint: sparkd --help"),
        ("help me", 2, r"no command me\nhint: sparkd --help"),
        ("fabric test", 2, r"a fabric joins two nodes"),
        ("logs", 0, r"no lines since 1h; .*sparkd status"),
        ("notify test", 2, r"man sparkd\.toml"),
        ("model check /etc/hostname", 2, r"is a file, not a model's folder"),
        ("recipe show nemotron", 78, r"sparkd recipe list"),
        ("init", 2, r"--yes .*--plan"),
    ],
)
def test_a_command_that_fails_on_an_unset_node_ends_with_what_to_do(command: str, code: int, to_do: str) -> None:
    exit_code, lines = run(command)
    assert (exit_code, len(lines) <= 3) == (code, True)
    assert re.search(to_do, "\n".join(lines))


def test_a_node_that_runs_what_was_chosen_is_not_called_unset() -> None:
    code, lines = run("use --list", CHOSEN)
    assert code == 0
    assert any(line.startswith("tiny-cpu ") and " in force " in line for line in lines)
    assert run("status", CHOSEN)[1][-1].startswith("next: sudo systemctl start sparkd-head")


def test_a_start_that_was_refused_is_shown_where_no_agent_runs() -> None:
    settings = 'open("/etc/sparkd/sparkd.toml", "w").write("[engine]\\nrecipe = \'tiny-cpu\'")\n'
    without_report = f"{REFUSED}{settings}(folder / 'report.json').unlink()\n"
    for before in (REFUSED, without_report):
        code, lines = run("status", before, under=("env", "PATH=/run/sparkd:/usr/bin:/bin"))
        assert (code, lines[0]) == (21, "not running: no such key (try y)")
        assert (
            lines[1]
            == "next: do what it says, or look at: sudo sparkd config check; then: sudo systemctl start sparkd-head"
        )


def test_systemd_is_not_queried_each_second_while_no_agent_runs() -> None:
    """Each of its answers differs here."""
    before, under = REFUSED.replace("(try y)", "'$(date +%N)'"), ("timeout", "-s", "INT", "4.5", "env")
    _, lines = run("status --watch", before, under=(*under, "PATH=/run/sparkd:/usr/bin:/bin"))
    assert 1 <= sum("not running: no such key" in line for line in lines) <= 2


def test_nothing_fetched_lists_nothing_as_json() -> None:
    assert run("logs --json") == (0, [])


def test_two_builds_of_an_image_at_once_are_refused() -> None:
    """One takes all memory that is available, and would end the other's check."""
    build = "image build deepseek-v4-flash-built --yes"
    code, lines = run(build, under=("flock", "/run/sparkd/image-build.lock"))
    assert (code, lines[-2]) == (2, "sparkd: another `sparkd image build` is under way")
    assert "docker" in run(build)[1][-2], "the next that is looked at"
