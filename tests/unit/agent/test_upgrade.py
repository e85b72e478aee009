"""An upgrade of the package replaces the files of an agent that runs, and restarts nothing: the agent continues without
them.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from tests.unit.agent.kept_ranks import kept_rank
from tests.unit.agent.left_ranks import left_rank
from tests.unit.agent.starts import start_agent
from tests.unit.agent_runs import World, configuration, end, open_world, run_agent, serving
from tests.unit.engine_server import Reply
from tests.unit.node_reports import ALONE
from tests.unit.nodes import until

import sparkd
from sparkd.agent.daemon.configuration_stamp import digest_stamp
from sparkd.agent.daemon.context import Agent, Pace
from sparkd.agent.status.http_api import PATHS, make_handler
from sparkd.base.lib.errors import ExitCode
from sparkd.base.lib.http_connection import Request
from sparkd.base.status.publisher import make_public

PACKAGE = Path(sparkd.__file__).parent


def run_upgraded(scenario: str, folder: Path) -> None:
    """Run a function of this file in a process that has the package in the folder."""
    shutil.copytree(PACKAGE, folder / "sparkd", ignore=shutil.ignore_patterns("__pycache__"))
    program = f"from tests.unit.agent.test_upgrade import {scenario} as run; run()"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), *sys.path))}
    command = (sys.executable, "-c", program)
    completed = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
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


def block_through_upgrade() -> None:
    with open_world(World) as world:
        world.pace = Pace(look_seconds=0.05, look_share=1)
        world.tree.file("/etc/sparkd/sparkd.toml", configuration(world.port, "/none", ("script-paths",)))
        code, journal = run_agent(world, once={"blocked": replace_program})
        assert code is ExitCode.BLOCKED, journal
        assert "sparkd itself, has changed" in journal


def replace_program() -> None:
    (PACKAGE / "new.py").write_text((PACKAGE / "__init__.py").read_text())
    (PACKAGE / "new.py").replace(PACKAGE / "__init__.py")


def test_a_blocked_node_starts_again_with_the_new_version(tmp_path: Path) -> None:
    """Else two nodes that stood by may differ for ever, and advise the upgrade that they have."""
    run_upgraded("block_through_upgrade", tmp_path)


def stamp_through_upgrade() -> None:
    def read_stamp(agent: Agent) -> str:
        agent.actions.release()
        return digest_stamp(agent)

    with open_world(World) as world:
        stamp, _ = start_agent(world.tree, read_stamp)
        replace_program()
        assert start_agent(world.tree, read_stamp)[0] == stamp


def test_an_upgrade_is_no_changed_configuration_of_a_rank_that_is_taken_over(tmp_path: Path) -> None:
    run_upgraded("stamp_through_upgrade", tmp_path)


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


def test_a_load_continues_through_an_upgrade_of_the_units(tmp_path: Path) -> None:
    run_upgraded("load_through_upgrade", tmp_path)


def answer_after_upgrade() -> None:
    handle = make_handler(lambda: make_public(ALONE), lambda: 0.0)
    PACKAGE.rename(PACKAGE.with_name("removed"))
    for path in PATHS:
        assert asyncio.run(handle(Request("127.0.0.1", path, {"host": "127.0.0.1"}))).status < 500, path


def test_page_and_metrics_first_read_after_an_upgrade_are_those_of_the_agent_that_runs(tmp_path: Path) -> None:
    run_upgraded("answer_after_upgrade", tmp_path)
