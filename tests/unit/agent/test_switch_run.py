"""A run that switches to a chosen plan judges what the model writes before it serves."""

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.unit.agent_runs import World, end, open_world, phases, run_agent, serving
from tests.unit.conftest import Notifications
from tests.unit.engine_server import Reply
from tests.unit.nodes import until
from tests.unit.verdicts import present

from sparkd.agent.actions.files import compare_and_swap
from sparkd.agent.daemon.context import Pace
from sparkd.base.cluster import membership
from sparkd.base.config import load_settings
from sparkd.base.host import Host
from sparkd.base.lib.endings import StopRequested
from sparkd.base.lib.errors import ConfigError, ExitCode, NotReadyError
from sparkd.base.state.switch import FILE, Chosen, Stage, Switch


class Model:
    """What the engine writes, and for how many looks at its counters a request still runs."""

    text = " 9, 10, 11, 12, 13"
    busy = 3
    refusal: Reply | None = None
    """Answers each completion but the first."""

    def __init__(self) -> None:
        self.in_trial: Callable[[], object] = lambda: None
        """Called at each completion but the first, which makes the engine ready."""
        self._completions = itertools.count()

    def answer(self, request: str, _: str) -> Reply:
        if request == "POST /v1/completions":
            if next(self._completions):
                self.in_trial()
                if self.refusal is not None:
                    return self.refusal
            completion = {
                "choices": [{"text": self.text, "finish_reason": "length"}],
                "usage": {"completion_tokens": 24},
            }
            return 200, json.dumps(completion).encode()
        if request == "GET /metrics":
            self.busy -= 1
            names = ("num_requests_waiting", "prompt_tokens_total", "generation_tokens_total")
            lines = [
                f"vllm:num_requests_running {float(self.busy > 0)}",
                f"vllm:iteration_tokens_total_count {1000 - self.busy}",
            ]
            return 200, "\n".join([*lines, *(f"vllm:{name} 0.0" for name in names), ""]).encode()
        return serving(request, "")


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def switched(model: Model) -> Iterator[World]:
    """A world whose node is to change to the recipe `new`."""
    with open_world(World, model.answer) as world:
        yield world


def choose_new(world: World, min_nodes: int = 1, secrets: Mapping[str, str] = {}) -> None:
    """Choose the recipe `new`, as `sparkd use` does."""
    host = Host(world.tree.root)
    config = load_settings({}, world.tree.root)
    recipe = membership.make_context(config, host).recipe
    nodes = recipe.nodes.model_copy(update={"min": min_nodes, "max": min_nodes})
    recipe = recipe.model_copy(update={"name": "new", "nodes": nodes, "secrets": secrets})
    switch = Switch(
        membership.fingerprint_config(config, host), Stage.DRAINING, Chosen(recipe, config.engine), (), 0, 30, "1"
    )
    compare_and_swap(host.files, FILE, None, switch)


def stage(world: World) -> str:
    switch = FILE.read(Host(world.tree.root).files)
    return switch.stage.value if switch else "none"


def test_a_serving_agent_drains_for_a_chosen_plan_which_the_next_one_puts_in_force(
    switched: World, model: Model
) -> None:
    stages: list[str] = []
    model.busy = 1000

    def drain() -> None:
        choose_new(switched)
        until(lambda: switched.phase == "stopping", 20)
        until(lambda: "1 request runs" in str(switched.read("run/sparkd/report.json")["message"]), 20)
        assert switched.read("run/sparkd/report.json")["draining"]
        assert switched.rank is not None
        assert switched.rank.poll() is None, "a request runs"
        model.busy = 0
        stages.append(stage(switched))

    code, journal = run_agent(switched, once={"serving": drain})
    assert code is ExitCode.GOOD, journal
    assert stages == ["draining"], journal
    assert "switch.drain.started" in journal
    assert switched.last_exit.cause == "switch"
    code, journal = run_agent(switched, once={"serving": end})
    assert code is ExitCode.GOOD, journal
    assert stage(switched) == "in-force", journal
    assert "switch.plan.tried" in journal
    assert "switch.plan.applied" in journal
    assert "recipe=new" in journal


def test_a_chosen_plan_whose_secret_can_not_be_used_is_left_for_the_configured_one(
    switched: World, tmp_path: Path
) -> None:
    secret = tmp_path / "token"
    secret.write_bytes(b"\xff\xfea")
    choose_new(switched, secrets={"HF_TOKEN": str(secret)})
    with pytest.raises(NotReadyError, match="recipe new did not come up: secret HF_TOKEN can't be read"):
        run_agent(switched)  # systemd starts the next process
    assert stage(switched) == "none"
    assert switched.last_exit.cause == "switch-failed"


def choose_pair(world: World, before: str) -> Switch:
    """Choose a plan of two nodes, which need a key."""
    pair = 'cluster.nodes = ["10.0.0.1", "10.0.0.2"]\nfabric = {interface = "bond0", hcas = ["rocep1s0f0"]}\n'
    world.tree.file("/etc/sparkd/conf.d/pair.toml", pair + 'engine.recipe = "tiny-cpu-pair"\n')
    world.tree.file("/proc/net/fib_trie", "     |-- 10.0.0.1\n        /32 host LOCAL\n")
    choose_new(world, min_nodes=2)
    files = Host(world.tree.root).files
    chosen = present(FILE.read(files))
    if before == "trying":
        draining, chosen = chosen, replace(chosen, stage=Stage.TRYING, tries=1)
        compare_and_swap(files, FILE, draining, chosen)
    return chosen


@pytest.mark.parametrize("before", ["draining", "trying"])
def test_a_bad_cluster_key_is_no_verdict_on_a_chosen_plan(switched: World, before: str) -> None:
    chosen = choose_pair(switched, before)
    switched.tree.file("/etc/sparkd/cluster.key", "no key\n", 0o600)
    with pytest.raises(ConfigError, match=r"cluster\.key"):
        run_agent(switched)  # the unit stays down until somebody repairs the key
    assert FILE.read(Host(switched.tree.root).files) == chosen


@pytest.mark.parametrize("before", ["draining", "trying"])
def test_a_missing_cluster_key_uses_up_no_try_of_a_chosen_plan(switched: World, before: str) -> None:
    chosen, during = choose_pair(switched, before), list[Switch | None]()
    (switched.tree.root / "etc/sparkd/cluster.key").unlink()

    def note_and_end() -> None:
        assert "cluster.key" in str(switched.read("run/sparkd/report.json")["message"])
        during.append(FILE.read(Host(switched.tree.root).files))
        end()

    with pytest.raises(StopRequested):
        run_agent(switched, once={"blocked": note_and_end})
    assert during == [chosen], "also a power cut meanwhile is no try"


def test_a_stop_while_a_chosen_plan_waits_for_its_secret_is_no_try(switched: World, tmp_path: Path) -> None:
    choose_new(switched, secrets={"HF_TOKEN": str(tmp_path / "late")})
    with pytest.raises(StopRequested):
        run_agent(switched, once={"blocked": end})
    switch = present(FILE.read(Host(switched.tree.root).files))
    assert switch.stage is Stage.TRYING
    assert switch.tries == 0


def test_a_chosen_plan_that_writes_garbage_never_serves_and_is_left(switched: World, model: Model) -> None:
    model.text = "!" * 24
    choose_new(switched)
    code, journal = run_agent(switched)
    assert code is ExitCode.NOT_READY, journal
    assert stage(switched) == "none", journal
    assert "serving" not in phases(journal)
    assert switched.last_exit.cause == "switch-failed"
    assert switched.last_exit.reason.startswith(
        "back to what is configured, recipe new did not come up: its smoke test failed: repeats one piece of text"
    )


def test_a_chosen_plan_that_clients_keep_busy_is_put_in_force_untested(switched: World, model: Model) -> None:
    text = "readiness.completion_timeout_seconds = 1\nsmoke.on_start = true\n"
    switched.tree.file("/etc/sparkd/conf.d/smoke.toml", text)
    switched.pace = Pace(step_seconds=0.01)
    late = list[int]()

    def answer_late() -> None:
        late.append(model.busy)
        time.sleep(1.5)

    def end_after_both_tests() -> None:
        until(lambda: len(late) >= 4, 20)  # two in the trial, and two beside clients
        until(lambda: model.busy < late[3] - 3, 20)
        report = switched.read("run/sparkd/report.json")
        assert report["smoke_passed"] is None
        assert "in force untested, as its smoke test was skipped" in str(report["findings"])
        model.busy = 0
        end()

    model.busy, model.in_trial = 900, answer_late
    choose_new(switched)
    code, journal = run_agent(switched, once={"serving": end_after_both_tests})
    assert code is ExitCode.GOOD, journal
    assert stage(switched) == "in-force"
    assert journal.count("same prompt twice: no answer within 1 s beside 1 of clients' requests") == 2, journal
    assert journal.count('hint="once it is quieter: sudo sparkd smoke"') == 2
    assert "engine.smoke.passed" not in journal


def test_a_chosen_plan_of_a_model_that_refuses_prompts_of_text_has_passed_no_test(
    switched: World, model: Model
) -> None:
    def end_in_service() -> None:
        report = switched.read("run/sparkd/report.json")
        assert report["smoke_passed"] is None
        assert "in force untested, as its smoke test was skipped" in str(report["findings"])
        end()

    model.refusal = 400, b"The temperature is not yet supported with diffusion models."
    choose_new(switched)
    code, journal = run_agent(switched, once={"serving": end_in_service})
    assert code is ExitCode.GOOD, journal
    assert stage(switched) == "in-force"


def test_a_passed_test_beside_clients_takes_back_that_a_choice_is_untested(switched: World, model: Model) -> None:
    text = "readiness.completion_timeout_seconds = 1\nsmoke.on_start = true\n"
    switched.tree.file("/etc/sparkd/conf.d/smoke.toml", text)
    switched.pace = Pace(step_seconds=0.01)
    findings = list[str]()

    def answer_late_once() -> None:
        model.in_trial = lambda: None
        time.sleep(1.5)

    def end_after_the_second() -> None:
        until(lambda: switched.read("run/sparkd/report.json")["smoke_passed"] is True, 20)
        findings.append(str(switched.read("run/sparkd/report.json")["findings"]))
        end()

    model.busy, model.in_trial = 900, answer_late_once
    choose_new(switched)
    code, journal = run_agent(switched, once={"serving": end_after_the_second})
    assert code is ExitCode.GOOD, journal
    assert "engine.smoke.skipped" in journal
    assert "engine.smoke.passed" in journal
    assert "untested" not in findings[0]


def test_a_plan_whose_engine_ends_in_its_trial_has_not_served(
    switched: World, model: Model, notifications: Notifications
) -> None:
    messages = list[object]()

    def end_engine() -> None:
        with suppress(AssertionError):
            until(lambda: "test prompts" in str(switched.read("run/sparkd/report.json")["message"]), 5)
        messages.append(switched.read("run/sparkd/report.json")["message"])
        switched.fail()

    model.in_trial = end_engine
    choose_new(switched)
    code, journal = run_agent(switched)
    assert code is ExitCode.ENGINE_ENDED, journal
    assert stage(switched) == "none", journal
    assert messages[0] == "the new plan answers test prompts"
    assert "did not come up: the engine ended while answering HTTP, " in switched.last_exit.reason
    assert switched.last_exit.hint == "its log: sudo sparkd logs --since 1d --engine"
    assert "READY=1" not in notifications()


def test_with_smoke_on_start_garbage_after_a_start_is_a_warning_and_ends_nothing(switched: World, model: Model) -> None:
    model.text = "!" * 24
    switched.tree.file("/etc/sparkd/conf.d/smoke.toml", "[smoke]\non_start = true\n")

    def check_warning() -> None:
        until(lambda: "answers that make no sense" in str(switched.read("run/sparkd/report.json")["findings"]), 20)
        report = switched.read("run/sparkd/report.json")
        assert switched.phase == "serving"
        assert report["smoke_passed"] is False
        assert report["launches"] == 0
        assert f"'floor_bytes': {512 << 20}, 'guard': 'watching'" in str(report["memory"])
        end()

    code, journal = run_agent(switched, once={"serving": check_warning})
    assert code is ExitCode.GOOD, journal
    assert phases(journal)[-3:] == ["serving", "stopping", "stopped"], journal
    assert "engine.smoke.failed" in journal
