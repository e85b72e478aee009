"""The stamp of the configuration changes with what counts at the next start."""

import threading

import pytest
from tests.tree import Tree
from tests.unit.agent.starts import start_agent
from tests.unit.agent_runs import World

from sparkd.agent.daemon.configuration_stamp import digest_stamp, stamp_configuration
from sparkd.agent.daemon.context import Agent


def test_a_new_cluster_key_is_no_configuration_that_counts_at_the_next_restart(world: World) -> None:
    def read_stamp(agent: Agent) -> str:
        agent.actions.release()
        return digest_stamp(agent)

    stamps = []
    for name in ("", "cluster.key", "head.pub", "conf.d/more.toml"):
        if name:
            world.tree.file(f"/etc/sparkd/{name}", "# new\n")
        stamps += [start_agent(world.tree, read_stamp)[0]]
    first, with_cluster_key, with_head_key, with_more_settings = stamps
    assert first == with_cluster_key == with_head_key != with_more_settings


def test_folders_of_the_configuration_may_go_while_its_stamp_is_taken(tree: Tree) -> None:
    folder, stamped = tree.root / "etc/sparkd", threading.Event()
    folder.mkdir(parents=True)

    def churn() -> None:
        while not stamped.is_set():
            (folder / "conf.d/a").mkdir(parents=True)
            (folder / "conf.d/a").rmdir()
            (folder / "conf.d").rmdir()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(20_000):
            stamp_configuration(tree.root)
    finally:
        stamped.set()
        thread.join()


@pytest.mark.parametrize(("folder", "name"), [("recipes", "mine.yaml"), ("conf.d", "20-site.toml")])
def test_of_a_linked_folder_what_is_read_counts_and_nothing_below_it(tree: Tree, folder: str, name: str) -> None:
    """A checkout has a .git beside, which a fetch changes, and thousands of files."""
    checkout = tree.file("/srv/checkout/.git/FETCH_HEAD", "old").parent.parent
    tree.file(f"/srv/checkout/{name}", "old")
    tree.file("/etc/sparkd/sparkd.toml", "")
    (tree.root / "etc/sparkd" / folder).symlink_to(checkout)
    stamp = stamp_configuration(tree.root)
    tree.file("/srv/checkout/.git/FETCH_HEAD", "another one")
    assert stamp_configuration(tree.root) == stamp
    tree.file(f"/srv/checkout/{name}", "another one")
    assert stamp_configuration(tree.root) != stamp
