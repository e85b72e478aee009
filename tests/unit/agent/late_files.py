"""A node whose recipe and secret come while its agent starts."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tree import Tree
from tests.unit.agent.starts import release, start_agent
from tests.unit.cluster_nodes import machine
from tests.unit.nodes import until

ALONE = 'engine = {{recipe = "{recipe}", secrets = {{HF_TOKEN = "{secret}"}}}}\nobserve.listen = ""\n'
RECIPE = "schema: 1\nname: own\nextends: tiny-cpu\n"


class LateFiles:
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
        fields: dict[str, object] = json.loads(path.read_text()) if path.exists() else {"phase": "", "message": ""}
        return fields

    @contextmanager
    def meanwhile(self, *acts: tuple[str, Callable[[], object]]) -> Iterator[None]:
        """Beside the main loop, do each act once the agent reports that it waits for its text."""

        def watch() -> None:
            for awaited, act in acts:
                until(lambda: awaited in str(self.report()["message"]))  # noqa: B023
                assert self.report()["phase"] == "blocked"
                assert self.report()["action"] == "inspect"
                assert f"({self.report()['hint']})" in str(self.report()["message"])
                act()

        thread = threading.Thread(target=watch)
        thread.start()
        yield
        thread.join()

    def start(self) -> str:
        """The journal of a start up to its first step."""
        return start_agent(self.tree, release)[1]

    def appear(self, path: Path, text: str) -> None:
        self.mount.mkdir(exist_ok=True)
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)
