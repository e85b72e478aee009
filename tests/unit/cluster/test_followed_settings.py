"""The settings of a node that follows its head: what the head decides, what is its own, and where each is from."""

import pytest
from tests.tree import Tree
from tests.unit.cluster.head_documents import encode, good_document, keep_document
from tests.unit.cluster_nodes import machine

from sparkd.base.cluster import membership
from sparkd.base.cluster.following import load_effective
from sparkd.base.config import Settings
from sparkd.base.config.settings import Cluster, Supervise
from sparkd.base.host import Host
from sparkd.base.lib.errors import HeadAwaitedError

NODES = ("10.0.0.1", "10.0.0.2")
SETTINGS = "/node1/etc/sparkd/sparkd.toml"


@pytest.fixture
def worker(tree: Tree) -> Host:
    """The second node."""
    host = machine(tree, 1)
    tree.file("/node1/proc/net/fib_trie", "     |-- 10.0.0.2\n        /32 host LOCAL\n")
    return host


def keep_sections(tree: Tree, port: int, **sections: dict[str, object]) -> None:
    """Keep the document of a head that has these values."""
    document = good_document(port)
    for name, values in ({"cluster": {"nodes": [*NODES]}} | sections).items():
        document.setdefault(name, {}).update(values)
    keep_document(tree, encode(document))


def test_settings_name_the_head_as_origin_of_what_it_decides(tree: Tree, port: int, worker: Host) -> None:
    nodes = (*NODES, "10.0.0.3")
    keep_sections(tree, port, cluster={"nodes": [*nodes]}, engine={"env": {"A": "b"}})
    settings_file = """
        [cluster]
        nodes = ["10.0.0.1", "10.0.0.2"]
        follow_head = true
        [engine]
        models_dir = "/m"
        image = "mine:1"
        env = { B = "c" }
    """
    head, file = "head 10.0.0.1", str(tree.file(SETTINGS, settings_file))
    loaded = load_effective({}, worker)
    assert loaded.settings.cluster.nodes == nodes
    assert loaded.settings.engine.env == {"A": "b"}
    assert loaded.settings.engine.image == ""
    expected = {
        "cluster.nodes": head,
        "cluster.follow_head": file,
        "engine.models_dir": file,
        "engine.image": head,
        "engine.env.A": head,
        "supervise.stall_seconds": head,
    }
    assert {key: loaded.origins.get(key) for key in expected} == expected
    assert not loaded.origins.keys() & {"engine.env.B", "memory.floor_mib", "cluster.report_port"}


@pytest.mark.parametrize("own", [True, False])
def test_whether_a_node_may_reboot_and_what_it_runs_is_its_own_whatever_its_head_has(
    tree: Tree, port: int, worker: Host, own: bool
) -> None:
    command = ["/usr/bin/touch", "/tmp/run-by-the-head"]
    of_head = {"reboot": not own, "power_command": command, "power_after_minutes": 5, "stall_seconds": 77}
    keep_sections(tree, port, supervise=of_head)
    cluster = "cluster = {nodes = ['10.0.0.1', '10.0.0.2'], follow_head = true}"
    tree.file(SETTINGS, f"{cluster}\nsupervise.reboot = {str(own).lower()}\n")
    supervise = load_effective({}, worker).settings.supervise
    assert supervise == Supervise(reboot=own, stall_seconds=77)


def test_settings_that_contradict_the_heads_are_refused(tree: Tree, port: int, worker: Host) -> None:
    """Both are valid by themselves."""
    keep_sections(tree, port, cluster={"nodes": [*NODES], "master_port": 29510})
    own = Settings(cluster=Cluster(nodes=NODES, follow_head=True))
    with pytest.raises(HeadAwaitedError, match="already has this port"):
        membership.resolve_context(own, None, worker)
