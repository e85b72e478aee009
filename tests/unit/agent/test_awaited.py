"""What the configuration names may come late, by a mount or by a person: the agent waits for it in its process."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.agent_runs import record
from tests.unit.cluster_nodes import EventLines, base_under_test, machine
from tests.unit.nodes import until
from tests.unit.plans import configured

from sparkd.agent.daemon.bootstrap import _await_agent, build_agent
from sparkd.agent.daemon.configuration_stamp import stamp_configuration
from sparkd.base.cluster.auth import read_keys
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import ConfigError, ExitCode, NotReadyError, OutdatedPlanError, UnreadableError
from sparkd.base.lib.log import ProcessLog
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.systemd import Journal, Notifier
from sparkd.base.recipes.loader import load_recipe

ALONE = 'engine = {{recipe = "{recipe}", secrets = {{HF_TOKEN = "{secret}"}}}}\nobserve.listen = ""\n'
RECIPE = "schema: 1\nname: own\nextends: tiny-cpu\n"


class Late:
    """A node alone, whose recipe and secret are on a mount that is not there yet."""

    def __init__(self, tree: Tree) -> None:
        self.mount = tree.root / "late"
        self.tree = Tree(Path(machine(tree, 0).files.root))
        self.recipe, self.secret = self.mount / "own.yaml", self.mount / "token"
        self.configure()

    def configure(self, recipe: str = "") -> None:
        text = ALONE.format(recipe=recipe or self.recipe, secret=self.secret)
        self.tree.file("/etc/sparkd/sparkd.toml", text)

    def report(self) -> dict[str, object]:
        path = self.tree.root / "run/sparkd/report.json"
        found: dict[str, object] = json.loads(path.read_text()) if path.exists() else {"phase": "", "message": ""}
        return found

    @contextmanager
    def meanwhile(self, *acts: tuple[str, Callable[[], object]]) -> Iterator[None]:
        """Does each once the agent reports that it waits for this."""

        def watch() -> None:
            for awaited, act in acts:
                until(lambda: awaited in str(self.report()["message"]))  # noqa: B023
                assert (self.report()["phase"], self.report()["action"]) == ("blocked", "inspect")
                act()

        thread = threading.Thread(target=watch)
        thread.start()
        yield
        thread.join()

    def start(self) -> str:
        """The journal of a start up to its first step."""

        def work(loop: MainLoop, notifier: Notifier, journal: Journal) -> None:
            log = ProcessLog(journal.put)
            build_agent("head", loop, notifier, journal, log, {}, self.tree.root).actions.release()

        return record(work)[1]

    def appear(self, path: Path, text: str) -> None:
        self.mount.mkdir(exist_ok=True)
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)


@pytest.fixture
def late(tree: Tree) -> Late:
    return Late(tree)


def test_a_share_whose_server_is_away_is_waited_for(late: Late) -> None:
    share = late.mount / "share.yaml"
    late.mount.mkdir()
    late.recipe.symlink_to(share)
    late.secret.symlink_to("/proc/self/mem")  # EIO
    with late.meanwhile(
        ("own.yaml: is a link to a file that does not exist", lambda: late.appear(share, RECIPE)),
        ("Input/output error", lambda: late.appear(late.secret, "abc\n")),
    ):
        assert late.start().count("agent.start.awaited") == 2
    with pytest.raises(UnreadableError):
        read_keys(Files(), "/proc/self/mem", os.getuid())
    with pytest.raises(UnreadableError):
        load_recipe("/proc/self/mem", [])


def test_a_recipe_and_a_secret_on_a_late_mount_are_waited_for_with_one_line_each(late: Late) -> None:
    with late.meanwhile(
        ("own.yaml: does not exist", lambda: late.appear(late.recipe, RECIPE)),
        ("secret HF_TOKEN can't be read", lambda: late.appear(late.secret, "abc\n")),
    ):
        journal = late.start()
    awaited = [line for line in journal.splitlines() if "agent.start.awaited" in line]
    assert len(awaited) == 2
    assert "own.yaml: does not exist" in awaited[0]
    assert "HF_TOKEN" in awaited[1]


def test_a_configuration_that_is_changed_while_files_are_awaited_starts_the_agent_again(late: Late) -> None:
    with late.meanwhile(("own.yaml", lambda: late.configure("tiny-cpu"))), pytest.raises(OutdatedPlanError) as ended:
        late.start()
    assert ended.value.code is ExitCode.BLOCKED


def test_a_file_that_is_there_and_wrong_ends_the_start(late: Late) -> None:
    late.appear(late.recipe, "schema: 1\nname: own\n")
    with pytest.raises(ConfigError) as ended:
        late.start()
    assert ended.value.code is ExitCode.CONFIG


def test_a_new_plan_waits_for_its_files_no_longer_than_its_try_may_take(tree: Tree) -> None:
    alone = configured(engine={"recipe": str(tree.root / "late/own.yaml")}, observe={"listen": ""})
    with base_under_test(tree, 0, alone) as base, pytest.raises(NotReadyError, match=r"own\.yaml: does not exist"):
        _await_agent(base, "head", None, EventLines(), limit_seconds=0.5)


def test_folders_of_the_configuration_may_go_while_it_is_looked_at(tree: Tree) -> None:
    folder, over = tree.root / "etc/sparkd", threading.Event()
    folder.mkdir(parents=True)

    def churn() -> None:
        while not over.is_set():
            (folder / "conf.d/a").mkdir(parents=True)
            (folder / "conf.d/a").rmdir()
            (folder / "conf.d").rmdir()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(20_000):
            stamp_configuration(tree.root)
    finally:
        over.set()
        thread.join()
