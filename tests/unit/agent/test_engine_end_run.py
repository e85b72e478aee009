"""A run whose engine ends reports the cause to systemd, to the journal, and to the next agent."""

import time

from tests.unit.agent_runs import CONTAINER, CORE, World, end, phases, run_agent
from tests.unit.conftest import Notifications

from sparkd.agent.daemon.engine_cause import EXIT_CODE_SECONDS
from sparkd.base.lib.errors import Cause, ExitCode
from sparkd.base.state import launch_history
from sparkd.base.state.launch_history import End, LaunchHistory


def test_an_engine_that_dies_while_serving_ends_the_run_with_its_own_words(
    world: World, notifications: Notifications
) -> None:
    world.last_words = b"RuntimeError: CUDA out of memory, boom\n"
    code, journal = run_agent(world, once={"serving": world.fail})
    messages = [
        message.partition(":")[0] for message in notifications() if message.startswith(("STATUS=", "STOPPING="))
    ]
    assert messages[-3:] == ["STATUS=serving", "STOPPING=1", "STATUS=failed"], "at once, and once"
    assert code is ExitCode.ENGINE_ENDED, journal
    assert phases(journal)[-2:] == ["serving", "failed"]
    last = world.last_exit
    assert last.phase == "serving"
    assert last.cause == "engine-ended"
    assert last.reason.endswith("its log says last: RuntimeError: CUDA out of memory, boom")
    assert last.hint == "", "a client may have sent it"
    assert " cause=engine-ended action=none " in next(
        line for line in journal.splitlines() if "agent.run.failed" in line
    )
    assert f"DELETE /containers/{CONTAINER}" in world.requests


def test_an_engine_killed_from_outside_is_reported_as_that(world: World) -> None:
    world.last_words = b"(APIServer pid=1) INFO:     all is well\n"
    world.tree.docker(f"/containers/{CONTAINER}/json", {"State": {"Running": False, "ExitCode": 137}})
    run_agent(world, once={"serving": world.fail})
    assert world.last_exit.cause == "killed-from-outside"
    assert "with exit code 137: killed by signal 9 from outside, not by sparkd; neither " in world.last_exit.reason


def test_a_killed_engine_whose_end_docker_notices_late_is_reported_as_that(world: World) -> None:
    world.last_words = b"(APIServer pid=1) INFO:     all is well\n"
    description = f"/containers/{CONTAINER}/json"

    def kill() -> None:
        world.tree.docker(description, {"State": {"Running": True, "ExitCode": 0}})
        assert world.rank is not None
        world.rank.kill()
        time.sleep(3 * EXIT_CODE_SECONDS)
        world.tree.docker(description, {"State": {"Running": False, "ExitCode": 137}})
        world.failing.set()  # its log ends

    run_agent(world, once={"serving": kill})
    assert world.last_exit.cause == "killed-from-outside", world.last_exit.reason


def test_a_known_error_is_explained_in_the_event_in_the_record_and_in_status(world: World) -> None:
    error = b"ModuleNotFoundError: No module named 'deep_gemm'\n"
    world.last_words = CORE + b"EngineCore encountered a fatal error.\n" + CORE + error
    _, journal = run_agent(world, once={"serving": world.fail})
    meaning = "this image has no DeepGEMM"
    assert f'hint="{meaning}' in next(line for line in journal.splitlines() if "agent.run.failed" in line)
    assert world.last_exit.hint.startswith(meaning)
    report = world.read("run/sparkd/report.json")
    assert meaning in str(report["message"])
    assert str(report["hint"]).startswith(meaning)


def test_the_next_agent_reports_the_cause_of_the_last_end_its_code_and_its_hint(world: World) -> None:
    history = LaunchHistory(last_exit=End("no image", 11, "pull it", cause=Cause.IMAGE_MISSING))
    world.tree.file(launch_history.FILE.path, launch_history.FILE.encode(history))
    run_agent(world, once={"serving": end})
    report = world.read("run/sparkd/report.json")
    cause = report["last_cause"], report["last_cause_code"], report["last_hint"]
    assert cause == ("no image (exit 11)", "image-missing", "pull it")
