"""An upgrade of the package replaces the files of an agent that runs, and restarts nothing: the agent goes on without
them.
"""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from tests.unit.agent.kept_ranks import kept_rank
from tests.unit.agent.left_ranks import left_rank
from tests.unit.agent_runs import World, end, open_world, run_agent, serving
from tests.unit.engine_server import Reply
from tests.unit.nodes import until

import sparkd
from sparkd.base.lib.errors import ExitCode

PACKAGE = Path(sparkd.__file__).parent


def run_upgraded(scenario: str, folder: Path) -> None:
    """Run a function of this file in a process that has the package in the folder."""
    shutil.copytree(PACKAGE, folder / "sparkd", ignore=shutil.ignore_patterns("__pycache__"))
    program = f"from tests.unit.agent.test_upgrade import {scenario} as run; run()"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), *sys.path))}
    completed = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr


def stop_after_upgrade() -> None:
    def upgrade() -> None:
        until(lambda: "on port" in str(world.read("run/sparkd/report.json")["message"]))
        until(lambda: "containers" not in [thread.name for thread in threading.enumerate()])
        PACKAGE.rename(PACKAGE.with_name("removed"))
        end()

    with open_world(World) as world, left_rank(world.tree, kept_rank()):
        code, journal = run_agent(world, once={"serving": upgrade})
        assert code is ExitCode.GOOD, journal
        assert world.last_exit.cause == "stop-requested", journal


def test_an_agent_that_has_taken_a_rank_over_ends_it_after_an_upgrade(tmp_path: Path) -> None:
    run_upgraded("stop_after_upgrade", tmp_path)


def load_through_upgrade() -> None:
    upgraded = threading.Event()

    def reply(request: str, text: str) -> Reply:
        return serving(request, text) if upgraded.is_set() else (404, b"")

    def upgrade() -> None:
        with (PACKAGE / "data/units/sparkd.service.in").open("a") as template:
            template.write("# $what_only_a_later_version_knows\n")
        upgraded.set()

    with open_world(World, reply) as world:
        code, journal = run_agent(world, once={"loading": upgrade, "serving": end})
        assert code is ExitCode.GOOD, journal


def test_a_load_goes_on_through_an_upgrade_of_the_units(tmp_path: Path) -> None:
    run_upgraded("load_through_upgrade", tmp_path)
