"""`sparkd use` before it changes anything: what it takes, what it refuses, and how its outcome is read."""

import json
import threading
import tomllib
from functools import partial

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import addresses, machine, settings
from tests.unit.commands import sparkd
from tests.unit.known_good_entries import known_good_entry
from tests.unit.limits import files_left
from tests.unit.node_reports import HEAD_REPORT
from tests.unit.plans import configured
from tests.unit.switches import LATER, plan_of, put_switch
from tests.unit.verdicts import present

from sparkd.base.cluster import membership
from sparkd.base.host import Host
from sparkd.base.lib.errors import BlockedError, Cause, ConfigError, UsageError
from sparkd.base.state import known_good, launch_history
from sparkd.base.state.switch import FILE, Chosen, Stage, Switch
from sparkd.base.status.model import Phase, dump
from sparkd.tools.node.switch_progress import await_end, find_outcome, follow, follow_agent
from sparkd.tools.node.switching import (
    choose_recipe,
    describe_outcome,
    exchange_image,
    list_usable,
    load_chosen,
    make_switch,
    plans_before,
    read_choice,
    refuse_worker,
)

CONFIG = configured(engine={"recipe": "mine", "args": {"seed": 7}})


@pytest.mark.parametrize(
    "words",
    [
        ("a", "--image", "i:2"),
        ("a", "--no-bench"),
        ("--image", "i:2", "--for", "1s"),
        (),
        ("a", "--list"),
        ("a", "--end"),
        ("--end", "--for", "2h"),
        ("a", "--for", "x"),
        ("a", "--drain", "2d"),
    ],
)
def test_options_that_do_not_go_together_are_refused_with_a_reason(words: tuple[str, ...]) -> None:
    done = sparkd("use", *words)
    assert done.returncode == 2
    assert done.stderr.count("sparkd: ") == 1


def switch(stage: Stage, to: Chosen | None, *back: Chosen, at: str = "1") -> Switch:
    return Switch("f", stage, to, back, 0, 60, at)


NEW = switch(Stage.DRAINING, plan_of("new"))
END = switch(Stage.DRAINING, None, plan_of("old"))


@pytest.mark.parametrize(
    ("wanted", "choice", "outcome"),
    [
        (NEW, NEW, None),
        (NEW, replace(NEW, stage=Stage.TRYING, tries=2), None),
        (NEW, switch(Stage.IN_FORCE, plan_of("new")), True),
        (NEW, None, False),
        (NEW, switch(Stage.IN_FORCE, plan_of("old")), False),
        (NEW, switch(Stage.DRAINING, plan_of("other"), at="2"), False),
        (NEW, switch(Stage.RETURNING, plan_of("new")), False),
        (END, END, None),
        (END, None, True),
        (END, switch(Stage.IN_FORCE, plan_of("old")), False),
    ],
)
def test_the_outcome_is_read_from_the_file(wanted: Switch, choice: Switch | None, outcome: bool | None) -> None:
    assert find_outcome(wanted, choice) is outcome


def report(tree: Tree, **changes: object) -> None:
    """The report of an agent that runs."""
    tree.process(HEAD_REPORT.pid, "sparkd", start_time=HEAD_REPORT.start_time)
    tree.file("/run/sparkd/report.json", dump(replace(HEAD_REPORT, **changes)))


def recipe_file(tree: Tree, name: str, mode: int = 0o644, **more: object) -> None:
    text = {"schema": 1, "name": name, "model": {"path": "m"}, "image": {"ref": "i:1"}, **more}
    tree.file(f"/etc/sparkd/recipes/{name}.yaml", json.dumps(text), mode)


def test_the_section_engine_holds_for_the_chosen_recipe_too(tree: Tree) -> None:
    recipe_file(tree, "other", args={"max-model-len": 64})
    made = load_chosen("other", 3600, CONFIG, Host(tree.root))
    plan = membership.make_context(CONFIG, Host(tree.root), made).plan
    assert " ".join(plan.argv).endswith("--max-model-len 64 --seed 7")
    assert made.engine.recipe == "other"
    assert made.until > "2026"


def put(tree: Tree, switch: Switch) -> Switch:
    return put_switch(tree, switch, CONFIG)


@pytest.mark.parametrize(
    ("current", "names"),
    [
        (None, []),
        (switch(Stage.IN_FORCE, plan_of("a")), ["a"]),
        (switch(Stage.IN_FORCE, plan_of("a", LATER), plan_of("b")), ["a", "b"]),
        (switch(Stage.TRYING, plan_of("a"), plan_of("b")), ["b"]),
        (switch(Stage.TRYING, plan_of("a"), plan_of("b", LATER), plan_of("c")), ["b", "c"]),
        (switch(Stage.TRYING, plan_of("a")), []),
        (switch(Stage.RETURNING, plan_of("a"), plan_of("b")), ["b"]),
    ],
)
def test_the_way_back_leads_to_what_is_in_force_never_to_what_is_only_tried(
    tree: Tree, current: Switch | None, names: list[str]
) -> None:
    recipe_file(tree, "mine")
    before = plans_before(current, CONFIG, Host(tree.root))
    assert [plan.recipe.name for plan in before] == names


def test_the_way_back_is_the_last_known_good_plan_unless_the_configured_one_is_known_good(tree: Tree) -> None:
    recipe_file(tree, "mine")
    good = known_good_entry()
    tree.file(known_good.FILE.path, known_good.FILE.encode(known_good.KnownGood((good,))))
    (before,) = plans_before(None, CONFIG, Host(tree.root))
    assert before.plan == good.plan_digest
    own = membership.make_context(CONFIG, Host(tree.root)).plan.digest
    known = known_good.KnownGood((good, replace(good, plan_digest=own)))
    tree.file(known_good.FILE.path, known_good.FILE.encode(known))
    assert plans_before(None, CONFIG, Host(tree.root)) == ()


def test_more_time_is_no_switch(tree: Tree) -> None:
    recipe_file(tree, "mine")
    recipe_file(tree, "other")
    host = Host(tree.root)
    in_force = put(tree, switch(Stage.IN_FORCE, load_chosen("other", 0, CONFIG, host)))
    assert make_switch(choose_recipe("other", 0, CONFIG, host), 60, in_force, CONFIG, host) is None
    longer = present(make_switch(choose_recipe("other", 3600, CONFIG, host), 60, in_force, CONFIG, host))
    assert longer.to is not None
    assert longer.to.until
    assert longer == replace(in_force, to=longer.to)
    configured_file = tree.root / "etc/sparkd/recipes/mine.yaml"
    configured_file.unlink()
    configured_file.symlink_to("late")  # as on a share that is away
    assert make_switch(choose_recipe("other", 0, CONFIG, host), 60, in_force, CONFIG, host) is None


def test_the_recipe_in_force_is_marked_where_it_was_loaded_by_its_path(tree: Tree) -> None:
    """A recipe of the same name in the folders is another one."""
    recipe_file(tree, "mine")
    tree.file("/etc/own/mine.yaml", (tree.root / "etc/sparkd/recipes/mine.yaml").read_text())

    def list_in_force(word: str) -> list[str]:
        table = list_usable(configured(engine={"recipe": word}), Host(tree.root))
        return [row[0] for row in table.rows if row[1] == "in force"]

    own, listed = (str(tree.root / folder / "mine.yaml") for folder in ("etc/own", "etc/sparkd/recipes"))
    assert [list_in_force(word) for word in ("mine", listed, own)] == [["mine"], ["mine"], [own]]
    put(tree, switch(Stage.IN_FORCE, load_chosen(own, 0, CONFIG, Host(tree.root))))
    assert [row[0] for row in list_usable(CONFIG, Host(tree.root)).rows if row[1] == "in force"] == [own]


def runs_image(tree: Tree, running: str, **named: str) -> None:
    """The engine that serves runs this image; docker has these names: `i_1` is i:1."""
    tree.dockerd()
    for name, identity in named.items():
        image = {"Id": identity, "Architecture": "arm64", "Os": "linux", "Config": {}}
        tree.docker(f"/images/{name.replace('_', ':')}/json", image)
    report(tree, engine=replace(HEAD_REPORT.engine, image=running))


def test_the_image_alone_is_exchanged_and_the_plan_in_force_comes_back(tree: Tree) -> None:
    recipe_file(tree, "mine")
    recipe_file(tree, "other", args={"max-model-len": 64})
    runs_image(tree, "sha256:1", i_1="sha256:1", i_2="sha256:1")
    host = Host(tree.root)
    made = present(exchange_image("i:2", 0, CONFIG, host))
    assert made.label == "recipe mine with image i:2"
    assert made.until == ""
    assert membership.make_context(CONFIG, host, made).plan.image == "i:2"
    assert made.engine.model_copy(update={"image": ""}) == CONFIG.engine
    assert exchange_image("i:1", 0, CONFIG, host) is None
    put(tree, switch(Stage.IN_FORCE, load_chosen("other", 0, CONFIG, host)))
    made = present(exchange_image("i:2", 60, CONFIG, host))
    assert made.recipe.name == made.engine.recipe == "other"
    assert made.until
    in_force = put(tree, switch(Stage.IN_FORCE, made))
    kept = exchange_image("i:2", 0, CONFIG, host)
    assert make_switch(kept, 60, in_force, CONFIG, host) == replace(in_force, to=replace(made, until=""))


def test_the_lines_that_keep_an_image_can_be_pasted_into_the_settings(tree: Tree) -> None:
    recipe_file(tree, "mine")
    earlier = load_chosen("mine", 60, CONFIG, Host(tree.root))
    for back in ((), (earlier,)):
        title, *lines = list(describe_outcome(switch(Stage.IN_FORCE, earlier, *back), "i:2", "mine"))[2:]
        assert title.endswith("under [engine], in place of its lines of these names:")
        assert tomllib.loads("\n".join(['recipe = "mine"', *lines])) == {"recipe": "mine", "image": "i:2"}
    quoted = replace(earlier, engine=earlier.engine.model_copy(update={"recipe": '/a/"b".yaml'}))
    *_, recipe, image = describe_outcome(switch(Stage.IN_FORCE, quoted), "i:2", "mine")
    assert tomllib.loads(f"{recipe}\n{image}") == {"recipe": '/a/"b".yaml', "image": "i:2"}


def test_a_rollback_runs_its_image_by_its_id_so_its_name_is_another_one(tree: Tree) -> None:
    recipe_file(tree, "mine")
    runs_image(tree, "sha256:1", i_1="sha256:2")
    pinned = replace(load_chosen("mine", 0, CONFIG, Host(tree.root)), image_id="sha256:1", proven="2026-01-01")
    put(tree, switch(Stage.IN_FORCE, pinned))
    made = present(exchange_image("i:1", 0, CONFIG, Host(tree.root)))
    assert made.engine.image == "i:1"
    assert made.image_id == made.proven == ""


BACK = "sudo docker tag sha256:1 i:1; then: sudo sparkd use --image "


@pytest.mark.parametrize(
    ("ref", "named", "hint"),
    [
        ("i:1", {"i_1": "sha256:2"}, f"sudo docker tag i:1 i:1-new && {BACK}i:1-new"),
        ("i:2", {"i_1": "sha256:2"}, f"sudo docker tag i:1 i:1-new && {BACK}i:2"),
        ("i:2", {}, f"{BACK}i:2"),
    ],
)
def test_a_name_that_is_another_image_now_is_no_way_back(
    tree: Tree, ref: str, named: dict[str, str], hint: str
) -> None:
    recipe_file(tree, "mine")
    runs_image(tree, "sha256:1", **named)
    with pytest.raises(BlockedError, match="no way back") as refused:
        exchange_image(ref, 0, CONFIG, Host(tree.root))
    assert refused.value.hint == hint


def test_an_image_is_refused_while_the_plan_changes_and_where_it_is_none(tree: Tree) -> None:
    recipe_file(tree, "mine")
    with pytest.raises(UsageError, match="--image A B: must be an image"):
        exchange_image("A B", 0, CONFIG, Host(tree.root))
    put(tree, switch(Stage.TRYING, plan_of("new")))
    with pytest.raises(BlockedError, match="on the way to recipe new"):
        exchange_image("i:2", 0, CONFIG, Host(tree.root))


def test_what_is_configured_needs_no_file(tree: Tree) -> None:
    recipe_file(tree, "mine")
    host = Host(tree.root)
    for to in (None, choose_recipe("mine", 0, CONFIG, host)):
        assert make_switch(to, 60, None, CONFIG, host) is None
    for to, before in ((load_chosen("mine", 60, CONFIG, host), None), (None, put(tree, END))):
        with pytest.raises(BlockedError):  # a change, of which this machine has nothing
            make_switch(to, 60, before, CONFIG, host)


def test_a_choice_that_cannot_be_read_is_no_news_of_any_plan(tree: Tree) -> None:
    tree.file(FILE.path, "{")
    with pytest.raises(ConfigError, match=r"switch\.json can't be read") as refused:
        read_choice(Host(tree.root))
    assert "sparkd rollback --end" in refused.value.hint
    with files_left(0), pytest.raises(ConfigError, match="Too many open files") as unknown:
        read_choice(Host(tree.root))
    assert "move it away" in unknown.value.hint, "what can't be read is not ended either"
    with pytest.raises(ConfigError):
        follow(END, Host(tree.root), print)


def test_it_prints_each_step_once_until_the_new_plan_is_in_force(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = put(tree, NEW)
    report(tree, phase=Phase.LOADING, message="shard 1 of 9")
    later = [
        threading.Timer(0.7, partial(report, tree, phase=Phase.LOADING, message="shard 2 of 9")),
        threading.Timer(1.4, partial(report, tree, phase=Phase.SERVING, message="on port 8000")),
        threading.Timer(4.0, put, (tree, replace(NEW, stage=Stage.IN_FORCE))),
    ]
    for timer in later:
        timer.start()
    assert follow(begun, Host(tree.root), print) == ""
    for timer in later:
        timer.join()
    assert capsys.readouterr().out == "loading: shard 1 of 9\nserving: on port 8000\n"


def test_why_it_went_back_is_awaited_and_of_this_switch(tree: Tree) -> None:
    begun = put(tree, replace(NEW, chosen_at="2026-01-02"))
    put(tree, replace(begun, stage=Stage.RETURNING))
    history = launch_history.FILE.encode

    def end(at: str, cause: Cause) -> None:
        last = launch_history.End(f"{cause} at {at}", 12, at=at, cause=cause)
        tree.file(launch_history.FILE.path, history(launch_history.LaunchHistory(last_exit=last)))

    end("2026-01-01", Cause.SWITCH_FAILED)
    later = [
        threading.Timer(0.3, end, ("2026-01-03", Cause.PEER_LOST)),
        threading.Timer(0.8, end, ("2026-01-03", Cause.SWITCH_FAILED)),
    ]
    for timer in later:
        timer.start()
    assert follow(begun, Host(tree.root), print) == "switch-failed at 2026-01-03 (exit 12)"
    for timer in later:
        timer.join()


def test_a_history_that_can_t_be_read_now_ends_no_wait_for_an_end(tree: Tree) -> None:
    with files_left(0):
        assert await_end(Host(tree.root), lambda _: True, gone_seconds=0.0) is None


def test_a_caller_that_follows_an_agent_sees_that_there_is_none(tree: Tree) -> None:
    reports = follow_agent(Host(tree.root), 60)
    assert next(reports) is None
    report(tree, phase=Phase.SERVING)
    assert present(next(reports)).phase is Phase.SERVING


def test_a_worker_names_the_head_and_the_command_to_run_there(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/sparkd", "use", "my recipe"])
    pair = settings(addresses(2), 29510)
    refuse_worker(pair, machine(tree, 0))
    with pytest.raises(UsageError) as refused:
        refuse_worker(pair, machine(tree, 1))
    assert refused.value.hint == "on 127.0.0.1: sudo sparkd use 'my recipe'"
