"""A blocked run waits in its process until it is repaired, stopped, or configured differently."""

import json
import re
import threading
import time
from typing import Any

import pytest
from tests.unit.agent_runs import World, configuration, end, phases, run_agent
from tests.unit.conftest import Said

from sparkd.agent.daemon import blocked, hooks
from sparkd.agent.preflight.check import Finding, Level, Verdict
from sparkd.agent.preflight.gate import HANG_HINT
from sparkd.agent.preflight.runner import IDS, examine
from sparkd.base.lib.errors import ExitCode

SCRIPT = "/srv/scripts/rank.sh"


@pytest.fixture
def ghost(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose engine.script does not exist. It looks again fast, and without a change tries again in minutes."""
    monkeypatch.setattr(blocked, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(blocked, "LOOK_SHARE", 1)
    monkeypatch.setattr(blocked, "RETRY_SECONDS", (300.0,))
    world.tree.file("/etc/sparkd/sparkd.toml", configuration(world.port, SCRIPT, ("script-paths",)))
    return world


def test_a_blocked_node_serves_in_the_same_process_once_it_is_repaired(ghost: World, said: Said) -> None:
    repair = ghost.once("blocked", lambda: ghost.tree.file(SCRIPT, 'exec "$@"\n'))
    ending = ghost.once("serving", end)
    code, journal = run_agent(ghost)
    repair.join()
    ending.join()
    assert code is ExitCode.GOOD, journal
    assert phases(journal) == ["blocked", "launching", "loading", "serving", "stopping", "stopped"]
    (blocked_line,) = [line for line in journal.splitlines() if line.startswith("<3>agent.run.blocked")]
    assert f"{SCRIPT} does not exist (engine.script)" in blocked_line
    assert " cause=blocked action=inspect " in blocked_line
    assert any(
        re.match(rf"STATUS=blocked: script-paths: {SCRIPT}.*; since \d{{4}}-\d\d-\d\d \d\d:\d\d UTC", message)
        for message in said()
    )


def ends_after(tries: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Ends the run with this try; when each began."""
    times: list[float] = []

    def examined(*values: Any) -> Any:
        times.append(time.monotonic())
        if len(times) == tries:
            end()
        return examine(*values)

    monkeypatch.setattr("sparkd.agent.preflight.gate.examine", examined)
    return times


def test_an_hour_blocked_is_few_lines_and_no_container(ghost: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "RETRY_SECONDS", (0.01,))
    ghost.tree.file("/etc/sparkd/sparkd.toml", configuration(ghost.port, SCRIPT, tuple(IDS)))
    ends_after(20, monkeypatch)  # an hour has some 14 tries
    code, journal = run_agent(ghost)
    assert code is ExitCode.GOOD, journal
    assert len(journal.splitlines()) <= 60
    assert all(request.startswith("GET ") for request in ghost.requests)


def test_what_no_check_sees_is_tried_again_at_its_own_pace(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(blocked, "RETRY_SECONDS", (0.1, 0.6))
    world.tree.file("/etc/sparkd/preflight.d/10-site", "#!/bin/sh\nexit 1\n", mode=0o755)
    finding = Finding("hook:10-site", Verdict(Level.BLOCK, "no"), {}, 0.0)
    monkeypatch.setattr(hooks, "run_hooks", lambda *_: (finding,))
    times = ends_after(3, monkeypatch)
    code, journal = run_agent(world)
    assert code is ExitCode.GOOD, journal
    assert times[1] - times[0] >= 0.1
    assert times[2] - times[1] >= 0.6


def test_a_look_that_hangs_is_the_only_one_and_its_end_is_a_change(
    ghost: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked, "HANG_SECONDS", 0.05)
    monkeypatch.setattr(blocked, "RETRY_SECONDS", (0.05,))
    released, looks = threading.Event(), list[float]()

    def hanging(*values: Any) -> Any:
        looks.append(time.monotonic())
        released.wait(10)
        return examine(*values)

    monkeypatch.setattr("sparkd.agent.daemon.blocked.examine", hanging)
    tries = ends_after(2, monkeypatch)

    def release() -> None:
        time.sleep(1)
        assert (len(looks), len(tries)) == (1, 1)
        released.set()

    thread = ghost.once("blocked", release)
    code, journal = run_agent(ghost)
    thread.join()
    assert code is ExitCode.GOOD, journal
    hung = [line for line in journal.splitlines() if "agent.run.blocked" in line and blocked.HANGS in line]
    assert len(hung) == 1, journal
    assert "; script-paths: " in hung[0].partition("before its end")[2], "what blocked before"
    assert HANG_HINT in hung[0]


def test_a_stop_ends_a_blocked_run_at_once(ghost: World) -> None:
    stopped_at: list[float] = []

    def stop() -> None:
        stopped_at.append(time.monotonic())
        end()

    thread = ghost.once("blocked", stop)
    code, _ = run_agent(ghost)
    assert time.monotonic() - stopped_at[0] < 3
    thread.join()
    assert code is ExitCode.GOOD
    assert ghost.phase == "stopped"


@pytest.mark.parametrize("path", ["/etc/sparkd/conf.d/10-mine.toml", "/srv/secrets/api.key"])
def test_another_configuration_is_for_the_next_process(ghost: World, path: str) -> None:
    ghost.tree.file("/srv/secrets/api.key", "old")
    secret = str(ghost.tree.root / "srv/secrets/api.key")
    ghost.tree.file("/etc/sparkd/conf.d/05-key.toml", f"engine.secrets.VLLM_API_KEY = {json.dumps(secret)}\n")
    thread = ghost.once("blocked", lambda: ghost.tree.file(path, "engine.script = ''\n"))
    code, journal = run_agent(ghost)
    thread.join()
    assert code is ExitCode.BLOCKED
    assert 'reason="the configuration has changed"' in journal
