"""What a run's end is taken for, by its error and the evidence beside it."""

import pytest

from sparkd.agent.daemon.judgement import Evidence, count_end, judge_end
from sparkd.agent.engine.culprits import Culprit
from sparkd.agent.engine.load_progress import LAST_WORDS
from sparkd.base.lib.errors import (
    ACTIONS,
    Action,
    BlockedError,
    Cause,
    ConfigError,
    EngineEndedError,
    LaunchError,
    MemoryGuardError,
    NeedsPersonError,
    PeerLostError,
    SparkdError,
    StalledError,
    UsageError,
)
from sparkd.base.state.launch_history import End, LaunchHistory
from sparkd.base.status.model import Phase

AT = "2026-01-01T00:00:00.000+00:00"
KNOWN_ERROR = "ModuleNotFoundError: No module named 'deep_gemm'"
DOCKER_HANGS = Evidence(docker_hangs=True)
MEMORY_TAKEN = Evidence(memory_taken=True, memory_users="others took 2 GiB")
ENGINE_GREW = Evidence(memory_users="the engine itself grew")
EARLYOOM = Culprit("earlyoom did", "turn it off", Cause.KILLED_FROM_OUTSIDE)
NOBODY = Culprit("nobody says", "audit")
KILLED = EngineEndedError("killed", cause=Cause.KILLED_FROM_OUTSIDE)
STOPPED = EngineEndedError("stopped", cause=Cause.ENGINE_STOPPED)
PORT_HELD = Evidence(port_holder="pid 7 has port 8000")


@pytest.mark.parametrize(
    ("error", "evidence", "cause", "reason", "hint"),
    [
        (StalledError("no token", "again"), Evidence(), "engine-stalled", "no token", "again"),
        (StalledError("no token"), DOCKER_HANGS, "docker-hung", "dockerd runs and does not answer: no token",
         "sudo systemctl restart docker"),
        (MemoryGuardError("memory ran out"), MEMORY_TAKEN, "memory-taken", "memory ran out; others took 2 GiB",
         "stop that work, or raise memory.headroom_gib"),
        (MemoryGuardError("memory ran out", "less"), ENGINE_GREW, "memory-guard",
         "memory ran out; the engine itself grew", "less"),
        (EngineEndedError("in use"), PORT_HELD, "port-taken", "in use; pid 7 has port 8000",
         "sparkd starts it again once the port is free: see the check `ports`"),
        (EngineEndedError("in use"), Evidence(docker_hangs=True, port_holder="pid 7"), "docker-hung",
         "dockerd runs and does not answer: in use", "sudo systemctl restart docker"),
        (EngineEndedError("no device"), Evidence(address_gone="10.0.0.1"), "own-address-gone",
         "no device; this node's own address 10.0.0.1 was gone",
         "ip -brief address; look at the cable, and whether the other node is up"),
        (KILLED, Evidence(culprit=EARLYOOM), "killed-from-outside", "killed; earlyoom did", "turn it off"),
        (STOPPED, Evidence(culprit=EARLYOOM), "killed-from-outside", "stopped; earlyoom did", "turn it off"),
        (KILLED, Evidence(culprit=NOBODY), "killed-from-outside", "killed; nobody says", "audit"),
        (EngineEndedError("no cause"), Evidence(culprit=NOBODY), "engine-ended", "no cause", ""),
        (LaunchError("docker: no"), Evidence(), "launch-failed", "docker: no",
         "sudo sparkd logs --since 1d --level warning"),
        (BlockedError("no place", "make room"), Evidence(), "blocked", "no place", "make room"),
    ],
)  # fmt: skip
def test_what_happened_comes_before_what_the_error_says(
    error: SparkdError, evidence: Evidence, cause: str, reason: str, hint: str
) -> None:
    end = judge_end(error, evidence, Phase.SERVING, AT)
    assert end == End(reason, int(error.code), hint, "serving", AT, cause, end.action)


def test_a_known_error_is_explained_but_not_by_words_that_a_client_may_have_written() -> None:
    explained = judge_end(
        EngineEndedError(f"the engine ended: {KNOWN_ERROR}", "its log"), Evidence(), Phase.LOADING, AT
    )
    assert explained.hint.startswith("this image has no DeepGEMM")
    forged = f"the engine ended: {LAST_WORDS}{KNOWN_ERROR}"
    assert judge_end(EngineEndedError(forged, "its log"), Evidence(), Phase.SERVING, AT).hint == "its log"
    lost = PeerLostError(f"rank 1 failed: {KNOWN_ERROR}", "look there")
    assert judge_end(lost, Evidence(), Phase.SERVING, AT).hint == "look there", "that node explains it"


@pytest.mark.parametrize(
    ("error", "evidence", "failures"),
    [
        (EngineEndedError("boom"), Evidence(), 1),
        (LaunchError("no image"), DOCKER_HANGS, 1),
        (MemoryGuardError("memory ran out"), Evidence(), 1),
        (MemoryGuardError("memory ran out"), MEMORY_TAKEN, 0),
        (EngineEndedError("in use"), PORT_HELD, 0),
        (EngineEndedError("no device"), Evidence(address_gone="10.0.0.1"), 1),
        (PeerLostError("rank 1 failed", cause=Cause.PEER_FAILED), Evidence(), 0),
        (BlockedError("no place"), Evidence(), 0),
    ],
)
def test_only_a_launch_that_fails_by_itself_counts_against_its_plan(
    error: SparkdError, evidence: Evidence, failures: int
) -> None:
    end = judge_end(error, evidence, Phase.LOADING, AT)
    launched = count_end(LaunchHistory().begin("plan", "boot"), end, "plan", "boot")
    assert sum(launched.failures.values()) == failures
    assert launched.last_exit == end
    assert count_end(LaunchHistory(), end, "plan", "boot").failures == {}, "nothing was launched"


@pytest.mark.parametrize("error", [UsageError, ConfigError, NeedsPersonError])
def test_an_end_that_no_unit_is_started_after_requires_a_person(error: type[SparkdError]) -> None:
    assert ACTIONS[error.usual_cause] is Action.INSPECT


@pytest.mark.parametrize(
    ("error", "evidence", "action"),
    [
        (NeedsPersonError("the driver leaks", action=Action.REBOOT), Evidence(), "reboot"),
        (NeedsPersonError("five launches failed"), Evidence(), "inspect"),
        (StalledError("no token"), Evidence(), "none"),
        (StalledError("no token"), DOCKER_HANGS, "restart"),
    ],
)
def test_the_action_is_of_the_cause_unless_it_is_known_better(
    error: SparkdError, evidence: Evidence, action: str
) -> None:
    assert judge_end(error, evidence, Phase.BLOCKED, AT).action == action
