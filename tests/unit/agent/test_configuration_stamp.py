"""The stamp of the configuration changes with what counts at the next start."""

import threading

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
